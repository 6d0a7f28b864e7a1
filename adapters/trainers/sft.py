"""Supervised fine-tuning on text: conversations with their tools, one JSON object a line, as TRL and others read them.

Text is not what the policy saw: the trainer's own template and tokenizer make other ids of it. Whoever can, takes
``sft-tokens``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import write_lines
from forge.adapters.trainers.rows import Needs, Row
from forge.adapters.trainers.texts import Unfit, conversation


class Sft:
    name = "sft"
    needs = Needs(tokens=False, reward=False, group=False)
    suffix = ".jsonl"
    caution = (
        "text is rendered and tokenised anew by the trainer, so it may train ids that the policy never sampled; "
        "sft-tokens keeps them"
    )

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        left: Counter[str] = Counter()
        write_lines(path, _lines(rows, options, left))
        return left


def _lines(rows: Iterable[Row], options: Options, left: Counter[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            messages, tools = conversation(row, options.arguments)
        except Unfit as error:
            left[error.reason] += 1
            continue
        line = {"messages": messages, **({"tools": tools} if tools else {})}
        yield {**line, "reward": row.sample.reward, **row.place()}
