"""Supervised fine-tuning on text: conversations with their tools, one JSON object a line, as TRL and others read them.

Text is not what the policy saw: the trainer's own template and tokenizer make other ids of it. Whoever can, takes
``sft-tokens``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import write_lines
from forge.adapters.trainers.rows import Needs, Row
from forge.adapters.trainers.texts import Message, lines


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
        write_lines(path, lines(rows, _line, options.arguments, options.media, left))
        return left


def _line(row: Row, messages: list[Message], tools: list[Any] | None) -> dict[str, Any]:
    line = {"messages": messages, **({"tools": tools} if tools else {}), **_images(messages)}
    return {**line, "reward": row.sample.reward, **row.place()}


def _images(messages: list[Message]) -> dict[str, list[str]]:
    """Takes stored images out of the messages, as TRL wants them: a mark in their place, and their files beside."""
    paths: list[str] = []
    for content in (message.get("content") for message in messages):
        for part in content if isinstance(content, list) else ():
            url = (part.get("image_url") or {}).get("url", "") if part.get("type") == "image_url" else ""
            if url.startswith("file://"):
                paths.append(url2pathname(urlsplit(url).path))
                part.clear()
                part["type"] = "image"
    return {"images": paths} if paths else {}
