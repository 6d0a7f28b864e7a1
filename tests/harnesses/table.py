"""The tables of ``docs/harness-matrix.md``, from the facts that a full run of the matrix has left.

``python tests/harnesses/table.py FACTS.jsonl > docs/harness-matrix.md``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forge.adapters.harnesses import HARNESSES

HEAD = """\
# Real harnesses, scenario by scenario

Made by `make test-harnesses` from runs of the real programs through the proxy, against a scripted policy server; not
written by hand. In every cell the calls that the server served are the rows recorded, and every served call has its ids
and log probabilities. Where a harness speaks chat, its outcome is the same as at the policy server itself, without us.

A cell says what became of the task, the calls that were recorded, and the training rows they make. `asked again` are
calls that failed and that the harness repeated; a 429 with `Retry-After` is waited out by the proxy, unseen.
"""
ROWS = """\

## Rows per session

How often the prefix broke in one session of seven calls that think before each of six tool calls, and why: what
training cost hangs on. One row is a whole session whose every prompt extends the one before. `append-only` keeps old
thoughts in the prompt, `Qwen3-like` strips them from turns before the last user message; with
`--history keep-reasoning` the proxy puts back those that a harness dropped and asks the template to keep them.

"""


def lines(facts: Iterable[dict[str, Any]]) -> Iterator[str]:
    told = list(facts)
    cells = {(f["harness"], f["scenario"]): f for f in told if "template" not in f}
    names = sorted({harness for harness, _ in cells})
    scenarios = list(dict.fromkeys(f["scenario"] for f in told if "template" not in f))
    yield HEAD
    yield "| scenario | " + " | ".join(f"{name} {HARNESSES[name].version}" for name in names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for scenario in scenarios:
        row = (cells.get((name, scenario)) for name in names)
        yield f"| {scenario} | " + " | ".join(_cell(cell) for cell in row) + " |"
    yield from _rows([f for f in told if "template" in f])


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    done = bool(cell["said"]) and (cell["hello"] or cell["scenario"] == "plain answer")
    parts = ["done" if done else f"not done, {cell['ended']}"]
    parts += [_count(cell["calls"], "call"), _count(cell["rows"], "row")]
    failed = cell["calls"] - cell["statuses"].get("ok", 0)
    if failed:
        parts.append(f"{failed} asked again" if done else f"{failed} failed")
    side = {kind: count for kind, count in cell["kinds"].items() if kind != "main"}
    parts += [f"{count} {kind}" for kind, count in sorted(side.items())]
    return ", ".join(parts)


def _rows(facts: list[dict[str, Any]]) -> Iterator[str]:
    if not facts:
        return
    columns = list(dict.fromkeys((f["template"], f["history"]) for f in facts))
    by_place = {(f["harness"], f["template"], f["history"]): f for f in facts}
    yield ROWS + "| harness | " + " | ".join(f"{template}, {history}" for template, history in columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    for name in sorted({f["harness"] for f in facts}):
        row = (by_place.get((name, *column)) for column in columns)
        yield f"| {name} | " + " | ".join(_broken(cell) for cell in row) + " |"


def _broken(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(cell["causes"].items()) if cause != "root")
    return f"{cell['rows']}" + (f" ({causes})" if causes else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        print("\n".join(lines(json.loads(line) for line in file)))
