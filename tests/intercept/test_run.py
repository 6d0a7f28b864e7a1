"""``forge run --intercept``: confined harnesses that call their provider, each call a row of its own session."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forge.adapters.harnesses import find
from forge.cli.run import _intercept
from forge.proxy.intercept.hosts import PROVIDERS, Mapped, Others, Rules, rules
from forge.run import run
from forge.run_config import RunConfig
from forge.run_table import print_report
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Exit
from forge.storage.records import SessionStatus
from forge.tasks import Grader, Task
from tests.engine import ScriptedEngine, Turn
from tests.harnesses.acting import tool_turn
from tests.run.fake import FakeHarness, Seen

SCRIPT = """
assert base_url == "https://api.openai.com/v1" and "fs_" not in os.environ["FAKE_KEY"]
print(call())
try:
    urllib.request.urlopen("http://elsewhere.example.com/")
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["error"]["code"])
"""


def settings(data: Path, policy: str, **more: Any) -> RunConfig:
    return RunConfig(
        runner=find_runner("local"),
        data=data,
        run_id="r",
        seconds=120,
        policy=policy,
        intercept=rules(Others.BLOCK),
        **more,
    )


@pytest.mark.process
async def test_each_session_gets_its_own_calls(tmp_path: Path) -> None:
    """One mitmdump serves them all at once."""
    tasks = tuple(Task(id=f"t{n}", prompt=f"question {n}") for n in range(3))
    harness = FakeHarness('base_url = os.environ["FAKE_URL"]\n' + SCRIPT)
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("answer to " + request["messages"][-1]["content"])
        config = settings(tmp_path, engine.url, adapters=(harness,), tasks=tasks, group_size=2, concurrency=6)
        seen = Seen()
        report = await run(config, seen)
    assert report.exit_code is Exit.OK, report
    for session in report.sessions:
        assert (session.status, session.calls) == (SessionStatus.COMPLETED, 1)
        said = (session.kept / "stdout").read_text()
        assert said == f"answer to question {session.task_id[1:]}\n403 host_blocked\n"
        (call,) = Dataset(tmp_path).calls("r", session.session_id)
        assert f"question {session.task_id[1:]}" in call.messages
    assert seen.said.count("starting mitmproxy") == 1


@pytest.mark.process
async def test_a_program_that_ignores_proxies_is_no_calls_and_the_log_is_named(tmp_path: Path) -> None:
    script = """
go = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
go("https://api.openai.com/v1/models", timeout=1)
"""
    async with ScriptedEngine() as engine:
        tasks = (Task(id="t", prompt="p"),)
        report = await run(settings(tmp_path, engine.url, adapters=(FakeHarness(script),), tasks=tasks), Seen())
    assert [session.status for session in report.sessions] == [SessionStatus.NO_CALLS]
    assert report.exit_code is Exit.FAILED
    console = Console(width=80, file=StringIO(), record=True)
    print_report(report, console)
    assert str(tmp_path / "harness/r/intercept.log") in console.export_text().replace("\n", "")


@pytest.mark.harness
async def test_real_harnesses(tmp_path: Path) -> None:
    """One for each wire: Rust, Node and Bun programs in the sandbox, with the CA in their HOME."""
    names = {"codex": "responses", "pi": "chat", "claude-code": "messages", "gemini-cli": "gemini"}
    task = Task(id="hello", prompt="create hello.txt", grader=Grader(command="grep -qx hi hello.txt"))
    async with ScriptedEngine(max_model_len=65536) as engine:
        engine.default = tool_turn
        adapters = tuple(find(name) for name in names)
        report = await run(settings(tmp_path, engine.url, adapters=adapters, tasks=(task,)), Seen())
    assert report.exit_code is Exit.OK, report
    assert {(each.harness, each.status, each.calls, each.reward) for each in report.sessions} == {
        (name, SessionStatus.COMPLETED, 2, 1.0) for name in names
    }
    assert {(call.harness, call.dialect) for call in Dataset(tmp_path).calls("r")} == set(names.items())


def test_the_options() -> None:
    assert _intercept(False, (), None) is None
    assert _intercept(True, (), None) == Rules(PROVIDERS, Others.BLOCK)
    assert _intercept(True, ("h",), Others.PASS) == Rules((*PROVIDERS, Mapped("h")), Others.PASS)
    for wrong in (((), Others.PASS), (("h",), None)):
        with pytest.raises(BadInput, match="--map and --others"):
            _intercept(False, *wrong)
