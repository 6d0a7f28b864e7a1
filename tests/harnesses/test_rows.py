"""Rows of an unbranched session of real harnesses, on a template that strips old thinking: as sent, and kept.

A session has several prompts here, for only a new one makes such a template drop what was thought before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from typing import Any

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import HarnessAdapter, Launch, LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.proxy.session_spec import HistoryMode
from tests.harnesses.acting import HELLO, Script, run, side
from tests.harnesses.cell import Cell, through_proxy
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
        return Turn("Done.", reasoning=f"All is there {len(messages)}")
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


async def session(tmp_path: Path, goes_on: Callable[[Launch], Launch], mode: HistoryMode) -> Cell:
    adapter = find(goes_on.__name__.replace("_", "-"))
    adapter.install(cache_folder(), print)
    scenario = Scenario("several prompts", lambda: Script(policy))
    cell = await through_proxy(Longer(adapter, goes_on), scenario, tmp_path, like_qwen=True, history=mode)  # type: ignore[arg-type]
    assert len(cell.calls) == 3 * (1 + len(MORE))
    assert cell.check(scenario) == []
    return cell


@pytest.mark.parametrize("goes_on", [pi, codex, claude_code])
async def test_rows_per_session(tmp_path: Path, goes_on: Callable[[Launch], Launch]) -> None:
    """Field cases 156, 157, 169: a row per prompt as sent, one in all if thinking is kept."""
    sent = await session(tmp_path / "sent", goes_on, HistoryMode.AS_SENT)
    assert sent.causes == {"root": 1, "thinking_stripped": len(MORE)}
    kept = await session(tmp_path / "kept", goes_on, HistoryMode.KEEP_REASONING)
    assert kept.causes == {"root": 1}
