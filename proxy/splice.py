"""Edits of JSON documents as bytes: everything that is not edited stays as it came, to the byte.

Owns how members are added to a request's top level or replaced in it, and where a value stands in a document. It knows
no member by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the parser raises on bytes that are no such document, however broken or deep."""
_BLANKS: Final = (b" ", b"\t", b"\r", b"\n")
_members: Final = msgspec.json.Decoder(dict[str, Raw])


def members(document: bytes | Raw) -> dict[str, Raw]:
    """The top level's members, of duplicates the last. Raises one of ``UNREADABLE`` if it is no JSON object."""
    return _members.decode(document)


def append(document: bytes, added: Mapping[str, bytes]) -> bytes:
    """``added`` at the end of a JSON object's top level."""
    return document[: document.rindex(b"}")] + addition(document, added) if added else document


def addition(document: bytes, added: Mapping[str, bytes]) -> bytes:
    """What then stands from the object's end on."""
    end = last = document.rindex(b"}")
    while document.startswith(_BLANKS, last - 1):
        last -= 1
    comma = b"" if document.startswith(b"{", last - 1) else b","
    text = b",".join(msgspec.json.encode(name) + b":" + value for name, value in added.items())
    return comma + text + document[end:]


def rebuild(parts: Mapping[str, bytes | Raw]) -> bytes:
    """A JSON object of these members, each value's bytes as given."""
    text = b",".join(msgspec.json.encode(name) + b":" + bytes(value) for name, value in parts.items())
    return b"{" + text + b"}"


def around(parts: Mapping[str, bytes | Raw], name: str | None) -> tuple[bytes, bytes]:
    """What stands before a member's value in the object of these members, and behind it; without one all and
    nothing."""
    if name is None:
        return rebuild(parts), b""
    names = list(parts)
    at = names.index(name)
    before = rebuild({each: parts[each] for each in names[:at]})[:-1] + (b"," if at else b"")
    after = rebuild({each: parts[each] for each in names[at + 1 :]})[1:]
    comma = b"," if names[at + 1 :] else b""
    return before + msgspec.json.encode(name) + b":", comma + after


class Shared(NamedTuple):
    """The part of a document that another one has too: its bytes ``start:stop`` stand there at ``at``."""

    start: int
    stop: int
    at: int

    def rest(self, other: tuple[bytes | memoryview, ...]) -> tuple[bytes, bytes]:
        """What stands before it in the other document, and behind it: that one's first and last of three pieces."""
        before, _, after = other
        return bytes(before), bytes(after)


def place_of(value: Raw, document: bytes | Raw) -> int:
    """Where the value, a view into the document, stands in it."""
    return _address(value) - _address(document)


def _address(view: bytes | Raw) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address
