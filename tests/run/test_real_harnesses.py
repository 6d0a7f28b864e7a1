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
from forge.run import run
from forge.run_config import RunConfig
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit
from forge.storage.records import SessionStatus
from forge.tasks import Grader, Task
from forge.transcripts import Verdict
from tests.engine import ScriptedEngine, Turn
from tests.run.fake import Seen

pytestmark = pytest.mark.harness

SHELLS = {"exec_command": "cmd", "bash": "command"}
"""Each harness's shell tool and the name of its argument."""


def act_once(request: dict[str, Any]) -> Turn:
    """Ask for one shell command; after its result, say something and end."""
    if any(message["role"] == "tool" for message in request["messages"]):
        return Turn("Done.")
    offered = {tool["function"]["name"] for tool in request.get("tools", ())}
    for tool, argument in SHELLS.items():
        if tool in offered:
            # Compact, as pi writes it back: other blanks would be other tokens, and two rows.
            command = json.dumps({argument: "echo hi > hello.txt"}, separators=(",", ":"))
            return Turn(tool_calls=[(tool, command)])
    return Turn("no shell tool was offered")


@pytest.mark.parametrize("name", ["codex", "pi"])
async def test_a_task_with_a_tool(tmp_path: Path, name: str) -> None:
    grader = Grader(command="grep -qx hi hello.txt")
    task = Task(id="hello", prompt="-@ create hello.txt containing 'hi'\nand say so", grader=grader)
    async with ScriptedEngine(max_model_len=32768) as engine:
        engine.default = act_once
        config = RunConfig(
            adapters=(find(name),),
            tasks=(task,),
            runner=find_runner("local"),
            data=tmp_path,
            run_id=name,
            group_size=2,
            seconds=120,
            policy=engine.url,
        )
        report = await run(config, Seen())
        served = {tuple(each.prompt_ids): each.output_ids for each in engine.served}

    assert report.exit_code is Exit.OK, report
    for session in report.sessions:
        assert (session.status, session.reward) == (SessionStatus.COMPLETED, 1.0)
        assert (session.calls, session.ok_calls) == (2, 2)
        assert (session.transcript.verdict, session.transcript.heard) == (Verdict.OK, 2), session.transcript
        assert find(name).final_text((session.kept / "stdout").read_text()).strip() == "Done."
    calls = list(Dataset(tmp_path).calls(name))
    assert len(calls) == 4
    for call in calls:
        assert call.trainable
        assert call.dialect == find(name).wire
        assert (call.harness, call.harness_version) == (name, find(name).version)
        assert served[tuple(call.prompt_ids.tolist())] == call.output_ids.tolist()
        assert "-@ create hello.txt containing 'hi'\\nand say so" in call.messages
    # Sessions of a group begin alike, token for token: their prompts hold nothing of this machine or moment.
    first = [call.prompt_ids.tolist() for call in calls if call.parent_call_id is None]
    assert len(first) == 2
    assert first[0] == first[1]
    # Two calls of one session are one training row: the history comes back as it was sampled.
    assert [session.rows for session in report.sessions] == [1, 1]
