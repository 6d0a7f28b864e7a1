"""The scenarios of the matrix: what the policy does, and what a harness must make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.harnesses.acting import Script, malformed, parallel, plain, reasoning, subagent, tool_turn
from tests.script import Fault, Gate

OVERFLOW = (
    '{"error":{"message":"This model\'s maximum context length is 32768 tokens. However, your request has 33000 '
    'input tokens. Please reduce the length of the input messages.","type":"BadRequestError","param":null,"code":400}}'
)
"""vLLM's own words."""


@dataclass(frozen=True)
class Scenario:
    name: str
    script: Callable[[], Script]
    tools: bool = True
    """The task needs a tool: a session of one call has failed."""
    must_end_well: bool = True
    """Every harness is expected to finish the task; where not, what it does is a fact to write down."""
    only: tuple[str, ...] = ()
    """The harnesses that can; empty for all."""


def _slow() -> Script:
    return Script(tool_turn, slow=Gate(is_open=False))


def _overflow() -> Script:
    return Script(tool_turn, Fault(status=400, body=OVERFLOW), at=1)


ALL = (
    Scenario("plain answer", lambda: Script(plain), tools=False),
    Scenario("tool turn", lambda: Script(tool_turn)),
    Scenario("parallel tools", lambda: Script(parallel)),
    Scenario("reasoning", lambda: Script(reasoning)),
    Scenario("429", lambda: Script(tool_turn, Fault(status=429, retry_after="1"))),
    Scenario("500", lambda: Script(tool_turn, Fault(status=500))),
    Scenario("reset mid-stream", lambda: Script(tool_turn, Fault(reset_after=600))),
    Scenario("slow first token", _slow),
    Scenario(
        "context overflow", lambda: Script(tool_turn, Fault(status=400, body=OVERFLOW), at=1), must_end_well=False
    ),
    Scenario("malformed tool JSON", lambda: Script(malformed), must_end_well=False),
    Scenario("sub-agent", lambda: Script(subagent), only=("claude-code", "opencode", "qwen-code", "hermes")),
)
BY_NAME = {scenario.name: scenario for scenario in ALL}
IN_CI = ("tool turn", "parallel tools", "500")
