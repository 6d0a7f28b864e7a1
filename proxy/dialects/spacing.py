"""A JSON value as models write it: a blank after each comma and colon, characters as they are.

Owns the layout only: numbers, the order of keys and duplicate keys stay as they came. The one non-obvious fact:
formats that carry a call's arguments as an object lose the text that was sampled, for clients write objects without
blanks; templates and models write them with, so this gives the sampled text back in nearly every case.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def spaced(document: bytes) -> str:
    """Raises one of ``splice.UNREADABLE`` if it is no JSON."""
    made = msgspec.json.format(document, indent=0)
    return (_STRING.sub(_plain, made) if b"\\u" in made else made).decode()


def _plain(found: re.Match[bytes]) -> bytes:
    """A string without the escapes that a client made of characters that need none."""
    string = found.group()
    if b"\\u" not in string:
        return string
    return json.dumps(msgspec.json.decode(string, type=str), ensure_ascii=False).encode()
