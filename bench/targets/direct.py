"""No target: the clients speak to the stub itself. What is measured then is the floor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.setting import Setting
from bench.targets.base import Running


@contextmanager
def direct(set_: Setting, upstream: int) -> Iterator[Running]:
    yield Running("direct", upstream, [])
