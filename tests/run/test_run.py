"""``forge run`` end to end over a real proxy, with tiny harnesses and the scripted policy server.

One proxy serves most of these tests, because starting and stopping one takes seconds; it is started by the run's own
code, and the first test lets a run start and stop its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from rich.console import Console

from forge.client import ControlClient
from forge.launching import Launching
from forge.run import run
from forge.run_config import TRAINING_SAMPLING, RunConfig
from forge.run_report import RunReport
from forge.run_table import print_report
from forge.runners import find
from forge.stack import Control, serving
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Exit, Unavailable
from forge.storage.journal import JournalWriter
from forge.storage.records import SessionStatus
from forge.tasks import Grader, Task
from forge.transcripts import Verdict
from tests.engine import Fault, ScriptedEngine, Turn
from tests.run.fake import FakeHarness, OtherHarness, Seen

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

TASK = Task(id="hello", prompt="say hi", grader=Grader(command="test -e made"))
WORKS = "print(call()); pathlib.Path('made').touch()"


def settings(data: Path, script: str, *tasks: Task, **more: Any) -> RunConfig:
    chosen: dict[str, Any] = {"runner": find("local"), "seconds": 60.0, "run_id": "r"}
    chosen |= {"adapters": (FakeHarness(script),), **more}
    return RunConfig(tasks=tasks or (TASK,), data=data, **chosen)


@dataclass
class Served:
    """The shared proxy and its engine."""

    engine: ScriptedEngine
    control: Control
    data: Path

    async def run(self, run_id: str, script: str, *tasks: Task, **more: Any) -> RunReport:
        return await run(self.config(run_id, script, *tasks, **more), Seen())

    def config(self, run_id: str, script: str, *tasks: Task, **more: Any) -> RunConfig:
        token_file = self.data / "control.token"
        there = {"control": self.control.url, "control_token_file": token_file}
        return settings(self.data, script, *tasks, run_id=run_id, **there, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    async with ScriptedEngine() as engine:
        config = settings(data, "", run_id="all", policy=engine.url)
        async with serving(config, folder, print) as control:
            yield Served(engine, control, data)


async def test_a_run_starts_and_stops_its_own_proxy(tmp_path: Path) -> None:
    task = Task(id="a", prompt="count", files={"in/n.txt": "3"}, grader=Grader(command="cat made"))
    script = """
first = call(pathlib.Path("in/n.txt").read_text())
print(first)
home = pathlib.Path(os.environ["HOME"])
(home / "log/t.jsonl").write_text((home / "conf/context").read_text())
pathlib.Path("made").write_text(str(len(first) / 10))
"""
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("four")
        seen = Seen()
        config = settings(tmp_path, script, task, group_size=3, concurrency=2, policy=engine.url)
        report = await run(config, seen)
        sampling = {key: engine.served[-1].json.get(key) for key in ("temperature", "top_p", "top_k")}
    assert report.exit_code is Exit.OK
    assert sampling == {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    assert [each.status for each in report.sessions] == [SessionStatus.COMPLETED] * 3
    assert [each.reward for each in report.sessions] == [0.4] * 3
    assert [(each.calls, each.ok_calls, each.rows) for each in report.sessions] == [(1, 1, 1)] * 3
    assert len(seen.reports) == 3

    dataset = Dataset(tmp_path)
    sessions = sorted(dataset.sessions("r"), key=lambda each: each.rollout_index or 0)
    assert [(s.group_id, s.rollout_index, s.reward, s.harness) for s in sessions] == [
        ("r/a/fake", index, 0.4, "fake") for index in range(3)
    ]
    assert sessions[0].reward_author == "command cat made"
    (configured,) = {s.harness_config_hash for s in sessions}
    assert configured == Launching(config, 4096, None).config_hash(FakeHarness(script))
    assert configured != Launching(config, 8192, None).config_hash(FakeHarness(script))
    assert len(list(dataset.calls("r"))) == 3
    kept = report.sessions[0].kept
    assert (kept / "stdout").read_text() == "four\n"
    assert (kept / "transcript" / "log" / "t.jsonl").read_text() == "4096"


async def test_several_harnesses_do_the_same_tasks_each_in_groups_of_its_own(served: Served) -> None:
    """Field case 170: which sessions are compared is said, not guessed."""
    tasks = [replace(TASK, id=name, grader=Grader(command="cat made")) for name in ("a", "b")]
    adapters = (
        FakeHarness("call(); pathlib.Path('made').write_text('1')"),
        OtherHarness("call(); call('again'); pathlib.Path('made').write_text('0.5')"),
    )
    report = await served.run("both", "", *tasks, adapters=adapters, group_size=2)
    assert report.exit_code is Exit.OK
    first, second = report.summaries
    assert (first.harness, first.sessions, first.completed, first.reward, first.calls, first.rows) == (
        *("fake", 4, 4, 1.0),
        *(4, 1.0),
    )
    assert (second.harness, second.sessions, second.completed, second.reward, second.calls, second.rows) == (
        *("other", 4, 4, 0.5),
        *(8, 2.0),
    )
    async with ControlClient(served.control.url, served.control.token) as client:
        groups: dict[str | None, set[int | None]] = {}
        for each in report.sessions:
            session = await client.session(each.session_id)
            assert session.harness == each.harness
            groups.setdefault(session.group_id, set()).add(session.rollout_index)
    assert groups == {f"both/{task}/{name}": {0, 1} for task in "ab" for name in ("fake", "other")}
    console = Console(width=80, record=True, file=StringIO())
    print_report(report, console)
    lines = [line.split() for line in console.export_text().splitlines()]
    # By harness, whole at 80 columns.
    ids = {name: [each.session_id for each in report.sessions if each.harness == name] for name in ("fake", "other")}
    first_words = [words[0] for words in lines if words][2:12]
    assert first_words == ["fake", *ids["fake"], "other", *ids["other"]]
    assert ["other", "4", "4", "0.5", "8", "2.00"] in [words[:6] for words in lines]


async def test_one_harness_that_is_not_there_fails_the_run_and_not_the_others(served: Served) -> None:
    adapters = (FakeHarness(WORKS), OtherHarness("", program="/opt/forge/none"))
    report = await served.run("half", "", adapters=adapters)
    assert [each.status for each in report.sessions] == [SessionStatus.COMPLETED, SessionStatus.LAUNCH_FAILED]
    assert report.exit_code is Exit.FAILED


TRANSCRIPTS = {
    "agrees": ("", Verdict.OK, 0),
    "counts one more": ("note(1, 1)", Verdict.DIFFERS, 1),
    "keeps none": ("pathlib.Path(os.environ['HOME'], 'log/calls.jsonl').unlink()", Verdict.NONE, 0),
    "keeps rubbish": ("pathlib.Path(os.environ['HOME'], 'log/calls.jsonl').write_text('[')", Verdict.NONE, 0),
}


async def test_a_harnesss_own_record_is_kept_and_compared_and_a_difference_is_a_warning(served: Served) -> None:
    tasks = [Task(id=name, prompt=code) for name, (code, _, _) in TRANSCRIPTS.items()]
    report = await served.run("heard", "call(); exec(prompt)", *tasks)
    assert report.exit_code is Exit.OK
    for each in report.sessions:
        _, verdict, differences = TRANSCRIPTS[each.task_id]
        assert (each.task_id, each.status) == (each.task_id, SessionStatus.COMPLETED)
        assert (each.transcript.verdict, len(each.transcript.differences)) == (verdict, differences)
        told = json.loads((each.kept / "transcript.json").read_text())
        assert (told["verdict"], len(told["differences"])) == (verdict, differences)


async def test_a_data_directory_in_use_says_so(tmp_path: Path) -> None:
    """The child's own error, with its own next step, is the run's."""
    async with ScriptedEngine() as engine:
        with (
            closing(JournalWriter.open(tmp_path, 0, run_id="other")),
            pytest.raises(Unavailable, match="in use") as caught,
        ):
            await run(settings(tmp_path, WORKS, policy=engine.url), Seen())
    assert caught.value.hint


ENDINGS: dict[str, tuple[str, SessionStatus, str]] = {
    "well": (WORKS, SessionStatus.COMPLETED, ""),
    "gives up": ("call(); sys.exit('gave up')", SessionStatus.FAILED, "exit code 1, gave up"),
    "crashes": ("call(); os.kill(os.getpid(), 9)", SessionStatus.FAILED, "exit code 137"),
    "hangs": ("call(); time.sleep(1000)", SessionStatus.TIMEOUT, "had not ended"),
    "writes nothing": ("pass", SessionStatus.NO_CALLS, "exit code 0"),
    "cannot begin": ("sys.exit('no config')", SessionStatus.NO_CALLS, "exit code 1, no config"),
    "is refused": ("tried('refuse me')", SessionStatus.FAILED, "none of its 1 calls was served"),
    "finds no policy": ("tried('nobody is there')", SessionStatus.POLICY_DOWN, ""),
    "steals a key": ("call(key='fs_' + 'a' * 20 + '_' + 'b' * 32)", SessionStatus.NO_CALLS, "401"),
}


async def test_what_a_harness_does_is_its_sessions_status_and_no_others(served: Served) -> None:
    script = """
def tried(text):
    try:
        call(text)
    except urllib.error.HTTPError as error:
        print(error.code)
exec(prompt)
"""
    answers = {"refuse me": Turn(fault=Fault(status=400)), "nobody is there": Turn(fault=Fault(status=503))}
    served.engine.default = lambda request: answers.get(request["messages"][-1]["content"], Turn("ok"))
    tasks = [Task(id=name, prompt=code, grader=TASK.grader) for name, (code, _, _) in ENDINGS.items()]
    report = await served.run("endings", script, *tasks, seconds=8, concurrency=3)

    async with ControlClient(served.control.url, served.control.token) as client:
        for each in report.sessions:
            _, status, error = ENDINGS[each.task_id]
            assert (each.task_id, each.status) == (each.task_id, status), each.error
            assert error in (each.error or "")
            assert each.reward == (1.0 if each.task_id == "well" else None)
            assert (each.kept / "stdout").exists()
            recorded = await client.session(each.session_id)
            assert recorded.status == status
            assert recorded.reward_status == ("graded" if each.task_id == "well" else "null")
    assert report.exit_code is Exit.FAILED


async def test_a_program_that_is_not_there(served: Served) -> None:
    missing = replace(served.config("missing", ""), adapters=(FakeHarness("", program="/opt/forge/none"),))
    report = await run(missing, Seen())
    assert report.sessions[0].status is SessionStatus.LAUNCH_FAILED
    assert "/opt/forge/none" in (report.sessions[0].error or "")
    assert report.exit_code is Exit.UNAVAILABLE


async def test_ok_calls_that_cannot_train_are_named(served: Served) -> None:
    report = await served.run("narrow", WORKS, sampling={**TRAINING_SAMPLING, "top_p": 0.5})
    assert report.exit_code is Exit.UNTRAINABLE
    ((session, call_id, reason),) = report.untrainable
    assert reason == "constrained"
    assert call_id
    assert session.reward == 1.0
    assert replace(report, strict=False).exit_code is Exit.OK


async def test_a_grader_that_fails_gives_no_reward_and_says_why(served: Served) -> None:
    task = replace(TASK, grader=Grader(command="no-such-grader"))
    (session,) = (await served.run("ungraded", WORKS, task)).sessions
    assert (session.status, session.reward) == (SessionStatus.COMPLETED, None)
    assert "127" in (session.reward_reason or "")
    async with ControlClient(served.control.url, served.control.token) as client:
        row = await client.session(session.session_id)
    assert (row.reward, row.reward_status, row.reward_author) == (None, "null", "command no-such-grader")
    assert row.error is not None
    assert row.error.startswith("no reward: ")
    assert row.reward_us is not None


GREEDY = """
call()
tried = []
for base in (CONTROL, os.environ["FAKE_URL"].removesuffix("/v1"), os.environ["FAKE_URL"]):
    for method, path in (("PUT", "/reward"), ("POST", "/close"), ("PUT", "/selection")):
        url = base + ("/sessions/" + os.environ["FAKE_KEY"].split("_")[1] if base is CONTROL else "") + path
        request = urllib.request.Request(url, data=b'{"reward": 1.0, "selection": null}', method=method)
        request.add_header("Authorization", "Bearer " + os.environ["FAKE_KEY"])
        try:
            urllib.request.urlopen(request)
            tried.append(200)
        except urllib.error.HTTPError as error:
            tried.append(error.code)
print(tried)
"""


async def test_a_harness_cannot_set_its_own_reward(served: Served) -> None:
    """It knows the control plane's address and holds its session's key, and asks for a reward at every door."""
    script = f"CONTROL = {served.control.url!r}" + GREEDY
    (session,) = (await served.run("greedy", script)).sessions
    assert json.loads((session.kept / "stdout").read_text()) == [401] * 3 + [404] * 6
    assert (session.status, session.reward) == (SessionStatus.COMPLETED, 0.0)
    async with ControlClient(served.control.url, served.control.token) as client:
        row = await client.session(session.session_id)
    assert (row.reward, row.reward_author) == (0.0, "command test -e made")


async def test_without_a_grader_there_is_no_reward(served: Served) -> None:
    (session,) = (await served.run("free", WORKS, replace(TASK, grader=None))).sessions
    assert (session.reward, session.reward_reason) == (None, "the task has no grader")
    async with ControlClient(served.control.url, served.control.token) as client:
        assert (await client.session(session.session_id)).reward_status == "null"


async def test_interrupting_a_run_closes_its_sessions(served: Served) -> None:
    served.engine.default = lambda request: Turn(fault=Fault(mute=True))
    before = len(served.engine.served)
    task = asyncio.ensure_future(run(served.config("cut", "call()", group_size=2), Seen()))
    while len(served.engine.served) < before + 2:
        await asyncio.sleep(0.02)  # another process calls; its request is the signal
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    served.engine.default = lambda request: Turn("ok")
    async with ControlClient(served.control.url, served.control.token) as client:
        closed = [session for session in (await client.finished())[0] if session.run_id == "cut"]
    assert [(s.status, s.reward, s.reward_status) for s in closed] == [("interrupted", None, "null")] * 2


async def test_the_unconfined_runner_runs_the_same(served: Served) -> None:
    report = await served.run("open", WORKS, runner=find("unconfined"))
    assert report.exit_code is Exit.OK
    assert report.sessions[0].reward == 1.0


async def test_a_proxy_that_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    config = settings(tmp_path, WORKS, control="http://127.0.0.1:1", control_token_file=tmp_path / "token")
    with pytest.raises(Unavailable, match="does not answer"):
        await run(config, Seen())


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_size": 0},
        {"adapters": (FakeHarness(""), FakeHarness(""))},
        {"concurrency": 0},
        {"seconds": 0.0},
        {"policy": "http://127.0.0.1:1", "control": "http://127.0.0.1:2"},
        {"control": "http://127.0.0.1:2"},
    ],
)
async def test_bad_settings_are_bad_input(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        settings(tmp_path, "", **wrong)
    assert caught.value.hint
