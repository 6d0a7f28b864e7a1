"""What a session has been asked so far, as fingerprints: tells a retry, and finds the session of an unknown call.

A request's messages give a chain of digests, one per prefix. A later request that holds an earlier one's whole
chain as a proper prefix continues it; one with the same normalised body, whose answer was not continued, repeats it.
Only what the harness sent is hashed, never our answers: harnesses rewrite those when they echo them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from forge.proxy.splice import UNREADABLE

VOLATILE: Final = frozenset(
    {"stream", "stream_options", "client_metadata", "metadata", "user", "prompt_cache_key", "store", "seed"}
)
"""Members that may differ between a request and its retry."""
SESSION_ENTRIES: Final = 4096
"""Requests remembered per session; the oldest are forgotten."""
SHARED_ENTRIES: Final = 65536
_SIZE: Final = 16

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    whole: bytes
    """Of the normalised request."""
    prefixes: Sequence[bytes]
    """Of the first 1, 2, ... messages; the last one covers them all."""


def fingerprint(body: bytes) -> Fingerprint | None:
    """None for a body that is no JSON object with messages (``messages``, or ``input`` of responses)."""
    try:
        members = _members.decode(body)
        raw = members.pop("messages", None) or members.pop("input", None)
        if raw is None:
            return None
        items = _items.decode(raw) if bytes(raw).startswith(b"[") else [raw]
    except UNREADABLE:
        return None
    prefixes: list[bytes] = []
    link = b""
    for item in items:
        link = hashlib.blake2b(link + bytes(item), digest_size=_SIZE).digest()
        prefixes.append(link)
    whole = hashlib.blake2b(link, digest_size=_SIZE)
    for name in sorted(members.keys() - VOLATILE):
        whole.update(name.encode() + b"\0" + bytes(members[name]) + b"\0")
    return Fingerprint(whole.digest(), prefixes)


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

    def note(self, seen: Fingerprint, call_id: str) -> str | None:
        """Remember a request; gives the call it repeats, if it repeats one whose answer was not continued."""
        for prefix in seen.prefixes[:-1]:
            if prefix in self._heads:
                self._continued.put(prefix, "")
        head = seen.prefixes[-1] if seen.prefixes else b""
        earlier = self._asked.get(seen.whole)
        self._asked.put(seen.whole, call_id)
        self._heads.put(head, call_id)
        return earlier if head not in self._continued else None


class Shared:
    """Histories of the implicit sessions together: which session does a request continue?"""

    def __init__(self) -> None:
        self._sessions = Bounded(SHARED_ENTRIES)

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
