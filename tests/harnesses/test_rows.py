"""Rows of an unbranched session of real harnesses, by template and by what is kept of thinking.

A session has several prompts where the harness can go on with its last one, for only a new prompt makes a template
drop what was thought before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from typing import Any

import pytest

from forge.adapters.harnesses import HARNESSES, find
from forge.adapters.harnesses.base import HarnessAdapter, Launch, LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.proxy.sessions.spec import HistoryMode
from tests.harnesses.acting import HELLO, Script, ending, run, side
from tests.harnesses.cell import Cell, facts, through_proxy
from tests.harnesses.results import EVERYTHING, NOT_HERE, keep
from tests.harnesses.scenarios import Scenario
from tests.script import Json, Turn

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

MORE = ("Now look again", "And again", "Once more")
"""Prompts after the first."""


def policy(request: Json) -> Turn:
    """Two tool turns and a last word for each prompt, each after a thought."""
    if (aside := side(request)) is not None:
        return aside
    messages = request["messages"]
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    done = sum(message["role"] == "tool" for message in messages[asked:])
    if done >= 2:
        return ending(request, reasoning=f"All is there {len(messages)}")
    return Turn(tool_calls=[run(request, (HELLO, "cat hello.txt")[done])], reasoning=f"Step {len(messages)}")


def pi(launch: Launch) -> Launch:
    """Takes one prompt after the other."""
    return replace(launch, argv=(*launch.argv, *MORE))


def codex(launch: Launch) -> Launch:
    """Resumes its session for each."""
    at = launch.argv.index("exec") + 1
    flags = [word for word in launch.argv[at:-1] if word != "--"]
    again = [[*launch.argv[:at], "resume", "--last", *flags, prompt] for prompt in MORE]
    return replace(
        launch, argv=("bash", "-c", "; ".join(f"{join(argv)} < /dev/null" for argv in [launch.argv, *again]))
    )


def claude_code(launch: Launch) -> Launch:
    """Continues its last conversation for each."""
    program, *flags = launch.argv[:-2]
    again = [[program, "--continue", *flags, "--", prompt] for prompt in MORE]
    return replace(
        launch, argv=("bash", "-c", "; ".join(f"{join(argv)} < /dev/null" for argv in [launch.argv, *again]))
    )


@dataclass(frozen=True)
class Longer:
    """An adapter whose launch goes on after its first prompt."""

    adapter: HarnessAdapter
    goes_on: Callable[[Launch], Launch]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter, name)

    def launch(self, request: LaunchRequest) -> Launch:
        return self.goes_on(self.adapter.launch(request))


GO_ON: dict[str, Callable[[Launch], Launch]] = {"pi": pi, "codex": codex, "claude-code": claude_code}
COLUMNS = (
    ("append-only", False, HistoryMode.AS_SENT),
    ("Qwen3-like", True, HistoryMode.AS_SENT),
    ("Qwen3-like", True, HistoryMode.KEEP_REASONING),
)


async def session(tmp_path: Path, name: str, mode: HistoryMode, *, like_qwen: bool = True) -> Cell:
    adapter = find(name)
    adapter.install(cache_folder(), print)
    scenario = Scenario("several prompts", lambda: Script(policy))
    longer = Longer(adapter, GO_ON[name]) if name in GO_ON else adapter
    cell = await through_proxy(longer, scenario, tmp_path, like_qwen=like_qwen, history=mode)  # type: ignore[arg-type]
    assert cell.check(scenario) == []
    return cell


@pytest.mark.parametrize("name", GO_ON)
async def test_rows_per_session(tmp_path: Path, name: str) -> None:
    """Field cases 156, 157, 169: a row per prompt as sent, one in all if thinking is kept."""
    sent = await session(tmp_path / "sent", name, HistoryMode.AS_SENT)
    assert sent.causes == {"root": 1, "thinking_stripped": len(MORE)}
    kept = await session(tmp_path / "kept", name, HistoryMode.KEEP_REASONING)
    assert kept.causes == {"root": 1}
    assert len(sent.calls) == len(kept.calls) == 3 * (1 + len(MORE))


@pytest.mark.skipif(not EVERYTHING, reason="make test-harnesses runs it")
@pytest.mark.parametrize("name", [name for name in sorted(HARNESSES) if name not in NOT_HERE])
async def test_rows_by_template(tmp_path: Path, name: str) -> None:
    """Whatever a harness drops, thinking that is kept leaves one row, but where it moves something else."""
    rows: list[int] = []
    for number, (template, like_qwen, mode) in enumerate(COLUMNS):
        cell = await session(tmp_path / str(number), name, mode, like_qwen=like_qwen)
        prompts = 1 + len(MORE) if name in GO_ON else 1
        keep(facts(cell) | {"template": template, "history": mode.value, "prompts": prompts})
        rows.append(len(cell.samples))
    assert rows[2] <= rows[1]
