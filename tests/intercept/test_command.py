"""``forge intercept`` as a user runs it: a process that starts everything, runs the program, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forge.adapters.harnesses.python import START
from forge.intercept.environment import environment
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit
from forge.storage.records import CallStatus, SessionStatus
from tests.engine import ScriptedEngine, Turn
from tests.intercept.kit import KEY, WAIT_S, Program, holding, program, stores
from tests.proxy.serving import serving

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
CALL = """
import json, os, sys, urllib.request
body = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "hello"}]}).encode()
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request("https://api.openai.com/v1/chat/completions", data=body, headers=head)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
print("its own error", file=sys.stderr)
"""
SHOW = 'import os, sys; print(os.environ["SSL_CERT_FILE"], flush=True); sys.stdin.read()'


def forge(*args: str) -> list[str]:
    return [sys.executable, "-m", "forge", "intercept", *args]


def env(folder: Path, **more: str) -> dict[str, str]:
    """Temporary files below ``folder``, so that a test sees what is left."""
    (folder / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "OPENAI_API_KEY": KEY, "TMPDIR": str(folder / "tmp"), **more}


async def both(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=env,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 2 * WAIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_program_becomes_a_session(tmp_path: Path) -> None:
    data, before = tmp_path / "data", stores()
    script = CALL + "sys.exit(7)"
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("hello you")
        argv = forge("--policy", engine.url, "--data", str(data), "--run", "r", sys.executable, "-c", script)
        code, out, err = await both(argv, env(tmp_path))
        served = engine.served[-1]
    assert (code, out) == (7, "hello you\n"), err
    assert "its own error" in err
    (session,) = Dataset(data).sessions("r")
    (call,) = Dataset(data).calls("r")
    assert f"session {session.session_id} is failed: 1 calls (1 ok), {len(served.output_ids)} tokens, 1 rows" in err
    assert (session.status, session.exit_code, session.reward_status) == (SessionStatus.FAILED, 7, "null")
    assert (call.status, call.session_id, call.trainable) == (CallStatus.OK, session.session_id, True)
    assert call.output_ids.tolist() == served.output_ids
    assert served.json["temperature"] == 1.0
    assert KEY not in repr((session, call, served.headers, served.body))
    assert not holding(data, KEY)
    assert not list((tmp_path / "tmp").iterdir())
    assert stores() == before


async def test_a_running_proxy_is_used(tmp_path: Path) -> None:
    async with serving(tmp_path) as there:
        there.engine.default = lambda request: Turn("hello")
        token = str(there.proxy.control_token_file)
        control = ("--control", there.proxy.control_url, "--control-token-file", token)
        where = ("--data", str(tmp_path / "logs"))
        code, out, err = await both(forge(*control, *where, "--", sys.executable, "-c", CALL), env(tmp_path))
        assert (code, out) == (0, "hello\n"), err
        ((session,), _) = await there.control.finished()
        assert session.status == SessionStatus.COMPLETED
        # It makes no call: that is said, and where to look.
        code, _, err = await both(forge(*control, *where, "--", sys.executable, "-c", ""), env(tmp_path))
        assert code == 0
        assert "is no_calls: 0 calls" in err
        assert "intercept.log" in err


@asynccontextmanager
async def waiting(folder: Path, engine: ScriptedEngine) -> AsyncIterator[tuple[Program, Path]]:
    """``forge intercept`` whose program waits; the folder of its mitmdump."""
    argv = forge("--policy", engine.url, "--data", str(folder / "data"), "--", sys.executable, "-c", SHOW)
    read, write = os.pipe()
    try:
        async with program(argv, env(folder), stdin=read) as running:
            ca = await running.line("ca.pem")
            yield running, Path(ca.strip()).parent / "mitmproxy"
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_program_and_closes_the_session(tmp_path: Path, number: signal.Signals) -> None:
    async with ScriptedEngine() as engine, waiting(tmp_path, engine) as (running, folder):
        pid = json.loads((folder / "ready.json").read_text())["pid"]
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "mitmproxy-ca.pem").stat().st_mode & 0o077 == 0
        running.process.send_signal(number)
        await asyncio.wait_for(running.process.communicate(), WAIT_S)
        assert running.process.returncode == Exit.INTERRUPTED
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    (session,) = Dataset(tmp_path / "data").sessions()
    assert session.status == SessionStatus.INTERRUPTED
    assert not list((tmp_path / "tmp").iterdir())


async def test_ctrl_c_is_the_programs(tmp_path: Path) -> None:
    """A terminal sends it to both; the session ends because the program does."""
    async with ScriptedEngine() as engine, waiting(tmp_path, engine) as (running, _):
        os.killpg(running.process.pid, signal.SIGINT)
        await asyncio.wait_for(running.process.communicate(), WAIT_S)
        assert running.process.returncode == 128 + signal.SIGINT
    (session,) = Dataset(tmp_path / "data").sessions()
    assert (session.status, session.exit_code) == (SessionStatus.FAILED, 128 + signal.SIGINT)


async def test_a_program_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "no-program").write_bytes(b"\x00\x01")
    (tmp_path / "no-program").chmod(0o755)
    async with ScriptedEngine() as engine:
        code, _, err = await both(forge("--policy", engine.url, "--", "./no-program"), env(tmp_path), tmp_path)
    assert code == Exit.BAD_INPUT
    assert "cannot start ./no-program: Exec format error" in err
    (session,) = Dataset(tmp_path / "data").sessions()
    assert session.status == SessionStatus.LAUNCH_FAILED


async def test_a_mitmdump_that_dies_ends_the_session_and_is_named(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, waiting(tmp_path, engine) as (running, folder):
        os.kill(json.loads((folder / "ready.json").read_text())["pid"], signal.SIGKILL)
        output, _ = await asyncio.wait_for(running.process.communicate(), WAIT_S)
        assert running.process.returncode == Exit.UNAVAILABLE
    assert b"error: the interception (mitmdump) ended with exit code -9" in output
    assert b"next: its log is " in output
    (session,) = Dataset(tmp_path / "data").sessions()
    assert session.status == SessionStatus.INTERRUPTED


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
async def test_mitmdump_dies_with_us(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, waiting(tmp_path, engine) as (running, folder):
        gone = asyncio.Event()
        pidfd = os.pidfd_open(json.loads((folder / "ready.json").read_text())["pid"])
        asyncio.get_running_loop().add_reader(pidfd, gone.set)
        running.process.kill()
        await asyncio.wait_for(gone.wait(), WAIT_S)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)


async def test_where_mitmproxy_cannot_be_had(tmp_path: Path) -> None:
    offline = env(tmp_path, FORGE_CACHE=str(tmp_path / "cache"), PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    code, _, err = await both(forge("--policy", "http://127.0.0.1:1", "--", "true"), offline, tmp_path)
    assert code == Exit.UNAVAILABLE
    assert "error: cannot install mitmproxy" in err
    assert "next:" in err


async def test_where_mitmproxy_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "cache" / "intercept" / environment().folder
    broken.mkdir(parents=True)
    (broken / START).write_text("raise SystemExit('no mitmproxy today')")
    async with ScriptedEngine() as engine:
        argv = forge("--policy", engine.url, "--run", "r", "--", "true")
        code, _, err = await both(argv, env(tmp_path, FORGE_CACHE=str(tmp_path / "cache")), tmp_path)
    assert code == Exit.UNAVAILABLE
    assert "error: the interception (mitmdump) ended with exit code 1" in err
    log = re.search(r"next: its log is (\S+)", err)
    assert log is not None
    assert "no mitmproxy today" in Path(log.group(1)).read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "no program is given"),
        (("--", "no-such-program-here"), "there is no program"),
        (("--map", "https://x", "--", "true"), "no HOST or HOST=PREFIX"),
        (("--control", "http://127.0.0.1:1", "--", "true"), "needs the proxy's token"),
    ],
)
async def test_bad_input_says_what_to_do(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    code, _, err = await both(forge(*args), env(tmp_path), tmp_path)
    assert code == Exit.BAD_INPUT
    assert said in err
    assert "next: " in err
    assert not (tmp_path / "data").exists()


@pytest.mark.harness
async def test_the_commands_of_the_docs(tmp_path: Path) -> None:
    """Every command line of the page, with its program, as they stand there but for the policy's address."""
    page = (ROOT / "docs/intercept.md").read_text()
    blocks = dict.fromkeys(re.findall(r"```(sh|python)\n(.+?)```", page, re.DOTALL))
    (agent,) = [text for kind, text in blocks if kind == "python"]
    (tmp_path / "agent.py").write_text(agent)
    lines = [line for kind, text in blocks if kind == "sh" for line in text.splitlines()]
    assert len(lines) >= 3
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("hello from the policy")
        for line in lines:
            words = shlex.split(line.replace("http://127.0.0.1:8000", engine.url))
            python = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
            code, out, err = await both(words, env(tmp_path, **python), tmp_path)
            assert code == 0, err
            assert ("agent.py" in words) == (out.strip() == "hello from the policy")
    assert len(list(Dataset(tmp_path / "data").calls())) == len(lines) - 1  # one of them only installs
