"""Intercept mode: programs whose endpoint cannot be set reach the data plane through mitmproxy, a program beside us.

``hosts`` says which requests are the policy's, ``addon`` is run by mitmproxy's own Python and imports nothing of ours,
``requirements.txt`` pins that Python's packages.
"""
