"""The files of the path bars: requests of three sizes, their answers, and streams; the same for every target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import wire
from bench.record import probe_answers
from bench.words import Words


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    prompt: int
    output: int
    clients: int
    """As many as keep a target busy without a queue."""

    def __str__(self) -> str:
        return f"{self.prompt // 1000}k+{self.output}"


SIZES: Final = (Size("s", 2000, 200, 16), Size("m", 32_000, 500, 8), Size("l", 128_000, 1000, 4))
STREAM_EVENTS: Final = 200
STREAM_US: Final = 10_000
"""From one event to the next: 100 tokens a second."""


def write(folder: Path) -> None:
    """``SIZE.json`` and ``stream.sse`` for the stub; ``SIZE.request`` and ``DIALECT.request`` for the clients."""
    words = Words(7)
    probe_answers(folder)
    for size in SIZES:
        output = words.ids(size.output)
        whole = wire.answer(words, words.ids(size.prompt), output, words.log_probs(size.output))
        (folder / f"{size.name}.json").write_bytes(whole)
        messages = wire.history(words, size.prompt)
        (folder / f"{size.name}.request").write_bytes(wire.chat_request(messages, wire.mark(size.name)))
        (folder / f"{size.name}_held.request").write_bytes(
            wire.chat_request(messages, wire.mark(size.name, HELD_US[size.name]))
        )
    streams(folder, words, "stream", SIZES[0].prompt, STREAM_EVENTS, STREAM_US)


HELD_US: Final = {"s": 2_000_000, "m": 15_000_000, "l": 15_000_000}
"""How long the end of a held answer waits: until all clients have theirs but for it."""


def streams(folder: Path, words: Words, name: str, prompt: int, events: int, step_us: int) -> None:
    """``NAME.sse``, and its request in each dialect: ``NAME.DIALECT``."""
    whole = wire.stream(words, words.ids(prompt), words.ids(events), words.log_probs(events))
    (folder / f"{name}.sse").write_bytes(whole)
    messages = wire.history(words, prompt)
    mark = wire.mark(name, step_us)
    (folder / f"{name}.chat").write_bytes(wire.chat_request(messages, mark, stream=True))
    (folder / f"{name}.responses").write_bytes(wire.responses_request(messages, mark))
    (folder / f"{name}.messages").write_bytes(wire.messages_request(messages, mark))
