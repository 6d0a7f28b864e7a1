"""A scripted engine, a real proxy in this process, mitmdump beside it, and programs that are led through it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forge.client import Ticket
from forge.intercept import environment
from forge.intercept.mitmproxy import Interception, interception
from forge.proxy.intercept.hosts import Others, rules
from forge.storage.records import Call
from tests.proxy.serving import Serving, serving

KEY = "sk-provider-secret-1234567890"
"""What programs believe to be their provider's key. It must not be found anywhere."""
WAIT_S = 60.0
SYSTEM_STORES = ("/etc/ssl", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/etc/ca-certificates")


@dataclass
class There:
    """An interception that serves one open session."""

    serving: Serving
    interception: Interception
    ticket: Ticket
    ca: Path
    log: Path

    def env(self, **more: str) -> dict[str, str]:
        """A program's whole environment: what it would have anyway, and the variables."""
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return own | self.interception.variables(self.ticket.api_key, str(self.ca)) | more

    async def calls(self) -> list[Call]:
        return await self.serving.control.calls(self.ticket.session_id)


@asynccontextmanager
async def intercepted(
    tmp: Path, others: Others = Others.BLOCK, maps: Sequence[str] = (), *, max_model_len: int = 32768
) -> AsyncIterator[There]:
    from tests.engine import ScriptedEngine

    await asyncio.to_thread(environment.install, print)
    engine = ScriptedEngine(max_model_len=max_model_len)
    async with serving(tmp, engine, implicit=False) as here:
        log = tmp / "intercept.log"
        led = interception(here.control, rules(others, maps), folder=tmp / "mitm", log=log, say=print)
        async with led as there:
            ca = tmp / "ca.pem"
            ca.write_text(there.ca)
            ticket = await here.control.open_session(run_id="run")
            yield There(here, there, ticket, ca, log)


@dataclass
class Program:
    process: asyncio.subprocess.Process

    async def line(self, containing: str) -> str:
        """The next line of its output that holds this."""
        assert self.process.stdout is not None
        seen = []
        async with asyncio.timeout(WAIT_S):
            while line := await self.process.stdout.readline():
                seen.append(line.decode())
                if containing in seen[-1]:
                    return seen[-1]
        raise AssertionError(f"it ended without {containing!r}: {seen}")

    async def end(self) -> str:
        """The rest of its output, once it has ended well."""
        output, _ = await asyncio.wait_for(self.process.communicate(), WAIT_S)
        assert self.process.returncode == 0, output.decode()
        return output.decode()


@asynccontextmanager
async def program(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None, stdin: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[Program]:
    """Started, its output and errors read as one; nothing of it is left behind."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 20,
    )
    try:
        yield Program(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


def holding(folder: Path, secret: str) -> list[Path]:
    """The files below ``folder`` in which ``secret`` stands."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def stores() -> dict[str, tuple[int, int]]:
    """Size and time of every file of the system's trust stores, and of mitmproxy's own folder in HOME."""
    return {str(path): (s.st_size, s.st_mtime_ns) for path in _store_files() if (s := path.lstat())}


def _store_files() -> Iterator[Path]:
    for folder in (*map(Path, SYSTEM_STORES), Path.home() / ".mitmproxy"):
        yield from folder.rglob("*")
