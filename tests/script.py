"""What a test writes for the scripted policy server, and what it reads back: turns, faults, gates, served calls."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PIECE = re.compile(r"<\|im_start\|>|<\|im_end\|>|<tool_call>|</tool_call>|<think>|</think>| ?\w+|\s|[^\w\s]")
EOS = "<|im_end|>"
SPECIAL = ("<|im_start|>", EOS)
IMAGE = "<image>"
"""What a template writes for any picture: all are of one size."""
Json = dict[str, Any]


class WordTokenizer:
    """Words to ids and back; an id is given at first sight, so ids are stable within one engine."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {piece: n for n, piece in enumerate(SPECIAL)}
        self._pieces: list[str] = list(SPECIAL)

    def pieces(self, text: str) -> list[str]:
        found = PIECE.findall(text)
        assert "".join(found) == text
        return found

    def id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def encode(self, text: str) -> list[int]:
        return [self.id(piece) for piece in self.pieces(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in ids)


class Gate:
    """Lets chunks out. Starts open; ``shut()`` then ``release(n)`` gives n chunks, ``open()`` gives all."""

    def __init__(self, *, is_open: bool = True) -> None:
        self._permits = asyncio.Semaphore(0)
        self._open = asyncio.Event()
        if is_open:
            self._open.set()
        self.waiting = asyncio.Event()
        """Set while a chunk waits: the engine has sent all that was released."""

    def shut(self) -> None:
        self._open.clear()

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.release()

    def open(self) -> None:
        self._open.set()
        self._permits.release()

    async def passed(self) -> None:
        if self._open.is_set():
            return
        if self._permits.locked():
            self.waiting.set()
        await self._permits.acquire()
        self.waiting.clear()
        if self._open.is_set():
            self._permits.release()

    async def passed_before(self, stop: asyncio.Event) -> bool:
        """True once a chunk may go out; False if ``stop`` was set before."""
        waits = [asyncio.ensure_future(self.passed()), asyncio.ensure_future(stop.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not stop.is_set()


@dataclass(frozen=True)
class Fault:
    """What goes wrong in a turn. At most one field set."""

    status: int | None = None
    """Answer this status (429, 500, 503, 302...) before any generation."""
    retry_after: str | None = None
    body: str | None = None
    """Error body; default is vLLM's shape."""
    headers: tuple[tuple[str, str], ...] = ()
    reset_after: int | None = None
    """TCP reset after this many body bytes."""
    end_after: int | None = None
    """Ends the body in good order after this many bytes."""
    silence: bool = False
    """200 and headers, then nothing, until the client leaves."""
    mute: bool = False
    """Not even a status, until the client leaves."""
    html: bool = False
    """200 with a web page."""
    json_to_stream: bool = False
    """A whole JSON body where a stream was asked."""
    no_finish: bool = False
    no_done: bool = False
    raw: Sequence[bytes] | None = None
    """These pieces, in place of the body that its turn would give; the gate lets them out one by one."""
    no_ids: bool = False
    no_log_probs: bool = False


@dataclass(frozen=True)
class Turn:
    """One answer."""

    text: str = ""
    tool_calls: Sequence[tuple[str, str]] = ()
    """(name, arguments as JSON text)."""
    reasoning: str | None = None
    finish: str | None = None
    """Default: stop, tool_calls, or length when max_tokens cut it."""
    fault: Fault = Fault()
    gate: Gate | None = None
    """Default: the engine's."""


@dataclass
class Served:
    """One generation request as the engine saw it."""

    path: str
    body: bytes
    headers: dict[str, str]
    json: Json
    prompt_ids: list[int]
    turn: Turn
    output_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    answer: bytearray = field(default_factory=bytearray)
    status: int = 0
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a pause that aborts."""
    ended: bool = False
    """The whole answer was written."""
    before: list[int] = field(default_factory=list)
    """Ids of an answer that this one goes on with."""
    skip: int = 0
    """Chunks of its turn that were said."""
    id: str | None = None
    """Of the answer that this one goes on with."""
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Chunk:
    delta: Json
    ids: list[int]
    finish: str | None = None
    stop: str | None = None
    """The stop string that ended it."""
    text: str | None = None
    """Of a raw completion, where it isn't that of the ids."""


def log_prob_of(token: int) -> float:
    """Of a sampled token, the same wherever it stands."""
    return -(token % 97 + 1) / 128


def markup(message: Json, *, thinks: bool = True, anew: bool = False) -> str:
    """A message as the template writes it; with its thinking, what the engine sampled for it is the same text.
    ``anew``: arguments are read and written again, as a template does that gets them as values."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", IMAGE) for part in content)
    reasoning = message.get("reasoning")  # as vLLM 0.32, which looks at no other name
    text = f"<think>{reasoning}</think>{content}" if reasoning and thinks else content
    for call in message.get("tool_calls") or ():
        function = call["function"]
        head = f'{{"name": {json.dumps(function["name"])}, "arguments": '
        text += f"<tool_call>\n{head}{_anew(function['arguments']) if anew else function['arguments']}}}\n</tool_call>"
    return str(text)


def _anew(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


def cut(chunks: list[Chunk], limit: int) -> list[Chunk]:
    """The chunks that fit into ``limit`` tokens; the last one then ends by length."""
    kept: list[Chunk] = []
    for chunk in chunks:
        if len(chunk.ids) >= limit and (chunk.finish is None or len(chunk.ids) > limit):
            kept.append(Chunk(chunk.delta if len(chunk.ids) == limit else {}, chunk.ids[:limit], "length"))
            return kept
        kept.append(chunk)
        limit -= len(chunk.ids)
    return kept
