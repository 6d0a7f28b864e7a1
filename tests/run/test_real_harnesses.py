"""Codex and pi, the real programs, through a real proxy: the same run but for the word.

Each is installed into the cache on first use; the model is the scripted engine, which asks for one shell command and
then ends. What is recorded must be what the engine served.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge.adapters.harnesses import find
from forge.harness_check.script import answer
from forge.run import run
from forge.run_config import RunConfig
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit
from forge.storage.records import Call, SessionStatus
from forge.tasks import Grader, Task
from forge.transcripts import Verdict
from tests.engine import ScriptedEngine, Turn
from tests.run.fake import Seen

pytestmark = pytest.mark.harness

NAMES = ("codex", "pi")


def act(request: dict[str, Any]) -> Turn:
    """Ask for one shell command; after its result, say something and end. Compact, as pi writes arguments back: other
    blanks would be other tokens here, and two rows."""
    reply = answer(request)
    if reply.tool is None:
        return Turn(reply.text)
    return Turn(tool_calls=[(reply.tool, json.dumps(json.loads(reply.arguments), separators=(",", ":")))])


async def test_a_task_with_a_tool_in_both_at_once(tmp_path: Path) -> None:
    grader = Grader(command="grep -qx hi hello.txt")
    task = Task(id="hello", prompt="-@ create hello.txt containing 'hi'\nand say so", grader=grader)
    async with ScriptedEngine(max_model_len=32768) as engine:
        engine.default = act
        config = RunConfig(
            adapters=tuple(map(find, NAMES)),
            tasks=(task,),
            runner=find_runner("local"),
            data=tmp_path,
            run_id="both",
            group_size=2,
            seconds=120,
            policy=engine.url,
        )
        report = await run(config, Seen())
        served = {tuple(each.prompt_ids): each.output_ids for each in engine.served}

    assert report.exit_code is Exit.OK, report
    assert [(each.harness, each.sessions, each.completed, each.reward, each.rows) for each in report.summaries] == [
        (name, 2, 2, 1.0, 1.0) for name in NAMES
    ], "two calls of a session are one training row: the history comes back as it was sampled"
    for session in report.sessions:
        assert (session.status, session.reward) == (SessionStatus.COMPLETED, 1.0)
        assert (session.calls, session.ok_calls) == (2, 2)
        assert (session.transcript.verdict, session.transcript.heard) == (Verdict.OK, 2), session.transcript
        assert find(session.harness).final_text((session.kept / "stdout").read_text()).strip() == "Done."
    dataset = Dataset(tmp_path)
    groups = {(s.harness, s.group_id, s.task_id) for s in dataset.sessions("both")}
    assert groups == {(name, f"both/hello/{name}", "hello") for name in NAMES}
    for name in NAMES:
        check_calls(name, [call for call in dataset.calls("both") if call.harness == name], served)


def check_calls(name: str, calls: list[Call], served: dict[tuple[int, ...], list[int]]) -> None:
    assert len(calls) == 4
    for call in calls:
        assert call.trainable
        assert call.dialect == find(name).wire
        assert call.harness_version == find(name).version
        assert served[tuple(call.prompt_ids.tolist())] == call.output_ids.tolist()
        assert "-@ create hello.txt containing 'hi'\\nand say so" in call.messages
    # Sessions of a group begin alike, token for token: their prompts hold nothing of this machine or moment.
    first = [call.prompt_ids.tolist() for call in calls if call.parent_call_id is None]
    assert len(first) == 2
    assert first[0] == first[1]
