"""The harnesses from npm, the real programs, through a real proxy and in the real sandbox.

The model is the scripted engine, which asks for one shell command and then ends. What is recorded must be what the
engine served, and what the harness itself wrote down. Claude Code and OpenCode are installed on first use; OpenClaw
and Gemini CLI run where they are installed, or with ``FORGE_HARNESS_TESTS=all``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.packages import cache_folder
from forge.run import run
from forge.run_config import RunConfig
from forge.run_report import RunReport
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit
from forge.storage.records import CallKind, SessionStatus
from forge.tasks import Grader, Task
from forge.transcripts import Verdict
from tests.engine import ScriptedEngine
from tests.harnesses.acting import tool_turn
from tests.run.fake import Seen

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]

NAMES = ("claude-code", "opencode", "openclaw", "gemini-cli")
ALWAYS = ("claude-code", "opencode")
PROMPT = "-@ create hello.txt  containing 'hi', 42 times 1e3 and \"x\"\nand say so"
SEEN = PROMPT.replace('"', '\\"').replace("\n", "\\n")
"""As it stands in the recorded JSON."""


async def work(name: str, data: Path, engine: ScriptedEngine, *, runner: str = "local", group: int = 2) -> RunReport:
    wanted = name in ALWAYS or os.environ.get("FORGE_HARNESS_TESTS") == "all"
    if not wanted and not find(name).installed(cache_folder()):
        pytest.skip(f"{name} is not installed: forge harness install {name}, or FORGE_HARNESS_TESTS=all")
    engine.default = tool_turn
    config = RunConfig(
        adapters=(find(name),),
        tasks=(Task(id="hello", prompt=PROMPT, grader=Grader(command="grep -qx hi hello.txt")),),
        runner=find_runner(runner),
        data=data,
        run_id=name,
        group_size=group,
        seconds=240,
        policy=engine.url,
    )
    return await run(config, Seen())


@pytest.mark.parametrize("name", NAMES)
async def test_a_task_with_a_tool(tmp_path: Path, name: str) -> None:
    """Field case 66: two turns of every harness are the least that is tested."""
    adapter = find(name)
    async with ScriptedEngine(max_model_len=65536, like_qwen=True) as engine:
        report = await work(name, tmp_path, engine)
        asked = [each for each in engine.served if b"hello.txt" in each.body]  # the others are the proxy's probe
        served = {tuple(each.prompt_ids): each.output_ids for each in asked}

    assert report.exit_code is Exit.OK, report
    for session in report.sessions:
        assert (session.status, session.reward, session.exit_code) == (SessionStatus.COMPLETED, 1.0, 0)
        assert (session.calls, session.ok_calls) == (2, 2), "no call on the side, none twice"
        assert adapter.final_text((session.kept / "stdout").read_text()).strip() == "Done."
        assert (session.transcript.verdict, session.transcript.heard) == (Verdict.OK, 2), session.transcript
    calls = list(Dataset(tmp_path).calls(name))
    assert len(calls) == len(asked) == 4
    for call in calls:
        assert call.trainable, call.untrainable_reason
        assert (call.kind, call.dialect) == (CallKind.MAIN, adapter.wire)
        assert (call.harness, call.harness_version) == (name, adapter.version)
        assert call.model_requested == "policy"
        assert served[tuple(call.prompt_ids.tolist())] == call.output_ids.tolist()
        assert SEEN in call.messages
    # Two calls of one session are one training row: the history comes back as it was sampled.
    assert [session.rows for session in report.sessions] == [1, 1]
    # Sessions of a group begin alike, token for token; OpenClaw writes its session's id and the minute into its prompt.
    first = [call.prompt_ids.tolist() for call in calls if call.parent_call_id is None]
    assert len(first) == 2
    assert name == "openclaw" or first[0] == first[1]


@pytest.mark.parametrize("name", NAMES)
async def test_unconfined(tmp_path: Path, name: str) -> None:
    async with ScriptedEngine(max_model_len=65536, like_qwen=True) as engine:
        report = await work(name, tmp_path, engine, runner="unconfined", group=1)
    (session,) = report.sessions
    assert (session.status, session.reward, session.calls) == (SessionStatus.COMPLETED, 1.0, 2)
