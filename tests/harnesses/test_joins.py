"""Places in the tree, against what the scripted policy server itself knows: which ids it was given and which it said.

Its log gives each call's parent and cause by brute force: the longest earlier prompt and answer that a prompt begins
with, id for id; where that is not the answer its history ends with, the texts say why. Nothing of ours is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import HarnessAdapter, Launch, LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.storage.dataset import Dataset
from forge.storage.records import Call, CallKind, CallStatus, JoinCause
from tests.harnesses.acting import HELLO, Script, ending, run, shell
from tests.harnesses.cell import through_proxy
from tests.harnesses.scenarios import Scenario
from tests.harnesses.test_rows import GO_ON
from tests.script import Fault, Json, Served, Turn

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]

NAMES = ("codex", "pi", "claude-code", "openclaw")
THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
MARK = re.compile(r"mark-(\d+)-")
SUMMARY = re.compile(r"CHECKPOINT COMPACTION|create a detailed summary|context checkpoint summary", re.IGNORECASE)
"""How harnesses ask for one; those that offer no tool with it need not be known by their words."""
TURNS = 3
ENOUGH = 16
"""Answers after which nothing is done any more: a compacted history has forgotten how often that was."""


@dataclass
class Marked:
    """A policy whose every answer has a number of its own, so that it is found again wherever a harness puts it."""

    printing: str = ""
    """Goes before each command: its output makes a history grow until it is compacted."""
    asked: int = field(default=0, init=False)

    def __call__(self, request: Json) -> Turn:
        number, self.asked = self.asked, self.asked + 1
        mark = f"mark-{number}-"
        if shell(request) is None:
            return Turn(f"{mark} a summary of what was done: a file was made, and looked at.")
        messages = request["messages"]
        asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
        done = sum(message["role"] == "tool" for message in messages[asked:])
        if done >= TURNS or number >= ENOUGH or _asks_summary(messages):
            return ending(request, f"{mark} done, and a summary of it all", reasoning=f"{mark} all is there")
        command = f"{self.printing}{HELLO} # {mark}"
        return Turn(f"{mark} next", tool_calls=[run(request, command)], reasoning=f"{mark} a step")


def _asks_summary(messages: Sequence[Json]) -> bool:
    return SUMMARY.search(json.dumps(messages[-1].get("content"))) is not None


@dataclass(frozen=True)
class Told:
    """A call as the policy server knows it."""

    row: Call
    served: Served
    text: str
    """Of its prompt, as rendered."""
    whole: str
    """With its answer."""

    @property
    def number(self) -> str | None:
        found = MARK.search(json.dumps([self.served.turn.text, self.served.turn.reasoning]))
        return found[1] if found and self.served.status == 200 else None

    @property
    def is_summary(self) -> bool:
        return shell(self.served.json) is None or _asks_summary(self.served.json["messages"])

    @property
    def ids(self) -> list[int]:
        return self.served.prompt_ids + self.served.output_ids

    def holds(self, other: Told, *, said: bool) -> bool:
        """Whether another call's answer is in its history: as one (``said``), or in somebody else's words."""
        return any(
            (message["role"] == "assistant") == said and f"mark-{other.number}-" in json.dumps(message)
            for message in self.served.json["messages"]
        )


def expected(call: Told, earlier: Sequence[Told]) -> tuple[list[int] | None, str | None]:
    """The ids of its exact history, and why that does not reach to the end of what it goes on with."""
    prompt = call.served.prompt_ids
    exact = max(
        (e.ids for e in earlier if e.served.output_ids and prompt[: len(e.ids)] == e.ids), key=len, default=None
    )
    said = [e for e in earlier if call.holds(e, said=True)]
    if said and exact == said[-1].ids:
        return exact, None
    if said and _bare(call.text).startswith(_bare(said[-1].whole)):
        return exact, "retokenized" if call.text.startswith(said[-1].whole) else "thinking_stripped"
    if exact is not None and not said:
        return exact, None
    before = [e for e in earlier if e.is_summary and call.holds(e, said=False)]
    if before and not (said and said[-1].holds(before[-1], said=False)):
        return exact, "compacted"
    return exact, "edited" if said else "root"


def _bare(text: str) -> str:
    return THOUGHT.sub("", text)


def told(rows: Sequence[Call], served: Sequence[Served], decode: Any) -> list[Told]:
    """Rows in order, each with the request that the server got for it."""
    left, found = list(served), []
    for row in rows:
        tries = len(json.loads(row.attempts)) if row.attempts else 1
        mine = [s for s in left if s.json["messages"] == json.loads(row.messages)][:tries]
        assert len(mine) == tries, f"{row.call_id} was not served"
        for each in mine:
            left.remove(each)
        last = mine[-1]
        found.append(Told(row, last, decode(last.prompt_ids), decode(last.prompt_ids + last.output_ids)))
    assert not left, "the server knows of calls that have no row"
    return found


@dataclass(frozen=True)
class Sized:
    """An adapter with several prompts and a context of some size."""

    adapter: HarnessAdapter
    context: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter, name)

    def launch(self, request: LaunchRequest) -> Launch:
        sized = replace(request, context_tokens=self.context) if self.context else request
        launch = self.adapter.launch(sized)
        goes_on = GO_ON.get(self.adapter.name)
        return goes_on(launch) if goes_on else launch


async def played(tmp_path: Path, name: str, script: Script, **options: Any) -> list[Told]:
    """A real session; every row of it is held against the server's log."""
    adapter = find(name)
    adapter.install(cache_folder(), print)
    context = options.pop("context", None)
    scenario = Scenario("joins", lambda: script, must_end_well=False)
    cell = await through_proxy(Sized(adapter, context), scenario, tmp_path, **options)  # type: ignore[arg-type]
    rows = list(Dataset(tmp_path / "data").calls("run", cell.calls[0].session_id))
    assert [row.call_id for row in rows] == [call.call_id for call in cell.calls], "a call is not in the dataset"
    calls = told(rows, cell.served, cell.decode)
    by_id = {call.row.call_id: call for call in calls}
    for at, call in enumerate(calls):
        _check(call, [e for e in calls[:at] if e.row.status == CallStatus.OK], by_id)
    return calls


def _check(call: Told, earlier: Sequence[Told], by_id: dict[str, Told]) -> None:
    row = call.row
    if row.status != CallStatus.OK:
        assert (row.join, row.join_cause) == ("none", None), "no ids came back: nothing can be said"
        return
    exact, cause = expected(call, earlier)
    where = f"{row.call_id} ({row.kind}, {len(row.prompt_ids)} ids)"
    assert row.prompt_ids.tolist() == call.served.prompt_ids, where
    assert row.output_ids.tolist() == call.served.output_ids, where
    assert (row.join == "exact") == (exact is not None), f"{where}: {row.join}, {row.join_cause}; not {cause}"
    if exact is not None:
        assert by_id[row.parent_call_id or ""].ids == exact, where
    assert row.join_cause == cause, f"{where}: {row.join_cause}, not {cause}"


@pytest.mark.parametrize("name", NAMES)
async def test_joins_are_what_the_policy_server_knows(tmp_path: Path, name: str) -> None:
    """Field cases 156, 157, 169: tools, thoughts that a template drops, a call that fails and is asked again."""
    calls = await played(tmp_path, name, Script(Marked(), Fault(status=500), at=2), like_qwen=True)
    failed = [at for at, call in enumerate(calls) if call.row.status == CallStatus.ERROR]
    assert failed
    for at in failed:
        repeats = [c for c in calls[at + 1 :] if c.served.json["messages"] == calls[at].served.json["messages"]]
        assert [c.row.retry_of for c in repeats] == [calls[at].row.call_id] * len(repeats)
        assert repeats or name == "openclaw", "which goes on in words of its own"


COMPACTS: dict[str, tuple[Marked, int]] = {
    "claude-code": (Marked("seq 3000; "), 52_000),
    "codex": (Marked("seq 3000; "), 36_000),
    "pi": (Marked("seq -f %040g 500; "), 22_000),  # what it keeps it counts by letters
}
"""What fills a context of that size, so that each of them compacts. OpenClaw, which takes one prompt, did not."""


@pytest.mark.parametrize("name", COMPACTS)
async def test_a_compacted_history_leans_on_its_summary(tmp_path: Path, name: str) -> None:
    policy, context = COMPACTS[name]
    calls = await played(tmp_path, name, Script(policy), context=context)
    assert any(call.row.kind == CallKind.COMPACTION for call in calls)
    assert any(call.row.join_cause == JoinCause.COMPACTED for call in calls)
