"""Any program as a harness, end to end: what the template and the environment give it is enough to work."""

from __future__ import annotations

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
from tests.engine import ScriptedEngine, Turn
from tests.run.fake import Seen

pytestmark = pytest.mark.process

AGENT = """
import json, os, pathlib, sys, urllib.request
model, prompt, place = sys.argv[1:]
body = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}
for url, header, key in (
    (os.environ["OPENAI_BASE_URL"] + "/chat/completions", "Authorization", "Bearer " + os.environ["OPENAI_API_KEY"]),
    (os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", "x-api-key", os.environ["ANTHROPIC_API_KEY"]),
):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", header: key})
    answer = json.load(urllib.request.urlopen(request))
pathlib.Path(place, "answer.txt").write_text(answer["content"][0]["text"])
print(answer["content"][0]["text"])
"""
PROMPT = "Say 'hi' && touch /workspace/hacked; $(exit 1) {model}"


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_a_program_of_ones_own(tmp_path: Path, runner: str) -> None:
    adapter = find("command", "python3 agent.py {model} {prompt} {workspace}")
    grader = Grader(command="grep -qx hi answer.txt && test ! -e hacked")
    asked: list[Any] = []

    def answer(request: dict[str, Any]) -> Turn:
        asked.append(request["messages"][-1]["content"])
        return Turn("hi")

    async with ScriptedEngine() as engine:
        engine.default = answer
        config = RunConfig(
            adapters=(adapter,),
            tasks=(Task(id="hi", prompt=PROMPT, files={"agent.py": AGENT}, grader=grader),),
            runner=find_runner(runner),
            data=tmp_path / "data",
            run_id="r",
            seconds=60,
            policy=engine.url,
        )
        report = await run(config, Seen())

    (session,) = report.sessions
    assert report.exit_code is Exit.OK, report
    assert (session.status, session.reward, session.harness) == (SessionStatus.COMPLETED, 1.0, "command")
    assert adapter.final_text((session.kept / "stdout").read_text()) == "hi"
    assert asked.count(PROMPT) == 2
    assert [call.dialect for call in Dataset(tmp_path / "data").calls("r")] == ["chat", "messages"]
