"""mini-swe-agent, Hermes and Qwen Code, the real programs, through a real proxy and in the real sandbox.

The model is the scripted engine, which asks for one shell command and then ends as each harness wants it. What is
recorded must be what the engine served, and what the harness itself wrote down. mini-swe-agent is installed on first
use; the two others run where they are installed, or with ``FORGE_HARNESS_TESTS=all``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.packages import cache_folder
from forge.run import run
from forge.run_config import RunConfig
from forge.run_report import RunReport
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit
from forge.storage.records import SessionStatus
from forge.tasks import Grader, Task
from forge.transcripts import Verdict
from tests.engine import ScriptedEngine, Turn
from tests.run.fake import Seen

pytestmark = pytest.mark.harness

SHELLS = {"bash": "command", "terminal": "command", "run_shell_command": "command"}
"""Each harness's shell tool and the name of its argument."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
PROMPT = "--create hello.txt containing 'hi'\nand say so"


def act_once(request: dict[str, Any]) -> Turn:
    """Ask for one shell command; after its result, say something and end."""
    offered = {tool["function"]["name"] for tool in request.get("tools", ())}
    tool = next((tool for tool in SHELLS if tool in offered), None)
    if tool is None:
        return Turn("no shell tool was offered")
    acted = any(message["role"] == "tool" for message in request["messages"])
    if acted and tool != "bash":
        return Turn("Done.")
    command = {SHELLS[tool]: SUBMIT if acted else "echo hi > hello.txt"}
    text = "Done." if acted else ""
    return Turn(text, tool_calls=[(tool, json.dumps(command, separators=(",", ":")))])


async def work(
    name: str, data: Path, engine: ScriptedEngine, *, runner: str = "local", group_size: int = 2
) -> RunReport:
    wanted = name == "mini-swe-agent" or os.environ.get("FORGE_HARNESS_TESTS") == "all"
    if not wanted and not find(name).installed(cache_folder()):
        pytest.skip(f"{name} is not installed: forge harness install {name}, or FORGE_HARNESS_TESTS=all")
    config = RunConfig(
        adapters=(find(name),),
        tasks=(Task(id="hello", prompt=PROMPT, grader=Grader(command="grep -qx hi hello.txt")),),
        runner=find_runner(runner),
        data=data,
        run_id=name,
        group_size=group_size,
        seconds=150,
        policy=engine.url,
    )
    return await run(config, Seen())


@pytest.mark.parametrize("name", ["hermes", "mini-swe-agent", "qwen-code"])
async def test_a_task_with_a_tool(tmp_path: Path, name: str) -> None:
    adapter = find(name)
    async with ScriptedEngine(max_model_len=65536) as engine:
        engine.default = act_once
        report = await work(name, tmp_path, engine)
        served = {tuple(each.prompt_ids): each.output_ids for each in engine.served}

    assert report.exit_code is Exit.OK, report
    calls = list(Dataset(tmp_path).calls(name))
    assert len(calls) == 4
    for session in report.sessions:
        assert (session.status, session.reward, session.exit_code) == (SessionStatus.COMPLETED, 1.0, 0)
        assert (session.calls, session.ok_calls) == (2, 2)
        assert adapter.final_text((session.kept / "stdout").read_text()).strip() == "Done."
        assert (session.transcript.verdict, session.transcript.heard) == (Verdict.OK, 2), session.transcript
    for call in calls:
        assert call.trainable
        assert call.dialect == adapter.wire
        assert (call.harness, call.harness_version) == (name, adapter.version)
        assert served[tuple(call.prompt_ids.tolist())] == call.output_ids.tolist()
        assert json.dumps(PROMPT)[1:-1] in call.messages
    # Sessions of a group begin alike, token for token: their prompts hold nothing of this machine or moment.
    first = [call.prompt_ids.tolist() for call in calls if call.parent_call_id is None]
    assert len(first) == 2
    assert first[0] == first[1]
    assert [session.rows for session in report.sessions] == [1, 1]
