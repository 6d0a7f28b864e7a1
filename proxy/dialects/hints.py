"""Small facts of a request body that attribution and call kinds look at: one reading of each wire format.

Owns what is looked at, and that it is small; what follows from it is the sessions' and kinds' to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.sessions.echo import STATE_MARKS
from forge.proxy.sessions.turns import Turn

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


def chat_hints(request: Mapping[str, bytes | Raw], turns: Sequence[Turn]) -> dict[str, Any]:
    """``tools`` and ``messages`` are counts; ``first_user``, ``first_system`` and ``last_user`` are texts."""
    return member_hints(request) | turn_hints(turns)


def member_hints(request: Mapping[str, bytes | Raw]) -> dict[str, Any]:
    """Those of what stands around the history."""
    return field_hints(request) | {"tools": len(_items(request.get("tools")))}


def turn_hints(turns: Sequence[Turn]) -> dict[str, Any]:
    """Those of the history: how long it is, the first user and system texts within the opening messages, and the user
    text that asks for the answer."""
    found: dict[str, Any] = {"messages": len(turns)}
    for turn in turns[:OPENING]:
        role, text = turn.said or _read(turn)
        role = "system" if role == "developer" else role
        if role in ("user", "system") and text:
            found.setdefault(f"first_{role}", text)
    for turn in turns[: -ENDING - 1 : -1]:
        role, text = turn.said or _read(turn)
        if role in ("assistant", "tool"):
            break
        if role == "user" and text and not text.startswith(STATE_MARKS):
            found["last_user"] = text
            break
    return found


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


def _read(turn: Turn) -> tuple[str | None, str]:
    try:
        message = _message.decode(turn.text)
    except splice.UNREADABLE:
        turn.said = None, ""
        return turn.said
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text or "" for part in content)
    content = content or ""
    text = content if len(content) <= 2 * TEXT_LEN else f"{content[:TEXT_LEN]}\n{content[-TEXT_LEN:]}"
    turn.said = message.role, text
    return turn.said
