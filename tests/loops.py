"""Cases that hold on asyncio's own event loop and on uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Loop = Callable[[], asyncio.AbstractEventLoop]
Run = Callable[[Coroutine[Any, Any, None]], None]

on_both = pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def running_on(loop: Loop, seconds: float) -> Run:
    """Runs a case to its end, within ``seconds``."""

    def running(case: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(seconds):
                await case

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(bounded())

    return running
