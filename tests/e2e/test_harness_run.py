"""``forge run`` with a real harness on a real model: only the word differs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from forge.storage.dataset import Dataset
from forge.storage.records import CallStatus, SessionStatus
from tests.e2e.conftest import Policy
from tests.proxy.process import proxy_process, run_to_end

RUN_S = 280.0


HARNESSES = ("codex", "pi")
"""Of those whose first prompt fits the small model's 8,192 tokens."""


@pytest.mark.harness
@pytest.mark.parametrize("harness", HARNESSES)
async def test_the_same_line_but_for_the_word(policy: Policy, tmp_path: Path, harness: str) -> None:
    data = tmp_path / "data"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "hi", "prompt": "Say hi.", "grader": {"command": "test ! -e /nonexistent"}}))
    async with proxy_process(data, policy.url, *policy.options) as proxy:
        command = [sys.executable, "-m", "forge", "run", "--harness", harness, "--tasks", str(tasks)]
        command += ["--control", proxy.control_url, "--control-token-file", str(data / "control.token")]
        command += ["--sampling", '{"max_tokens": 64}', "--group-size", "2", "--data", str(data), "--run", "run"]
        code, said = await run_to_end(command, RUN_S)
        assert code == 0, said
        assert await asyncio.wait_for(proxy.stop(), RUN_S) == 0
    dataset = Dataset(data)
    sessions = dataset.sessions("run")
    assert [s.harness for s in sessions] == [harness] * 2
    # Codex ends with exit code 1 when an answer was cut by max_tokens, which a small model's often is.
    assert {s.status for s in sessions} <= {SessionStatus.COMPLETED, SessionStatus.FAILED}
    assert [s.reward for s in sessions] == [1.0 if s.status == SessionStatus.COMPLETED else None for s in sessions]
    calls = list(dataset.calls("run"))
    assert {c.session_id for c in calls} == {s.session_id for s in sessions}
    for call in calls:
        assert call.status == CallStatus.OK
        assert call.trainable, call.untrainable_reason
        assert len(call.output_ids) == len(call.output_log_probs) == call.completion_tokens
    assert {s.session_id for s in dataset.samples("run")} == {s.session_id for s in sessions}
