"""Reading one member of a request's top level, with the caller told which one cannot be read.

Owns nothing of any format: what a member means is its dialect's. The one non-obvious fact: null and a missing member
are the same to every format here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.base import BadRequest
from forge.proxy.sessions.turns import Asked, Request, asked_of

NULL: Final = Raw(b"null")
STREAMS: Final = frozenset({b"true", b"1", b"1.0", b"t", b"y", b"yes", b"on"})
"""What pydantic reads as true, as a word or in quotes."""


def read_object(request: Request) -> Asked:
    """Raises ``BadRequest``."""
    try:
        return asked_of(request)
    except splice.UNREADABLE as failure:
        raise BadRequest(f"the request body is not a JSON object: {failure}") from failure


def members_of(request: Request) -> dict[str, Raw]:
    """The request's members. Raises ``BadRequest``."""
    return read_object(request).members


def wants_stream(asked: Mapping[str, bytes | Raw]) -> bool:
    """Whether an engine that is handed the request would stream: those in Python take more than ``true`` for it."""
    return bytes(asked.get("stream", b"")).strip(b'"').lower() in STREAMS


def given(asked: Mapping[str, Raw], name: str) -> bool:
    return asked.get(name, NULL) != NULL


def read(asked: Mapping[str, Raw], name: str, type: Any) -> Any:
    """The member as ``type``; None where it is missing. Raises ``BadRequest``."""
    try:
        return msgspec.json.decode(asked.get(name, NULL), type=type | None)
    except splice.UNREADABLE as failure:
        raise BadRequest(f"`{name}` cannot be read: {failure}", param=name) from failure
