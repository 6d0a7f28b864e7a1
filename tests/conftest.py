"""What holds for every test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's matter: no test is about that.
settings.register_profile("forge", deadline=None)
settings.load_profile("forge")

# torch's threads that spin between two small kernels would take the cores from the tests beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_configure() -> None:
    """A shell tells what it starts in the background to ignore SIGINT, nohup to ignore SIGHUP, and children inherit
    that: they are tried as at a terminal all the same."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that where files are shared out no process ends with one alone."""
    rank: dict[Path, int] = {}
    for item in items:
        mine = next((n for n, name in enumerate(("ray", "model")) if item.get_closest_marker(name)), 2)
        rank[item.path] = min(rank.get(item.path, mine), mine)
    items.sort(key=lambda item: rank[item.path])


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process says what it logs to a stream that is closed after it."""
    root = logging.getLogger()
    level, before = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler and each not in before]:
        root.removeHandler(handler)
