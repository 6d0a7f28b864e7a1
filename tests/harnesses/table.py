"""The tables of ``docs/harnesses.md``, from the facts that a full run of the matrix has left.

``python tests/harnesses/table.py FACTS.jsonl docs/harnesses.md`` writes them between their marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge.adapters.harnesses import HARNESSES

MATRIX = """\
Made by `make test-harnesses` from runs of the real programs through the proxy, against a scripted policy server. In
every cell the calls that the server served are the rows recorded, and every served call has its ids and log
probabilities; where a harness speaks chat, its outcome is the same as at the policy server itself, without us. A cell
says what became of the task, the calls recorded, and the training rows they make. A call `asked again` failed, and the
harness repeated it; a 429 with `Retry-After` is waited out by the proxy, unseen.
"""
ROWS = """\
How often the prefix broke in one session, and why: what training cost hangs on. Each call thinks; two tool calls and a
last word for each prompt. One row is a whole session whose every prompt extends the one before. The append-only
template keeps old thoughts, the Qwen3-like one drops those before the last prompt; with `--history keep-reasoning` the
proxy puts back what a harness dropped and asks the template to keep it.
"""


def matrix(facts: list[dict[str, Any]]) -> Iterator[str]:
    cells = {(f["harness"], f["scenario"]): f for f in facts if "template" not in f}
    names = sorted({harness for harness, _ in cells})
    scenarios = list(dict.fromkeys(scenario for _, scenario in cells))
    yield MATRIX
    yield "| scenario | " + " | ".join(f"{name} {HARNESSES[name].version}" for name in names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for scenario in scenarios:
        row = (cells.get((name, scenario)) for name in names)
        yield f"| {scenario} | " + " | ".join(_cell(cell) for cell in row) + " |"


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


def rows(facts: list[dict[str, Any]]) -> Iterator[str]:
    told = [f for f in facts if "template" in f]
    columns = list(dict.fromkeys((f["template"], f["history"]) for f in told))
    by_place = {(f["harness"], f["template"], f["history"]): f for f in told}
    yield ROWS
    titles = (f"{template}, {history}" for template, history in columns)
    yield "| harness | prompts, calls | " + " | ".join(titles) + " |"
    yield "| --- | --- |" + " --- |" * len(columns)
    for name in sorted({f["harness"] for f in told}):
        row = [by_place.get((name, *column)) for column in columns]
        first = next(cell for cell in row if cell is not None)
        head = f"{name} | {first['prompts']}, {first['calls']}"
        yield f"| {head} | " + " | ".join(_broken(cell) for cell in row) + " |"


def _broken(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(cell["causes"].items()) if cause != "root")
    return f"{cell['rows']}" + (f" ({causes})" if causes else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def written(page: str, facts: list[dict[str, Any]]) -> str:
    """The page with both tables between their marks."""
    for name, table in (("matrix", matrix(facts)), ("rows", rows(facts))):
        begin, end = f"<!-- {name}: made by make test-harnesses -->\n", f"<!-- end {name} -->"
        before, after = page.split(begin)[0], page.split(end)[1]
        page = before + begin + "\n".join(table) + "\n" + end + after
    return page


if __name__ == "__main__":
    _, found, target = sys.argv
    with Path(found).open() as file:
        page = written(Path(target).read_text(), [json.loads(line) for line in file])
    Path(target).write_text(page)
