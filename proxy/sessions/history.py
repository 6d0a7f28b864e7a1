"""What a session has been asked so far, as fingerprints: tells a retry, and finds the session of an unknown call.

A request's turns, in their normal form (``echo``), give a chain of digests, one per prefix. A later request that
holds an earlier one's whole chain as a proper prefix continues it; one with the same normalised body, whose answer was
not continued, repeats it. Only what the harness sent is hashed, never our answers. Works on the body of every wire
format, told apart by the member that holds the history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.sessions import echo
from forge.proxy.sessions.turns import Remembered, Turns, mark_of, said
from forge.proxy.splice import UNREADABLE

VOLATILE: Final = frozenset(
    {"stream", "stream_options", "client_metadata", "metadata", "user", "prompt_cache_key", "store", "seed"}
)
"""Members that may differ between a request and its retry."""
SYSTEM: Final = ("system", "instructions", "systemInstruction", "system_instruction")
"""Where it keeps a system prompt that is no turn."""
SYSTEM_ROLES: Final = frozenset({"system", "developer"})
SESSION_ENTRIES: Final = 4096
"""Requests remembered per session; the oldest are forgotten."""
SHARED_ENTRIES: Final = 65536

_known: Final = Remembered["Told | None"]()
_known_tools: Final = Remembered[bytes]()
_FAILURES: Final = (*UNREADABLE, ValueError, OverflowError)


Told = tuple[str, bytes]
"""A turn's role and its digest."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    whole: bytes
    """Of the normalised request."""
    prefixes: Sequence[bytes]
    """Of the first 1, 2, ... turns; the last one covers them all."""
    system: bytes
    """Of the system prompt."""
    opening: bytes
    """Of the system prompt and the turns to the first one of a user: the same for all calls of one agent's history."""
    first: bytes
    """Of that first turn alone."""
    tools: bytes
    """Of the tools that are offered; empty without any."""

    @property
    def opens(self) -> bool:
        """Nothing was said yet but the first turn."""
        return self.prefixes[-1:] == [self.opening]


def fingerprint(body: bytes) -> Fingerprint | None:
    """None for a body that is no JSON object with a history. Each turn is read and hashed the first time it is seen,
    then let go."""
    try:
        raw = splice.members(body)
        name, history = said(body)
        if name is None:
            return None
        apart = VOLATILE | {name, "tools"}
        members = {member: msgspec.json.decode(value) for member, value in raw.items() if member not in apart}
        turns = _remembered(history) if _begins(raw[name]) == b"[" else _texts_of(name, raw[name], members)
        return _fingerprint(members, turns, _tools(raw.get("tools")))
    except _FAILURES:
        return None


def _begins(value: bytes | Raw) -> bytes:
    return bytes(memoryview(value)[:1])


def _tools(value: bytes | Raw | None) -> bytes:
    """The digest of the tools that are offered; empty without any."""
    if value is None:
        return b""
    mark = mark_of(value)
    known = _known_tools.get(mark)
    if known is None:
        tools = _unmarked(msgspec.json.decode(value))
        known = _known_tools.keep(mark, echo.digest(tools) if tools else b"")
    return known


def _fingerprint(members: dict[str, Any], turns: Iterable[Told], tools: bytes) -> Fingerprint:
    prompt = [echo.parts(_said(members.pop(name))) for name in SYSTEM if members.get(name) is not None]
    place = start = echo.digest(prompt) if prompt else b""
    system, prefixes = start, list[bytes]()
    opening = first = b""
    for role, told in turns:
        place = echo.onward(place, told)
        prefixes.append(place)
        if not first and role in SYSTEM_ROLES:
            system = place
        elif not first:
            opening, first = place, told
    rest = {name: _unmarked(value) for name, value in members.items()}
    return Fingerprint(
        whole=echo.digest([place.hex(), tools.hex(), rest]),
        prefixes=prefixes,
        system=system,
        opening=opening or place,
        first=first,
        tools=tools,
    )


def _told(turn: echo.Turn | None) -> Told | None:
    return (turn[0], echo.digest(turn)) if turn is not None else None


def _remembered(turns: Turns) -> Iterator[Told]:
    for raw, mark in zip(*turns, strict=True):
        told = _known[mark] if mark in _known else _known.keep(mark, _told(echo.turn(msgspec.json.decode(raw))))
        if told is not None:
            yield told


def _texts_of(name: str, history: bytes | Raw, members: dict[str, Any]) -> Iterator[Told]:
    yield from (told for turn in _texts(name, history, members) if (told := _told(turn)) is not None)


def _texts(name: str, history: bytes | Raw, members: dict[str, Any]) -> Iterator[echo.Turn]:
    """A history that is one value."""
    value = msgspec.json.decode(history)
    if name == "prompt" and isinstance(value, str):
        # Whole lines only are turns: the last line goes on in the request that continues this one.
        lines = value.splitlines(keepends=True)
        members[name] = "".join(lines[-1:])
        yield from (["text", line] for line in lines[:-1])
    elif (said := echo.turn(value)) is not None:
        yield said


def _unmarked(value: Any) -> Any:
    """Tools without their cache marks."""
    if not isinstance(value, list):
        return value
    return [echo.kept(entry) if isinstance(entry, dict) else entry for entry in value]


def _said(system: Any) -> Any:
    """A system prompt's content: a text, blocks, or a content with parts."""
    return system.get("parts") if isinstance(system, dict) else system


class Bounded(OrderedDict[bytes, str]):
    """A dictionary that forgets its oldest entry when it is full."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: bytes, value: str) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)


class History:
    """One session's requests."""

    def __init__(self) -> None:
        self._asked = Bounded(SESSION_ENTRIES)
        self._heads = Bounded(SESSION_ENTRIES)
        self._continued = Bounded(SESSION_ENTRIES)

    def repeated(self, seen: Fingerprint, agent_id: str | None = None) -> str | None:
        """The call of the same agent that this request repeats, if it repeats one whose answer was not continued."""
        return None if self.went_on(seen) else self._asked.get(_asked(seen, agent_id))

    def went_on(self, seen: Fingerprint) -> bool:
        """Whether an answer to this very history was continued."""
        return _head(seen) in self._continued

    def note(self, seen: Fingerprint, call_id: str, agent_id: str | None = None) -> None:
        """Remember the request of a call that has a row."""
        for prefix in seen.prefixes[:-1]:
            if prefix in self._heads:
                self._continued.put(prefix, "")
        self._asked.put(_asked(seen, agent_id), call_id)
        self._heads.put(_head(seen), call_id)


def _asked(seen: Fingerprint, agent_id: str | None) -> bytes:
    return seen.whole + (agent_id or "").encode("utf-8", "replace")


def _head(seen: Fingerprint) -> bytes:
    return seen.prefixes[-1] if seen.prefixes else b""


class Shared:
    """Histories of the implicit sessions together: which session does a request continue?"""

    def __init__(self) -> None:
        self._sessions = Bounded(SHARED_ENTRIES)
        self.traces = Bounded(SHARED_ENTRIES)
        """Trace id to the session whose calls carry it."""

    def note(self, seen: Fingerprint, session_id: str) -> None:
        if seen.prefixes:
            self._sessions.put(seen.prefixes[-1], session_id)

    def session_of(self, seen: Fingerprint) -> str | None:
        """The session whose request is the longest prefix of this one, a proper one if there is any: the last to ask
        that is the one that goes on, also where another came to the very same history before."""
        for prefix in (*reversed(seen.prefixes[:-1]), *seen.prefixes[-1:]):
            session_id = self._sessions.get(prefix)
            if session_id is not None:
                return session_id
        return None
