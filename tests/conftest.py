"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# How long an example takes is the machine's matter: no test is about that.
settings.register_profile("forge", deadline=None)
settings.load_profile("forge")


def pytest_configure() -> None:
    """A shell tells what it starts in the background to ignore SIGINT, and children inherit that: they are tried as at
    a terminal all the same."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
