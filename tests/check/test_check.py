"""``forge harness check``: of a good harness the facts, of a bad one what is bad about it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from forge.adapters.harnesses import find
from forge.harness_check.check import check
from forge.harness_check.facts import Facts, gather, keep, kept
from forge.harness_check.policy import Served
from forge.harness_check.table import failure
from forge.harness_listing import entries, table
from forge.run_report import SessionReport
from forge.storage.errors import Exit
from forge.storage.records import Call, SessionStatus
from tests.run.fake import FakeHarness

AGENT = """
import subprocess
def ask(messages, tools):
    body = json.dumps({"model": "policy", "messages": messages, "tools": tools, "stream": False}).encode()
    head = {"Authorization": "Bearer " + os.environ["FAKE_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["FAKE_URL"] + "/chat/completions", data=body, headers=head)
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)
    note(said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"])
    return said["choices"][0]["message"]
parameters = {"properties": {"command": {"type": "string"}}, "required": ["command"]}
tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
messages = [{"role": "user", "content": prompt}]
while True:
    message = ask(messages, tools)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for each in message["tool_calls"]:
        subprocess.run(json.loads(each["function"]["arguments"])["command"], shell=True)
        messages.append({"role": "tool", "tool_call_id": each["id"], "content": "ok"})
"""
CHEAT = "call(); pathlib.Path('hello.txt').write_text('hi\\n')"
FORGETFUL = AGENT.replace(
    "message = ask(messages, tools)", "messages[0]['content'] += '.'; message = ask(messages, tools)"
)


async def facts_of(script: str) -> tuple[Facts, Path | None]:
    return await check(FakeHarness(script), print, seconds=60)


@pytest.mark.process
async def test_of_an_agent_that_does_the_task_all_is_told() -> None:
    facts, folder = await facts_of(AGENT)
    assert folder is None
    assert facts.passed
    assert (facts.harness, facts.version, facts.wire, facts.status) == ("fake", "1", ("chat",), "completed")
    assert (facts.served, facts.recorded, facts.same, facts.ids_complete, facts.rows) == (2, 2, True, True, 1)
    assert [(call.join, call.join_cause) for call in facts.calls] == [("none", "root"), ("exact", None)]
    assert (facts.moved, facts.side_calls, facts.transcript) == ([], {}, "ok")


@pytest.mark.process
async def test_what_moved_is_named() -> None:
    facts, _ = await facts_of(FORGETFUL)
    assert facts.passed
    assert facts.rows == 2
    assert [call.join_cause for call in facts.moved] == ["edited"]


@pytest.mark.process
async def test_a_file_without_an_agent_is_no_task_done() -> None:
    facts, folder = await facts_of(CHEAT)
    assert not facts.passed
    assert (facts.same, facts.task_done) == (True, False)
    assert failure(facts) == "fake did not do the task: it ended as completed"
    assert folder is not None
    assert list(folder.glob("data/harness/check/*/stdout"))
    shutil.rmtree(folder)


def session(**more: Any) -> SessionReport:
    known = SessionReport(
        session_id="s",
        task_id="t",
        rollout_index=0,
        harness="x",
        status=SessionStatus.COMPLETED,
        kept=Path(),
        reward=1.0,
    )
    return replace(known, **more)


def row(number: int, prompt: list[int], output: list[int]) -> Call:
    ids = {"prompt_ids": np.array(prompt, np.int32), "output_ids": np.array(output, np.int32)}
    return Call(call_id=f"c{number}", run_id="r", session_id="s", seq=number, trainable=True, **ids)


ROWS = [row(0, [1, 2], [3]), row(1, [1, 2, 3, 4], [5])]
SERVED = [Served([1, 2], [3]), Served([1, 2, 3, 4], [5])]


@pytest.mark.parametrize(
    ("rows", "served"),
    [
        (ROWS[:1], SERVED),
        (ROWS, SERVED[:1]),
        (ROWS, [SERVED[0], SERVED[0]]),
        (ROWS, [SERVED[0], Served([1, 2, 3, 4], [6])]),
        ([*ROWS, ROWS[1]], SERVED),
    ],
)
def test_a_call_too_few_too_many_or_with_other_ids_is_seen(rows: list[Call], served: list[Served]) -> None:
    """Field case 130: every accepted call ends in exactly one row."""
    assert gather(session(), "1", ROWS, SERVED, []).passed
    facts = gather(session(), "1", rows, served, [])
    assert not facts.same
    assert not facts.passed
    assert "served" in failure(facts)


def test_a_harness_without_a_call_says_why() -> None:
    facts = gather(
        session(status=SessionStatus.NO_CALLS, error="it made no call: exit code 2", reward=None), "1", [], [], None
    )
    assert not facts.passed
    assert not facts.ids_complete
    assert failure(facts) == "x made no call: it made no call: exit code 2"


def test_the_last_check_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path))
    assert kept("x") is None
    facts = gather(session(), "1", ROWS, SERVED, ["a.example"])
    keep(facts)
    assert kept("x") == facts
    next(tmp_path.rglob("x.json")).write_text("{}")
    assert kept("x") is None


def test_the_list_tells_of_a_check_and_of_which_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path))
    codex = find("codex")
    shown = []
    for version, rows in ((codex.version, ROWS), ("0.1", ROWS[:1])):
        keep(gather(session(harness="codex"), version, rows, SERVED, []))
        (entry,) = entries([codex])
        assert (entry.checked_version, entry.passed, entry.installed) == (version, rows is ROWS, False)
        console = Console(width=120, file=StringIO(), record=True)
        console.print(table([entry]))
        shown.append(console.export_text())
    day = (entry.checked or "")[:10]
    assert f"{day} passed" in shown[0]
    assert f"{day} (0.1) failed" in shown[1], "an older version's check says so"


def forge(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", *args],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **env},
    )


@pytest.mark.process
def test_a_failed_check_is_an_error_with_its_evidence() -> None:
    done = forge("harness", "check", "command", "--command", "sh -c 'echo no; exit 3'", "--json")
    assert done.returncode == Exit.UNTRAINABLE
    assert json.loads(done.stdout)["passed"] is False
    error, following = done.stderr.splitlines()[-2:]
    assert error == "error: command made no call: it made no call: exit code 3"
    folder = Path(following.rsplit(" ", 1)[1])
    assert next(folder.glob("data/harness/check/*/stdout")).read_text() == "no\n"
    shutil.rmtree(folder)


@pytest.mark.process
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
async def test_a_check_that_is_ended_leaves_nothing(tmp_path: Path, sign: signal.Signals) -> None:
    argv = ["harness", "check", "command", "--command", "sh -c 'echo began; sleep 1000'"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "forge", *argv),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        while not any(path.stat().st_size for path in tmp_path.glob("forge-check-*/data/harness/check/*/stdout")):
            assert process.returncode is None
            await asyncio.sleep(0.05)  # the harness's own output is the signal
        process.send_signal(sign)
        _, said = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == Exit.INTERRUPTED, said
    assert said.decode().splitlines()[-1].startswith("interrupted")
    assert not list(tmp_path.iterdir())


@pytest.mark.harness
@pytest.mark.parametrize("name", ["codex", "pi"])
def test_codex_and_pi_pass_and_the_list_says_when(name: str) -> None:
    done = forge("harness", "check", name, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["version"], facts["wire"]) == (find(name).version, [find(name).wire])
    assert (facts["served"], facts["recorded"], facts["rows"], facts["side_calls"]) == (2, 2, 1, {})
    assert [call["join_cause"] for call in facts["calls"]] == ["root", None]
    assert facts["transcript"] == "ok", facts["differences"]
    assert facts["outside"] in ([], None)
    listed = {each["name"]: each for each in json.loads(forge("harness", "list", "--json").stdout)}
    assert (listed[name]["checked"], listed[name]["passed"]) == (facts["checked"], True)
    assert listed[name]["installed"]
