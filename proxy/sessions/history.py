"""What a session has been asked so far, as fingerprints: tells a retry, and finds the session of an unknown call.

A request's turns, in their normal form (``echo``), give a chain of digests, one per prefix. A later request that
holds an earlier one's whole chain as a proper prefix continues it; one with the same normalised body, whose answer was
not continued, repeats it. Only what the harness sent is hashed, never our answers. Works on the body of every wire
format, told apart by the member that holds the history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.sessions import echo
from forge.proxy.sessions.turns import Asked, Known, Request, Told, asked_of
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

_FAILURES: Final = (*UNREADABLE, ValueError, OverflowError)


class Fingerprint(msgspec.Struct, frozen=True):
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


class Apart(msgspec.Struct, frozen=True):
    """The fingerprint's part of what stands around a history."""

    start: bytes
    """Of the system prompt that is no turn; empty without one."""
    tools: bytes
    rest: dict[str, Any]
    """The other members that count, but for those of a history that is no list."""
    whole: bytes
    """Of all of these."""


def fingerprint(request: Request) -> Fingerprint | None:
    """None for a body that is no JSON object with a history. Each turn is read and hashed the first time it is seen,
    then let go."""
    try:
        asked = asked_of(request)
        name = asked.around.name
        if name is None:
            return None
        if asked.around.apart is None:
            asked.around.apart = _apart(asked.around.small, name)
        apart: Apart = asked.around.apart
        if asked.body.startswith(b"[", asked.start):
            return _of_list(asked, apart)
        return _of_value(asked, apart)
    except _FAILURES:
        return None


def _apart(members: Mapping[str, Raw], name: str) -> Apart:
    apart = VOLATILE | {name, "tools"}
    read = {member: msgspec.json.decode(value) for member, value in members.items() if member not in apart}
    prompt = [echo.parts(_said(read.pop(name))) for name in SYSTEM if read.get(name) is not None]
    tools = _unmarked(msgspec.json.decode(members["tools"])) if "tools" in members else None
    digest = echo.digest(tools) if tools else b""
    rest = {name: _unmarked(value) for name, value in read.items()}
    return Apart(echo.digest(prompt) if prompt else b"", digest, rest, echo.digest([digest.hex(), rest]))


def _of_list(asked: Asked, apart: Apart) -> Fingerprint:
    """Of a history that is a list: what is known of the turns that were there before is gone on from."""
    known, turns = asked.known, asked.turns
    if known.turns != turns:
        known = Known()  # another request of this history was read since
    if known.start != apart.start:
        known.start, known.chain, known.chained = apart.start, [], 0
    chain = known.chain
    place = chain[-1] if chain else apart.start
    for turn in turns[known.chained :]:
        if turn.number < 0:
            said = echo.turn(msgspec.json.decode(turn.text))
            turn.told = (said[0], echo.digest(said)) if said is not None else None
        if turn.told is not None:
            place = echo.onward(place, turn.told[1])
            chain.append(place)
        turn.number = len(chain)
        known.chained += 1
    return _fingerprint(apart, chain.copy(), (turn.told for turn in turns if turn.told is not None))


def _of_value(asked: Asked, apart: Apart) -> Fingerprint:
    """Of a history that is one value."""
    place, chain, all_told, members = apart.start, list[bytes](), list[Told](), dict(apart.rest)
    for turn in _texts(str(asked.around.name), asked.members[str(asked.around.name)], members):
        all_told.append((turn[0], echo.digest(turn)))
        place = echo.onward(place, all_told[-1][1])
        chain.append(place)
    if members != apart.rest:
        apart = msgspec.structs.replace(apart, whole=echo.digest([apart.tools.hex(), members]))
    return _fingerprint(apart, chain, all_told)


def _fingerprint(apart: Apart, chain: list[bytes], told: Iterable[Told]) -> Fingerprint:
    place = system = apart.start
    opening = first = b""
    for place, (role, digest) in zip(chain, told, strict=False):
        if role not in SYSTEM_ROLES:
            opening, first = place, digest
            break
        system = place
    return Fingerprint(
        whole=echo.onward(chain[-1] if chain else apart.start, apart.whole),
        prefixes=chain,
        system=system,
        opening=opening or place,
        first=first,
        tools=apart.tools,
    )


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
        for prefix in (self._heads.keys() & seen.prefixes[:-1]) - self._continued.keys():
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
