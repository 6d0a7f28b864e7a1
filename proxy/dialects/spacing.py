"""A JSON value as models write it: a blank after each comma and colon, text as it is.

Owns the layout only: no value is read, so numbers, the order of keys and duplicate keys stay as they came. The one
non-obvious fact: formats that carry a call's arguments as an object lose the text that was sampled, for clients write
objects without blanks; templates and models write them with, so this gives the sampled text back in nearly every case.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from forge.proxy.splice import UNREADABLE

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_AFTER: Final = {b",": b", ", b":": b": "}


def spaced(document: bytes) -> str:
    """``document`` is valid JSON."""
    return b"".join(_AFTER.get(token) or _plain(token) for token in _TOKEN.findall(document)).decode()


def _plain(token: bytes) -> bytes:
    """Characters that a client escaped without need, unescaped."""
    if not token.startswith(b'"') or b"\\u" not in token:
        return token
    try:
        return json.dumps(msgspec.json.decode(token, type=str), ensure_ascii=False).encode()
    except (*UNREADABLE, UnicodeEncodeError):
        return token
