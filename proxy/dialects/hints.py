"""Small facts of a request body that attribution and call kinds look at: one reading of each wire format.

Owns what is looked at, and that it is small; what follows from it is the sessions' and kinds' to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.sessions.echo import STATE_MARKS

FIELDS: Final = ("prompt_cache_key", "metadata", "client_metadata", "user", "session_id")
TEXT_LEN: Final = 2000
"""Characters of a text that are looked at, at its head and at its end."""
OPENING: Final = 8
"""Messages in which the first texts are looked for."""
ENDING: Final = 4
"""Messages in which the last user text is looked for: a harness may put notes of its own behind it."""
SMALL: Final = 8192
"""A field larger than this says nothing about who calls."""


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[_Part] | None = None


_list: Final = msgspec.json.Decoder(list[Raw])
_message: Final = msgspec.json.Decoder(_Message)


def chat_hints(request: Mapping[str, bytes | Raw], messages: list[Raw]) -> dict[str, Any]:
    """``tools`` and ``messages`` are counts; ``first_user``, ``first_system`` and ``last_user`` are texts."""
    hints = field_hints(request)
    hints["tools"] = len(_items(request.get("tools")))
    hints["messages"] = len(messages)
    hints.update(_texts(messages))
    return hints


def field_hints(request: Mapping[str, bytes | Raw]) -> dict[str, Any]:
    """The body's own fields, where they are small."""
    found: dict[str, Any] = {}
    for name in FIELDS:
        value = bytes(request.get(name, b""))
        if value and len(value) <= SMALL:
            try:
                found[name] = msgspec.json.decode(value)
            except splice.UNREADABLE:
                continue
    return found


def _items(value: bytes | Raw | None) -> list[Raw]:
    try:
        return [] if value is None else _list.decode(value)
    except splice.UNREADABLE:
        return []


def _texts(messages: list[Raw]) -> dict[str, str]:
    """The first user and system texts within the opening messages, and the user text that asks for the answer."""
    found: dict[str, str] = {}
    for raw in messages[:OPENING]:
        role, text = _read(raw)
        role = "system" if role == "developer" else role
        if role in ("user", "system") and text:
            found.setdefault(f"first_{role}", text)
    for raw in messages[: -ENDING - 1 : -1]:
        role, text = _read(raw)
        if role in ("assistant", "tool"):
            break
        if role == "user" and text and not text.startswith(STATE_MARKS):
            found["last_user"] = text
            break
    return found


def _read(raw: Raw) -> tuple[str | None, str]:
    try:
        message = _message.decode(raw)
    except splice.UNREADABLE:
        return None, ""
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text or "" for part in content)
    content = content or ""
    return message.role, content if len(content) <= 2 * TEXT_LEN else f"{content[:TEXT_LEN]}\n{content[-TEXT_LEN:]}"
