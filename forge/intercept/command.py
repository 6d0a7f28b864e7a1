"""One program in one session: started with the variables of an interception, recorded, and its exit code kept.

The program has the terminal: it reads and writes it itself, and gets its Ctrl-C from it. Only the program gets the
variables; nothing of this process's own environment changes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge.client import Closed, ControlClient, Ticket
from forge.intercept import environment
from forge.intercept.mitmproxy import Interception, interception
from forge.proxy.config import Record
from forge.proxy.intercept.hosts import Rules
from forge.run_config import TRAINING_SAMPLING, check_place
from forge.scratch import scratch as temporary
from forge.stack import serving
from forge.storage.errors import BadInput, ForgeError
from forge.storage.names import check_name
from forge.storage.records import SessionStatus

CLOSE_S: Final = 20.0
"""To close the session while everything is being ended."""
TERMINATE_S: Final = 5.0
"""For the program to go when it is asked to."""
SIGNALLED: Final = 128
"""Added to the signal that ended a program, as shells do."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptConfig:
    command: tuple[str, ...]
    rules: Rules
    data: Path
    run_id: str
    record: Record = Record.STRICT
    policy: str | None = None
    control: str | None = None
    control_token_file: Path | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        check_name("the run", self.run_id)
        check_place(self.policy, self.control, self.control_token_file)
        if shutil.which(self.command[0]) is None:
            raise BadInput(f"there is no program {self.command[0]!r}", "give a program on PATH, or its path, after --")

    @property
    def kept(self) -> Path:
        return self.data / "harness" / self.run_id

    @property
    def log(self) -> Path:
        return self.kept / "intercept.log"


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    closed: Closed


async def intercept(config: InterceptConfig, say: Say) -> Ended:
    """Raises ``ForgeError`` where something needed is not there; on cancellation the session is closed."""
    await asyncio.to_thread(environment.install, say)
    with temporary("intercept") as scratch:
        async with (
            serving(config, scratch, say) as control,
            ControlClient(control.url, control.token) as client,
            interception(client, config.rules, folder=scratch / "mitmproxy", log=config.log, say=say) as there,
        ):
            ticket = await client.open_session(run_id=config.run_id, sampling=dict(TRAINING_SAMPLING))
            return await _session(config, client, ticket, there, scratch / "ca.pem", say)


async def _session(
    config: InterceptConfig, client: ControlClient, ticket: Ticket, there: Interception, ca: Path, say: Say
) -> Ended:
    ca.write_text(there.ca)
    say(f"session {ticket.session_id} begins: {config.command[0]}")
    try:
        code = await _program(config.command, {**os.environ, **there.variables(ticket.api_key, str(ca))})
        status = SessionStatus.FAILED
        if code == 0:
            called = await client.calls(ticket.session_id)
            status = SessionStatus.COMPLETED if called else SessionStatus.NO_CALLS
    except (asyncio.CancelledError, ForgeError) as error:
        status = SessionStatus.LAUNCH_FAILED if isinstance(error, BadInput) else SessionStatus.INTERRUPTED
        with suppress(TimeoutError, ForgeError):
            async with asyncio.timeout(CLOSE_S):
                await client.close_session(ticket.session_id, status=status.value, reward=None)
        raise
    closed = await client.close_session(ticket.session_id, status=status.value, reward=None, exit_code=code)
    return Ended(code, closed)


async def _program(command: tuple[str, ...], env: dict[str, str]) -> int:
    """Run it to its end; on cancellation it is ended. While it runs, Ctrl-C is between it and the terminal."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        process = await asyncio.create_subprocess_exec(*command, env=env)
    except OSError as error:
        raise BadInput(f"cannot start {command[0]}: {error.strerror}", "give a program after --") from error
    loop.add_signal_handler(signal.SIGINT, _nothing)
    try:
        code = await process.wait()
    finally:
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        if process.returncode is None:
            await _end(process)
    return code if code >= 0 else SIGNALLED - code


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(TERMINATE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _nothing() -> None: ...
