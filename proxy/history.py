"""What a session has been asked so far, as fingerprints: tells a retry, and finds the session of an unknown call.

A request's turns, in their normal form (``echo``), give a chain of digests, one per prefix. A later request that
holds an earlier one's whole chain as a proper prefix continues it; one with the same normalised body, whose answer was
not continued, repeats it. Only what the harness sent is hashed, never our answers. Works on the body of every wire
format, told apart by the member that holds the history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from forge.proxy import echo
from forge.proxy.splice import UNREADABLE

VOLATILE: Final = frozenset(
    {"stream", "stream_options", "client_metadata", "metadata", "user", "prompt_cache_key", "store", "seed"}
)
"""Members that may differ between a request and its retry."""
TURNS: Final = ("messages", "input", "contents", "prompt")
"""Where a wire format keeps its history."""
SYSTEM: Final = ("system", "instructions", "systemInstruction", "system_instruction")
"""Where it keeps a system prompt that is no turn."""
SYSTEM_ROLES: Final = frozenset({"system", "developer"})
SESSION_ENTRIES: Final = 4096
"""Requests remembered per session; the oldest are forgotten."""
SHARED_ENTRIES: Final = 65536

_members: Final = msgspec.json.Decoder(dict[str, Any])
_FAILURES: Final = (*UNREADABLE, ValueError, OverflowError)


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


def fingerprint(body: bytes) -> Fingerprint | None:
    """None for a body that is no JSON object with a history. One pass: each turn is hashed once."""
    try:
        members = _members.decode(body)
        name = next((name for name in TURNS if members.get(name) is not None), None)
        if name is None:
            return None
        return _fingerprint(members, _turns(name, members))
    except _FAILURES:
        return None


def _fingerprint(members: dict[str, Any], turns: list[echo.Turn]) -> Fingerprint:
    system = [echo.parts(_said(members.pop(name))) for name in SYSTEM if members.get(name) is not None]
    start = echo.digest(system) if system else b""
    prefixes = echo.chain(start, turns)
    opening = next((at for at, said in enumerate(turns) if said[0] not in SYSTEM_ROLES), len(turns) - 1)
    rest = {name: _unmarked(value) for name, value in members.items() if name not in VOLATILE}
    return Fingerprint(
        whole=echo.digest([(prefixes[-1] if prefixes else start).hex(), rest]),
        prefixes=prefixes,
        system=echo.digest([system, turns[: max(0, opening)]]),
        opening=prefixes[opening] if prefixes else start,
        first=echo.digest(turns[opening]) if turns else b"",
        tools=echo.digest(rest["tools"]) if rest.get("tools") else b"",
    )


def _turns(name: str, members: dict[str, Any]) -> list[echo.Turn]:
    value = members.pop(name)
    if name == "prompt" and isinstance(value, str):
        # Whole lines only are turns: the last line goes on in the request that continues this one.
        lines = value.splitlines(keepends=True)
        members[name] = "".join(lines[-1:])
        return [["text", line] for line in lines[:-1]]
    items = value if isinstance(value, list) else [value]
    return [said for said in map(echo.turn, items) if said is not None]


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

    def repeated(self, seen: Fingerprint) -> str | None:
        """The call that this request repeats, if it repeats one whose answer was not continued."""
        return self._asked.get(seen.whole) if _head(seen) not in self._continued else None

    def note(self, seen: Fingerprint, call_id: str) -> None:
        """Remember the request of a call that has a row."""
        for prefix in seen.prefixes[:-1]:
            if prefix in self._heads:
                self._continued.put(prefix, "")
        self._asked.put(seen.whole, call_id)
        self._heads.put(_head(seen), call_id)


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
        """The session whose request is the longest prefix of this one."""
        for prefix in reversed(seen.prefixes):
            session_id = self._sessions.get(prefix)
            if session_id is not None:
                return session_id
        return None
