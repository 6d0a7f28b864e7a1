"""A check's facts as a person reads them, and what to do where one is bad."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from forge.harness_check.facts import CallFact, Facts
from forge.storage.records import JoinCause


def print_facts(facts: Facts, console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in _lines(facts):
        table.add_row(name, value)
    console.print(table, markup=False, highlight=False)


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "harness", f"{facts.harness} {facts.version}"
    yield "wire", ", ".join(facts.wire) or "no call"
    yield "task", f"{'done' if facts.task_done else 'not done'}, {facts.status} in {facts.seconds:g} s"
    same = "the same ids" if facts.same else "not the same"
    yield "calls", f"{facts.served} served, {facts.recorded} recorded: {same}"
    yield "ids and log probs", "complete" if facts.ids_complete else "missing"
    for number, call in enumerate(facts.calls, 1):
        yield f"call {number}", _call(call)
    yield "rows per session", str(facts.rows)
    yield "prefix", "moved" if facts.moved else "stable"
    sides = (f"{count} {kind}" for kind, count in facts.side_calls.items())
    yield "side calls", ", ".join(sides) or "none"
    yield "transcript", facts.transcript
    for difference in facts.differences:
        yield "", difference
    yield "outside hosts", "not traced" if facts.outside is None else ", ".join(facts.outside) or "none"


def _call(call: CallFact) -> str:
    tokens = f"{call.kind}, {call.status}, {call.prompt_tokens} -> {call.output_tokens} tokens"
    if call.join_cause is None:
        return f"{tokens}, continues"
    return f"{tokens}, {'begins' if call.join_cause == JoinCause.ROOT else call.join_cause}"


def failure(facts: Facts) -> str:
    """What is wrong, for one that did not pass."""
    if not facts.calls:
        return f"{facts.harness} made no call: {facts.error}"
    if not facts.same:
        return f"{facts.served} calls were served and {facts.recorded} recorded, or their ids are not the same"
    return f"{facts.harness} did not do the task: {facts.error or f'it ended as {facts.status}'}"
