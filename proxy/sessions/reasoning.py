"""``--history keep-reasoning``: what the model thought is given back where a harness dropped it.

Owns one session's memory of thoughts, and the edit that puts them into the chat request for the engine. It is in
memory alone: after a restart of the proxy it begins empty, and turns from before go out as the harness sent them. A
thought is found by the history that led to it and what was said then; where that history was rewritten, by the ids
of its tool calls, else by what was said, unless one saying came of several thoughts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.base import CHAT_PATH, Outgoing
from forge.proxy.engines.thinking import KEEP_THINKING, REASONING_MEMBERS, TEMPLATE_ENGINES, TEMPLATE_MEMBER
from forge.proxy.sessions import echo

REASONING_BYTES: Final = 32 << 20
"""Thoughts remembered per session, in characters; the oldest are forgotten."""
ENTRY: Final = 512
"""What a remembered reply costs besides its thought."""
EDIT: Final = "reasoning"

_THINK: Final = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_raws: Final = msgspec.json.Decoder(list[Raw])
_FAILURES: Final = (*splice.UNREADABLE, ValueError, OverflowError)


@dataclass(slots=True, eq=False)
class _Thought:
    text: str
    """Empty of a reply without one: that too tells it from another that said the same."""
    keys: tuple[bytes, ...]
    """Strongest first; the first names one place of one history."""


class Reasoning:
    """The thoughts of one session."""

    def __init__(self, limit: int = REASONING_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._thoughts: OrderedDict[int, _Thought] = OrderedDict()
        self._found: dict[bytes, list[_Thought]] = {}

    def note(self, place: bytes, reply: dict[str, Any]) -> None:
        """``reply``: the engine's message; ``place``: the history it answered."""
        text, said = thought(reply), echo.turn(reply)
        if said is None or not (text or said[1]):
            return
        new = _Thought(text, _keys(place, said))
        self._thoughts[id(new)] = new
        self._size += len(text) + ENTRY
        for key in new.keys:
            self._found.setdefault(key, []).append(new)
        while self._size > self._limit:
            self._forget(self._thoughts.popitem(last=False)[1])

    def _forget(self, old: _Thought) -> None:
        self._size -= len(old.text) + ENTRY
        for key in old.keys:
            self._found[key].remove(old)
            if not self._found[key]:
                del self._found[key]

    def find(self, place: bytes, said: echo.Turn) -> str:
        """Empty where there was none, and where nobody can tell which it was."""
        for strength, key in enumerate(_keys(place, said)):
            found = self._found.get(key, ())
            if found and (strength == 0 or len({one.text for one in found}) == 1):
                return found[-1].text
        return ""


def _keys(place: bytes, said: echo.Turn) -> tuple[bytes, ...]:
    spoken, ids = echo.spoken(said), [part[3] for part in said[1] if part[0] == "c"]
    by_id = (b"ids " + "\n".join(ids).encode(),) if ids and all(ids) else ()
    by_words = (b"said " + spoken,) if said[1] else ()
    return (b"at " + place + spoken, *by_id, *by_words)


def thought(message: dict[str, Any]) -> str:
    """What a message says that its model thought, in whichever member or text it stands."""
    for name in REASONING_MEMBERS:
        if isinstance(text := message.get(name), str) and text:
            return text
    content = message.get("content")
    found = _THINK.search(content) if isinstance(content, str) else None
    return found.group(1).strip("\n") if found is not None else ""


class Kept(NamedTuple):
    outgoing: Outgoing
    place: bytes | None
    """The history that the coming reply answers; None where there is none to remember it by."""


def keep(outgoing: Outgoing, reasoning: Reasoning, engine: str) -> Kept:
    """The request with its dropped thoughts, and its template asked to keep them."""
    if outgoing.path != CHAT_PATH:
        return Kept(outgoing, None)
    try:
        members = splice.members(outgoing.body)
        messages = _raws.decode(members["messages"])
        place, given = _given(messages, reasoning)
        kwargs = _template(members) if engine in TEMPLATE_ENGINES else None
    except (*_FAILURES, KeyError):
        return Kept(outgoing, None)  # what no one can read is left to the engine, which says so
    if given is None:
        return Kept(outgoing, place)
    edit: dict[str, Any] = {"edit": EDIT, "messages": list(given)}
    changed: dict[str, bytes | Raw] = dict(members)
    if given:
        changed["messages"] = b"[" + b",".join(bytes(given.get(at, raw)) for at, raw in enumerate(messages)) + b"]"
    if kwargs is not None:
        changed[TEMPLATE_MEMBER] = msgspec.json.encode(kwargs)
        edit["template"] = dict(KEEP_THINKING)
    if not given and kwargs is None:
        return Kept(outgoing, place)
    edits = [*msgspec.json.decode(outgoing.edits or "[]"), edit]
    body, text = splice.rebuild(changed), msgspec.json.encode(edits).decode()
    return Kept(msgspec.structs.replace(outgoing, pieces=(body,), edited=True, shared=None, edits=text), place)


def _given(messages: list[Raw], reasoning: Reasoning) -> tuple[bytes, dict[int, bytes] | None]:
    """(the place of the coming reply, the messages that get a thought back); None where no turn is the model's."""
    place, given, spoke = b"", dict[int, bytes](), False
    for at, raw in enumerate(messages):
        message = msgspec.json.decode(raw)
        said = echo.turn(message)
        if said is None:
            continue
        if said[0] == "assistant" and isinstance(message, dict):
            spoke = True
            text = "" if thought(message) else reasoning.find(place, said)
            if text:
                told = msgspec.json.encode(text)
                given[at] = splice.rebuild({**splice.members(bytes(raw)), **dict.fromkeys(REASONING_MEMBERS, told)})
        place = echo.step(place, said)
    return place, given if spoke else None


def _template(members: dict[str, Raw]) -> dict[str, Any] | None:
    """The template's variables with ours among them; None where they already say the same."""
    asked = msgspec.json.decode(members.get(TEMPLATE_MEMBER, b"null"), type=dict[str, Any] | None) or {}
    wanted = {**asked, **KEEP_THINKING}
    return None if wanted == asked else wanted
