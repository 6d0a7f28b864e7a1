"""ZeroClaw's adapter and wire, by a replay of its requests: the program itself is in no registry (see the replay)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import Launch, LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.adapters.harnesses.zeroclaw import PACKAGE, ZeroClaw
from forge.run import run
from forge.run_config import RunConfig
from forge.run_report import SessionReport
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit, Unavailable
from forge.storage.records import Call, CallStatus, SessionStatus
from forge.tasks import Grader, Task
from tests.engine import Fault, ScriptedEngine, Turn
from tests.run.fake import Seen

pytestmark = pytest.mark.process

REPLAY = Path(__file__).parent / "zeroclaw_replay.py"
STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+\] "
PROMPT = "--create hello.txt containing 'hi'\nand say so"
COMMAND = {"command": "echo hi > hello.txt"}


class Configured(ZeroClaw):
    """With other settings of the provider than the adapter's own."""

    def __init__(self, **settings: str) -> None:
        self._settings = settings

    def launch(self, request: LaunchRequest) -> Launch:
        launch = super().launch(request)
        ((path, text),) = launch.files.items()
        for name, value in self._settings.items():
            text = re.sub(rf"(?m)^{name} = .*\n", "", text)
            text = text.replace('api_key = "', f'{name} = {value}\napi_key = "', 1)
        return replace(launch, files={path: text})


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``zeroclaw`` on PATH, and an empty cache."""
    program = tmp_path / "bin" / "zeroclaw"
    program.parent.mkdir()
    shutil.copy(REPLAY, program)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path / "cache"))
    return program


async def work(
    data: Path, act: Callable[[dict[str, Any]], Turn], **settings: str
) -> tuple[SessionReport, list[Call], list[dict[str, Any]]]:
    """One session in the sandbox: its report, its rows, and what the engine was asked."""
    adapter = Configured(**settings)
    adapter.install(cache_folder(), print)
    async with ScriptedEngine(max_model_len=8192) as engine:
        engine.default = act
        config = RunConfig(
            adapters=(adapter,),
            tasks=(Task(id="hello", prompt=PROMPT, grader=Grader(command="grep -qx hi hello.txt")),),
            runner=find_runner("local"),
            data=data,
            run_id="r",
            seconds=60,
            policy=engine.url,
        )
        report = await run(config, Seen())
        served = {tuple(each.prompt_ids): each for each in engine.served}
        asked = [each.json for each in engine.served if any("hello.txt" in str(m) for m in each.json["messages"])]
    (session,) = report.sessions
    assert report.exit_code is Exit.OK, report
    assert (session.status, session.reward) == (SessionStatus.COMPLETED, 1.0)
    assert adapter.final_text((session.kept / "stdout").read_text()) == "Done."
    rows = list(Dataset(data).calls("r"))
    for call in rows:
        if call.status == CallStatus.OK:
            assert call.trainable
            assert served[tuple(call.prompt_ids.tolist())].output_ids == call.output_ids.tolist()
    return session, rows, asked


def native(request: dict[str, Any]) -> Turn:
    if request["messages"][-1]["role"] == "tool":
        return Turn("Done.", reasoning="It is there.")
    return Turn(tool_calls=[("shell", json.dumps(COMMAND, separators=(",", ":")))], reasoning="A file.")


def as_text(request: dict[str, Any]) -> Turn:
    if "<tool_result" in str(request["messages"][-1]["content"]):
        return Turn("Done.")
    call = json.dumps({"name": "shell", "arguments": COMMAND})
    return Turn(f"I make it.\n<tool_call>\n{call}\n</tool_call>")


async def test_native_tools_unstreamed_with_reasoning_sent_back(tmp_path: Path, built: Path) -> None:
    session, rows, asked = await work(tmp_path / "data", native)
    assert [(call.dialect, call.status, call.kind) for call in rows] == [("chat", "ok", "main")] * 2
    assert session.rows == 1
    first, second = asked
    assert (first["stream"], first["tool_choice"]) == (False, "auto")
    assert re.fullmatch(STAMP + re.escape(PROMPT), first["messages"][1]["content"])
    assistant, tool = second["messages"][2:]
    assert assistant.get("reasoning") == "A file." or assistant.get("reasoning_content") == "A file."
    assert (tool["role"], tool["name"]) == ("tool", "shell")
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == COMMAND


async def test_tools_as_text_are_a_talk_of_several_turns(tmp_path: Path, built: Path) -> None:
    session, rows, asked = await work(tmp_path / "data", as_text, native_tools="false")
    assert [(call.dialect, call.kind, call.parent_call_id is None) for call in rows] == [
        ("chat", "main", True),
        ("chat", "main", False),
    ]
    assert session.rows == 1
    assert not any("tools" in each for each in asked)


async def test_responses_unstreamed(tmp_path: Path, built: Path) -> None:
    session, rows, _ = await work(tmp_path / "data", as_text, wire_api='"responses"')
    assert [(call.dialect, call.status) for call in rows] == [("responses", "ok")] * 2
    assert session.rows == 1


async def test_the_wait_is_read_out_of_the_engines_own_text(tmp_path: Path, built: Path) -> None:
    """What the engine says reaches the harness as it is; a wait too long to take over is the harness's to keep."""
    text = {"error": {"message": "Too many requests. Retry-After: 0.6", "type": "rate_limit", "code": 429}}
    fault = Turn(fault=Fault(status=429, retry_after="20", body=json.dumps(text)))
    refused: list[int] = []

    def once(request: dict[str, Any]) -> Turn:
        if not refused and any("hello.txt" in str(message) for message in request["messages"]):
            refused.append(1)
            return fault
        return native(request)

    session, rows, _ = await work(tmp_path / "data", once)
    assert json.loads((session.kept / "stderr").read_text().splitlines()[-1]) == {"waits": [0.6]}
    assert [call.status for call in rows] == ["error", "ok", "ok"]
    assert rows[1].retry_of == rows[0].call_id


def test_without_a_program_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no package registry") as caught:
        find("zeroclaw").install(tmp_path / "cache", print)
    assert "cargo install" in caught.value.hint
    assert not find("zeroclaw").installed(tmp_path / "cache")


def test_another_version_is_not_taken(tmp_path: Path, built: Path) -> None:
    built.write_text("#!/bin/sh\necho zeroclaw 0.7.5\n")
    with pytest.raises(Unavailable, match=re.escape("0.7.5, not 0.8.4")):
        find("zeroclaw").install(tmp_path / "cache", print)
    built.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(Unavailable, match="does not say its version"):
        find("zeroclaw").install(tmp_path / "cache", print)
    assert not (tmp_path / "cache" / PACKAGE.folder).exists()
