"""The lane of every wire format that is not chat: the engine's chat answer, chunk by chunk, through a composer.

Owns the reading of the engine's answer (streamed, or whole where a stream was due, or the other way round) and when
it is complete; what events or objects it becomes is the composer's. The one non-obvious fact: the harness asks for
nothing of the engine itself, so an answer needs no cutting: only what has a place in the format is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.base import ABORT, ABORTED, BROKEN_OFF, UNREADABLE_ANSWER, Hold, Outgoing, Overrides, Piece
from forge.proxy.dialects.chat import prepare
from forge.proxy.dialects.chat_answer import DONE, last_event
from forge.proxy.dialects.hints import field_hints
from forge.proxy.engines.answers import error_text
from forge.proxy.engines.base import Engine
from forge.proxy.engines.shapes import Message
from forge.proxy.engines.tool_calls import InOrder
from forge.proxy.engines.unstreamed import as_stream
from forge.proxy.sessions.turns import Request, asked_of
from forge.proxy.sse import EventTooLarge, Splitter


class Translation(Protocol):
    """A request as chat; what else the format's answer needs is its own."""

    @property
    def members(self) -> Mapping[str, bytes | Raw]: ...

    @property
    def notices(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def stream(self) -> bool: ...


def prepared(body: Request, made: Translation, *, engine: Engine, overrides: Overrides) -> Outgoing:
    """``made`` ready for the engine, with the hints of the harness's own ``body``."""
    chat = asked_of(splice.rebuild(made.members))
    outgoing = prepare(chat, engine=engine, overrides=overrides, stream=made.stream, notices=made.notices)
    hints = {**outgoing.hints, **field_hints(asked_of(body).around.small)}
    return msgspec.structs.replace(outgoing, edited=True, hints=hints, context=made, shared=None)


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """The engine's own counts."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: OutputDetails | None = None


class Composer(Protocol):
    """Chat deltas in, pieces out. Called in this order: ``start``, ``take`` for each delta, ``settle`` at the
    engine's finish, then one of ``end`` and ``fail``; ``pieces`` at any time."""

    @property
    def final(self) -> dict[str, Any] | None:
        """The whole answer's object, once ``end`` or ``fail`` was called."""

    def start(self, prompt_tokens: int | None) -> None:
        """``prompt_tokens``: as many as the engine's first chunk names, where it does."""

    def take(self, delta: Message) -> None:
        """Raises ``ValueError`` where the delta has no place any more: what was given cannot be taken back."""

    def settle(self, finish: str, matched: str | None) -> None:
        """The engine has finished: what is open ends, so that the harness can act on it. ``matched``: the stop
        string that ended it, where the engine names it."""

    def end(self, usage: Usage | None) -> None:
        """After ``settle``: the closing events. ``usage`` is None where the engine gave none."""

    def fail(self, code: str, message: str) -> None:
        """The closing events of an answer that is none."""

    def pieces(self) -> list[Piece]:
        """What has been composed since the last time."""


class _Choice(msgspec.Struct):
    index: int = 0
    delta: Message | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    matched_stop: int | str | None = None
    prompt_token_ids: Raw = Raw()


class _Chunk(msgspec.Struct):
    """One chunk of the engine's stream; ids and log probs are skipped unread, but for the number of the prompt's."""

    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    prompt_token_ids: Raw = Raw()

    def prompt_tokens(self) -> int | None:
        for ids in (self.prompt_token_ids, *(choice.prompt_token_ids for choice in self.choices or ())):
            if bytes(ids).startswith(b"[") and (held := bytes(ids).strip(b"[ \n]")):
                return held.count(b",") + 1
        return None


_chunk: Final = msgspec.json.Decoder(_Chunk)


class Streamed:
    """Each event goes out as soon as the engine has said enough for it."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._splitter = Splitter()
        self._order = InOrder()
        self._usage: Usage | None = None
        self._started = False
        self.finish_reason: str | None = None
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        return self.finish_reason is not None and self.error is None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        try:
            for event in self._splitter.feed(chunk) if self.error is None else ():
                self._take(event.data)
        except EventTooLarge as failure:
            self._fail(str(failure))
        return self._composer.pieces()

    def finish(self) -> Sequence[Piece]:
        if self.error is None:
            self._take_rest()
        if self.error is None and self.finish_reason is None:
            self._fail(BROKEN_OFF)
        elif self.error is None and self.finish_reason == ABORT:
            self._composer.fail("server_error", ABORTED)
        elif self.error is None:
            self._composer.end(self._usage)
        return self._composer.pieces()

    def take_whole(self, body: bytes) -> None:
        """The engine's whole body, in place of a stream."""
        try:
            for event in Splitter().feed(as_stream(body)):
                self._take(event.data)
        except EventTooLarge as failure:
            self._fail(str(failure))
        except ValueError as failure:
            self._fail(f"{UNREADABLE_ANSWER}: {failure}")

    def _take_rest(self) -> None:
        """The end of a stream without its last empty line, or a whole body where a stream was due."""
        rest = self._splitter.rest
        if rest.lstrip().startswith(b"{"):
            self.take_whole(rest)
        elif self.finish_reason is None and (last := last_event(self._splitter)) is not None:
            self._take(last.data)

    def _take(self, data: bytes | None) -> None:
        if not data or data == DONE or self.error is not None:
            return
        try:
            chunk = _chunk.decode(data)
            if not self._started:
                self._start(chunk.prompt_tokens())
            if chunk.error is not None:
                self._fail(error_text(chunk.error))
                return
            self._usage = chunk.usage or self._usage
            for choice in chunk.choices or ():
                self._take_choice(choice)
        except (*splice.UNREADABLE, ValueError) as failure:
            self._fail(f"{UNREADABLE_ANSWER}: {failure}")

    def _take_choice(self, choice: _Choice) -> None:
        if choice.index != 0 or self.finish_reason is not None:
            return
        if choice.delta is not None:
            if choice.delta.tool_calls:
                choice.delta.tool_calls = self._order.placed(choice.delta.tool_calls)
            self._composer.take(choice.delta)
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
            if self.finish_reason != ABORT:
                named = (choice.stop_reason, choice.matched_stop)
                matched = next((word for word in named if isinstance(word, str)), None)
                self._composer.settle(choice.finish_reason, matched)

    def _start(self, prompt_tokens: int | None = None) -> None:
        if not self._started:
            self._started = True
            self._composer.start(prompt_tokens)

    def _fail(self, message: str) -> None:
        self._start()
        self.error = message
        self._composer.fail("server_error", message)


class Whole:
    """The final object of the same events, held entire; an error body where the answer cannot be one."""

    def __init__(self, composer: Composer, error: Callable[[str], bytes]) -> None:
        """``error`` writes a failure's message in the format's own error shape."""
        self._composer = composer
        self._streamed = Streamed(composer)
        self._error = error
        self._chunks: list[bytes] = []

    @property
    def complete(self) -> bool:
        return self._streamed.complete

    @property
    def finish_reason(self) -> str | None:
        return self._streamed.finish_reason

    @property
    def error(self) -> str | None:
        return self._streamed.error

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        self._chunks.append(chunk)
        return ()

    def finish(self) -> Sequence[Piece]:
        self._streamed.take_whole(b"".join(self._chunks))
        self._streamed.finish()
        if self.error is not None:
            return (Piece(self._error(self.error), Hold.CLOSE),)
        return (Piece(msgspec.json.encode(self._composer.final), Hold.CLOSE),)
