"""References to media in JSON text: cut out, put back, told apart from a harness's own words.

A piece of base64 (the payload of a ``data:`` URL, or the ``data`` of a typed block) gives its place to
``forge-media:sha256:<hex>``; what it belongs to stays. Text that reads like a reference already gets a ``~``, so the
way back is exact, to the byte. Pure; where the media themselves are is ``media.py``'s. The one non-obvious fact:
inside a JSON string a quote is always escaped, so a member's name between bare quotes is a member, never text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

MARK: Final = b"forge-media:"
MEDIA_SIGNS: Final = (b";base64,", b'data"')
"""One of them stands in every text with a piece."""
_REFERENCE: Final = re.compile(rb"forge-media:(~*)((sha256(?:-url)?):([0-9a-f]{64}))")
_PIECE: Final = re.compile(rb'"(data|url|image_url|file_data)"[ \t\r\n]*:[ \t\r\n]*"(data:[^",\\]{0,256};base64,)?')
_DATA_URL: Final = re.compile(rb'data:[^",\\]{0,256};base64,forge-media:sha256(?:-url)?:([0-9a-f]{64})')
_TYPED: Final = re.compile(rb'"(?:media_type|mimeType|mime_type|format)"[ \t\r\n]*:')
"""Stands beside the ``data`` of a block; a tool's argument of that name has none."""
_BESIDE: Final = 512
"""How far from the data its type is looked for."""
STANDARD: Final = b"sha256"
_STANDARD_ALPHABET: Final = str.maketrans("-_", "+/")
_SPELLINGS: Final = {STANDARD: None, b"sha256-url": b"-_"}
"""Name in a reference, and alphabet: standard, and that of URLs. Both padded; what is spelled otherwise stays."""


class Piece(NamedTuple):
    start: int
    end: int
    text: bytes
    """Base64, as it stands in the JSON text."""


class Content(NamedTuple):
    data: bytes
    sha256: str
    spelling: bytes
    """Of the text it was decoded from."""


def shows_media(body: bytes) -> bool:
    """Whether there can be any piece: a glance, for the many requests without one."""
    return any(sign in body for sign in MEDIA_SIGNS)


def pieces(body: bytes) -> Iterator[Piece]:
    """Where base64 of media may stand, in order."""
    for found in _PIECE.finditer(body):
        name, prefix = found.groups()
        start, end = found.end(), body.find(b'"', found.end())
        if end <= start or (prefix is None and not _is_block(body, name, found.start(), end)):
            continue
        yield Piece(start, end, body[start:end])


def _is_block(body: bytes, name: bytes, start: int, end: int) -> bool:
    if name == b"file_data":
        return True
    if name != b"data":
        return False
    before = body[max(0, start - _BESIDE) : start].rpartition(b"{")[2]
    after = body[end : end + _BESIDE].partition(b"}")[0]
    return _TYPED.search(before) is not None or _TYPED.search(after) is not None


def content_of(text: bytes) -> Content | None:
    """None for what is no base64, or would not be spelled the same again."""
    for spelling, alphabet in _SPELLINGS.items():
        try:
            data = base64.b64decode(text, alphabet, validate=True)
        except binascii.Error:
            continue
        if encoded(data, spelling) == text:
            return Content(data, hashlib.sha256(data).hexdigest(), spelling)
    return None


def loosely(text: str) -> bytes | None:
    """What base64 of any spelling stands for, as engines read it: either alphabet, broken into lines, not padded."""
    try:
        return base64.b64decode(text.translate(_STANDARD_ALPHABET) + "==") or None
    except (binascii.Error, ValueError):
        return None


def reference(sha256: str, spelling: bytes = STANDARD) -> bytes:
    return MARK + spelling + b":" + sha256.encode()


def cut(body: bytes, known: Callable[[bytes], bytes | None]) -> bytes:
    """``body`` with a reference for each piece that has one, and its own text escaped."""
    out: list[bytes] = []
    at = 0
    for piece in pieces(body):
        stands = known(piece.text)
        if stands is not None:
            out += (escaped(body[at : piece.start]), stands)
            at = piece.end
    return b"".join((*out, escaped(body[at:]))) if out else escaped(body)


def escaped(text: bytes) -> bytes:
    """Own text that reads like a reference, so that none is seen in it."""
    return _REFERENCE.sub(rb"forge-media:~\1\2", text) if MARK in text else text


def restored(text: bytes, spell: Callable[[str, bytes], bytes]) -> bytes:
    """The way back. ``spell`` gives what stands for a sha256, given the reference's alphabet (for ``encoded``)."""
    return _REFERENCE.sub(lambda found: _own(found) or spell(found[4].decode(), found[3]), text)


def linked(text: bytes, url: Callable[[str], bytes]) -> bytes:
    """``url`` of the sha256 in place of each ``data:`` URL whose payload was cut out."""
    return _DATA_URL.sub(lambda found: url(found[1].decode()), text) if MARK in text else text


def encoded(data: bytes, spelling: bytes) -> bytes:
    return base64.b64encode(data, _SPELLINGS[spelling])


def references(text: bytes) -> set[str]:
    """The sha256 of all media that it refers to."""
    return {found[4].decode() for found in _REFERENCE.finditer(text) if not found[1]} if MARK in text else set()


def _own(found: re.Match[bytes]) -> bytes:
    """Text that was escaped, as it was; nothing for a reference."""
    return MARK + found[1][1:] + found[2] if found[1] else b""
