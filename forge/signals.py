"""Signals that end a command as Ctrl-C does: its sessions are closed, its children stopped, its folders removed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Being asked to go, and a terminal that goes. One that is ignored (``nohup``) stays ignored."""


async def until_signalled(work: Coroutine[Any, Any, T]) -> T:
    """Raises ``KeyboardInterrupt`` once ``work`` has cleaned up."""
    task = asyncio.current_task()
    assert task is not None
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
