"""Forge: train agents inside the harness they are deployed in.

This package is the composition root. ``forge.storage``, ``forge.proxy`` and ``forge.adapters`` are the
repository's other top-level folders, reached through relative symlinks so that nothing named ``proxy`` or
``storage`` ever lands in a user's site-packages.
"""

__version__ = "0.1.0"
