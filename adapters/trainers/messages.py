"""Conversations in OpenAI's own form with their reward: to look at, to filter, to feed to anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from forge.adapters.trainers.base import Arguments, Options
from forge.adapters.trainers.files import write_lines
from forge.adapters.trainers.rows import Needs, Row
from forge.adapters.trainers.texts import Message, lines


class Messages:
    name = "messages"
    needs = Needs(tokens=False, reward=False, group=False)
    suffix = ".jsonl"
    caution = "this is text: to train on it, see sft and sft-tokens"

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        left: Counter[str] = Counter()
        write_lines(path, lines(rows, _line, Arguments.STRING, options.media, left))
        return left


def _line(row: Row, messages: list[Message], tools: list[Any] | None) -> dict[str, Any]:
    sample = row.sample
    components = msgspec.json.decode(sample.reward_components) if sample.reward_components else None
    return {
        "messages": messages,
        "tools": tools,
        "reward": sample.reward,
        "reward_components": components,
        "reward_status": sample.reward_status,
        "finish_reason": sample.finish_reason,
        **row.place(),
    }
