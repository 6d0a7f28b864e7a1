"""Forge inside other people's trainers: classes and functions that they load by a dotted path.

Each module imports its trainer only when one of its names is used. What a row looks like to a trainer is in
``forge.adapters.trainers``; here is what needs the proxy and a harness.
"""
