"""Gemini's contents as a chat history.

Owns what each part becomes, and which call each result answers: ids are optional in this format, so a result without
one answers the first open call of its name. It must not know the engine, nor keep anything between calls. The one
non-obvious fact: the pieces of one streamed answer come back as several contents (or as one), and must be one
assistant message again, or the next prompt would not extend the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.assistant import AssistantTurn
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.gemini_media import MEDIA, chat_media
from forge.proxy.dialects.gemini_node import Node
from forge.proxy.dialects.gemini_signature import signed
from forge.proxy.dialects.spacing import spaced

MODEL: Final = "model"
SYSTEM: Final = "system"
CALL: Final = "functionCall"
RESULT: Final = "functionResponse"
OUTPUT: Final = "output"
"""The member of a result that is the function's output, where it is the only one."""
ABOUT: Final = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})
"""Members of a part that say something of it, not what it is."""


@dataclass(slots=True)
class _Open:
    """A call that has no result yet."""

    call_id: str
    name: str
    minted: bool


@dataclass(slots=True)
class _Assistant:
    """The assistant message that is being put together."""

    content: str | None = None
    thoughts: str = ""
    """What stands in thought parts."""
    signed: str | None = None
    """The same from our signatures, which are whole where a harness shortens its thoughts."""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        thought = self.thoughts if self.signed is None else self.signed
        return AssistantTurn(thought, self.content, self.calls).message()


class History:
    """Contents in, messages out."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.notices: list[Mapping[str, Any]] = []
        """What could not be said in chat."""
        self._turn: _Assistant | None = None
        self._open: list[_Open] = []
        self._seen = 0
        """Calls and results that needed an id, so far: the number of the next one that is minted."""

    def system(self, instruction: Node | str) -> None:
        if isinstance(instruction, str):
            texts = [instruction]
        else:
            parts = instruction.nodes("parts") if "parts" in instruction else [instruction]
            texts = [text for part in parts if (text := part.get("text", str)) is not None]
        if any(texts):
            self.messages.append({"role": SYSTEM, "content": "\n".join(texts)})

    def add(self, content: Node) -> None:
        parts = content.nodes("parts")
        role = content.get("role", str)
        if role == SYSTEM:
            self.close()
            self.system(content)
        elif role == MODEL or (role is None and any(CALL in part for part in parts)):
            self._model(parts)
        else:
            self.close()
            self._user(parts)

    def close(self) -> None:
        """Ends the open assistant message."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None

    def _model(self, parts: Sequence[Node]) -> None:
        turn = self._turn = self._turn or _Assistant()
        for part in parts:
            signature = part.get("thoughtSignature", str)
            if signature and (reasoning := signed(signature)) is not None:
                turn.signed = (turn.signed or "") + reasoning
            call = part.node(CALL)
            text = part.get("text", str)
            if call is not None:
                turn.calls.append(self._call(call))
            elif text is not None and part.get("thought", bool):
                turn.thoughts += text
            elif text:
                turn.content = (turn.content or "") + text
            elif text is None:
                self._dropped(part)

    def _call(self, call: Node) -> dict[str, Any]:
        name = call.get("name", str) or ""
        call_id = call.get("id", str)
        self._open.append(_Open(call_id or self._mint(), name, minted=not call_id))
        function = {"name": name, "arguments": _spaced(call, "args")}
        return {"id": self._open[-1].call_id, "type": "function", "function": function}

    def _mint(self) -> str:
        """The same id for the same place of a history, however much follows."""
        self._seen += 1
        return f"call_{self._seen - 1}"

    def _user(self, parts: Sequence[Node]) -> None:
        """Results come first: chat wants them right behind their calls."""
        rest: list[dict[str, Any]] = []
        answered = False
        for part in parts:
            result = part.node(RESULT)
            if result is not None:
                answered = True
                self._result(result)
            elif (text := part.get("text", str)) is not None:
                rest.append({"type": "text", "text": text})
            elif any(kind in part for kind in MEDIA):
                rest.append(chat_media(part))
            else:
                self._dropped(part)
        if rest or not answered:
            self.messages.append({"role": "user", "content": _joined(rest)})

    def _result(self, result: Node) -> None:
        call_id = self._answered(result.get("id", str), result.get("name", str))
        content: Any = _output(result)
        media = [chat_media(part) for part in result.nodes("parts")]
        if media:
            content = [{"type": "text", "text": content}, *media]
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _answered(self, call_id: str | None, name: str | None) -> str:
        """The id of the call that this result answers."""
        found = next((call for call in self._open if call_id and call.call_id == call_id), None)
        if found is None:
            found = next((call for call in self._open if call.name == name and (call.minted or not call_id)), None)
        if found is None:
            return call_id or self._mint()
        self._open.remove(found)
        return found.call_id

    def _dropped(self, part: Node) -> None:
        self.notices += [{"edit": "dropped_part", "type": kind} for kind in part if kind not in ABOUT]


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Text alone is a string, as most templates want it."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _spaced(node: Node, name: str) -> str:
    """An object's text, spaced as models write JSON."""
    value = node.raw(name)
    if value is None:
        return "{}"
    try:
        return spaced(bytes(value))
    except splice.UNREADABLE as failure:
        raise BadRequest(f"`{node.place(name)}` cannot be read: {failure}", param=node.place(name)) from failure


def _output(result: Node) -> str:
    """A result as text: its ``output``, where that is all it says, else the whole of it."""
    response = result.node("response") if bytes(result.raw("response") or Raw(b"")).startswith(b"{") else None
    if response is None or list(response) != [OUTPUT]:
        return _spaced(result, "response") if "response" in result else ""
    if bytes(response.raw(OUTPUT) or b"").startswith(b'"'):
        return str(response.get(OUTPUT, str))
    return _spaced(response, OUTPUT)
