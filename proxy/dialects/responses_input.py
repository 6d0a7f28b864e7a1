"""A responses request as a chat request.

Owns what each input item becomes as a message; the tools' names are ``responses_tools``'. It must not know the
engine, nor keep anything between calls: what a later call needs comes back in its input. The one non-obvious fact:
one answer of the engine comes back as several items (reasoning, text, calls), and must be one assistant message
again, or the next prompt would not extend the last one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.assistant import AssistantTurn
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.responses_tools import (
    LOCAL_SHELL,
    Tool,
    Tools,
    custom_arguments,
    flat_name,
    translate_tools,
)

REASONING_MARK: Final = "forge1."
"""Begins an ``encrypted_content`` of ours: the engine's own reasoning, which so needs no store."""
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"})


NULL: Final = Raw(b"null")


class Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    input_audio: Raw = NULL


class Item(msgspec.Struct):
    """Every field of every item that is translated."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Raw = NULL
    action: Raw = NULL
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    tools: list[Tool] | None = None


class _Head(msgspec.Struct):
    type: str = "message"


_list: Final = msgspec.json.Decoder(list[Raw])
_head: Final = msgspec.json.Decoder(_Head)
_item: Final = msgspec.json.Decoder(Item)
_output: Final = msgspec.json.Decoder(str | list[Part])


def hide_reasoning(text: str) -> str:
    return REASONING_MARK + base64.b64encode(text.encode()).decode()


class History:
    """Items in, messages out."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: list[Tool] = []
        """Declared in the input instead of in ``tools``."""
        self.notices: list[Mapping[str, Any]] = []
        """What could not be said in chat."""
        self._open: AssistantTurn | None = None
        self._images: list[dict[str, Any]] = []

    def add_input(self, value: Raw | bytes) -> None:
        """The request's ``input``: a text or a list of items."""
        text = bytes(value)
        if text.startswith(b'"'):
            self.messages.append({"role": "user", "content": msgspec.json.decode(text)})
            return
        try:
            for place, raw in enumerate(_list.decode(text)):
                self._add(raw, place)
        except splice.UNREADABLE as failure:
            raise BadRequest(f"`input` cannot be read: {failure}", param="input") from failure
        self._close()

    def _add(self, raw: Raw, place: int) -> None:
        kind = _head.decode(raw).type
        handler = _HANDLERS.get(kind)
        if handler is None:
            if kind == "item_reference":
                raise BadRequest(
                    f"input[{place}]: items are not stored here, so `item_reference` cannot be resolved; send the item",
                    code="item_not_found",
                    param="input",
                )
            self.notices.append({"edit": "dropped_item", "type": kind})
            return
        try:
            item = _item.decode(raw)
        except msgspec.ValidationError as failure:
            raise BadRequest(f"input[{place}] cannot be read: {failure}", param="input") from failure
        handler(self, item)

    def _message(self, item: Item) -> None:
        if item.role == "assistant":
            text = "".join(_texts(item.content))
            turn = self._turn()
            if turn.content is not None and not turn.calls:
                turn = self._turn(new=True)
            # Text after a call is the same message in chat: its content and its calls are two fields.
            turn.content = (turn.content or "") + text
            return
        self._close()
        role = "user" if item.role in (None, "user") else "system" if item.role == "developer" else item.role
        self.messages.append({"role": role, "content": self._content(item.content)})

    def _reasoning(self, item: Item) -> None:
        text = _reasoning_text(item)
        if text is None:
            self.notices.append({"edit": "dropped_item", "type": "reasoning", "cause": "not written by this engine"})
            return
        if not text:
            return
        turn = self._turn()
        if turn.content is not None or turn.calls:
            turn = self._turn(new=True)
        turn.reasoning += text

    def _function_call(self, item: Item) -> None:
        self._call(item, flat_name(item.name or "", item.namespace), item.arguments or "")

    def _custom_call(self, item: Item) -> None:
        self._call(item, flat_name(item.name or "", item.namespace), custom_arguments(item.input or ""))

    def _shell_call(self, item: Item) -> None:
        action = msgspec.json.decode(item.action, type=dict[str, Any] | None) or {}
        arguments = {name: value for name, value in action.items() if name not in ("type", "env") and value is not None}
        self._call(item, LOCAL_SHELL, msgspec.json.encode(arguments).decode())

    def _call(self, item: Item, name: str, arguments: str) -> None:
        turn = self._turn()
        call_id = item.call_id or item.id or ""
        turn.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def _call_output(self, item: Item) -> None:
        images, self._images = self._images, []
        self._close()
        content, moved = _output_content(item.output)
        self.messages.append({"role": "tool", "tool_call_id": item.call_id or item.id or "", "content": content})
        if moved:
            self.notices.append({"edit": "moved_image", "call_id": item.call_id, "count": len(moved)})
        self._images = images + moved

    def _more_tools(self, item: Item) -> None:
        self.tools += item.tools or ()

    def _turn(self, *, new: bool = False) -> AssistantTurn:
        if self._open is None or new:
            self._close()
            self._open = AssistantTurn()
        return self._open

    def _close(self) -> None:
        """Ends the open assistant message; images of tool results follow the results as a user message."""
        if self._open is not None:
            self.messages.append(self._open.message())
            self._open = None
        if self._images:
            self.messages.append({"role": "user", "content": self._images})
            self._images = []

    def _content(self, content: str | list[Part] | None) -> str | list[dict[str, Any]]:
        if not isinstance(content, list):
            return content or ""
        parts = [part for part in map(_chat_part, content) if part is not None]
        for part in content:
            if part.type not in _TEXT_PARTS and _chat_part(part) is None:
                self.notices.append({"edit": "dropped_part", "type": part.type})
        if all(part["type"] == "text" for part in parts):
            return "\n".join(part["text"] for part in parts)
        return parts


_HANDLERS: Final = {
    "message": History._message,
    "reasoning": History._reasoning,
    "function_call": History._function_call,
    "custom_tool_call": History._custom_call,
    "local_shell_call": History._shell_call,
    "function_call_output": History._call_output,
    "custom_tool_call_output": History._call_output,
    "local_shell_call_output": History._call_output,
    "additional_tools": History._more_tools,
}


def _texts(content: str | list[Part] | None) -> Sequence[str]:
    if isinstance(content, list):
        return [part.text or part.refusal or "" for part in content if part.type in _TEXT_PARTS]
    return (content or "",)


def _chat_part(part: Part) -> dict[str, Any] | None:
    if part.type in _TEXT_PARTS:
        return {"type": "text", "text": part.text or part.refusal or ""}
    if part.type == "input_image" and part.image_url:
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": {"url": part.image_url} | detail}
    if part.type == "input_audio" and part.input_audio != NULL:
        return {"type": "input_audio", "input_audio": part.input_audio}
    return None


def _reasoning_text(item: Item) -> str | None:
    """The engine's own reasoning; None for what another model hid."""
    if item.encrypted_content is None:
        return "".join(_texts(item.content or item.summary))
    if not item.encrypted_content.startswith(REASONING_MARK):
        return None
    try:
        return base64.b64decode(item.encrypted_content.removeprefix(REASONING_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _output_content(output: Raw) -> tuple[str, list[dict[str, Any]]]:
    """A tool result's text, and the images that chat does not allow there."""
    if output == NULL:
        return "", []
    try:
        value = _output.decode(output)
    except msgspec.ValidationError:
        return bytes(output).decode(), []
    if isinstance(value, str):
        return value, []
    parts = [part for part in map(_chat_part, value) if part is not None]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return text, [part for part in parts if part["type"] != "text"]


def declared_tools(value: Raw | bytes, more: Sequence[Tool]) -> Tools:
    try:
        tools = msgspec.json.decode(value, type=list[Tool] | None) or []
    except splice.UNREADABLE as failure:
        raise BadRequest(f"`tools` cannot be read: {failure}", param="tools") from failure
    return translate_tools([*tools, *more])
