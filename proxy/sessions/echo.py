"""The normal form of a history: what counts as the same turn, however a harness echoes it.

For identity only, never for training: rows hold what was sent. Owns how a turn of any wire format becomes one value,
and which parts of it are noise; it must not know sessions or engines. Pure. The one non-obvious fact: harnesses
re-serialise arguments, strip ids to letters and digits, move cache marks and drop thinking, but they keep what was
*said*: so a member that is not known as noise counts, and one that is empty does not.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import msgspec

NOISE: Final = frozenset(
    {
        *("cache_control", "status", "annotations", "signature", "encrypted_content", "thoughtSignature"),
        *("thought_signature", "reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"),
        *("audio", "logprobs", "output_config", "provider_specific_fields", "index"),
    }
)
"""Members of a turn or a part of one that say nothing of what was said."""
THOUGHTS: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
"""Types of items and blocks that are thinking."""
STATE_MARKS: Final = ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "[[OPENCLAW_INTERNAL_CONTEXT_BEGIN]]")
"""Begin a message of OpenClaw's own state, which it takes out and puts at the end of every request."""
NONCES: Final = (
    # Claude Code: a first line of the system prompt that differs per session and per agent.
    re.compile(r"x-anthropic-billing-header:[^\n]*\n?"),
    # OpenClaw's minute stamp and ZeroClaw's second stamp before a user's text.
    re.compile(r"\[(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?: [^\]\n]{1,24})?\] ?"),
)
"""What stands at the head of a text and is another in every session or turn."""

_THINK: Final = re.compile(r"<think>.*?</think>", re.DOTALL)
_ID_NOISE: Final = re.compile(r"[^0-9A-Za-z]")
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
_CALL_TYPES: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_RESULT_TYPES: Final = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
_SIZE: Final = 16

Turn = list[Any]
"""[role, parts]; a part is ["t", text], ["c", name, arguments, id], ["r", id, parts] or a JSON value."""


def turn(item: Any) -> Turn | None:
    """A message, item or content of any wire format; None for one that says nothing of its own (thinking, a moved
    state message)."""
    if isinstance(item, str):
        item = {"role": "user", "content": item}
    if not isinstance(item, dict):
        return ["user", [["j", item]]]
    kind = _word(item, "type")
    if kind in THOUGHTS:
        return None
    if kind in _CALL_TYPES:
        return ["assistant", [_call(item)]]
    if kind in _RESULT_TYPES:
        return ["tool", [["r", alnum(item.get("call_id") or item.get("id")), parts(item.get("output"))]]]
    role = _word(item, "role") or "user"
    said = parts(item.get("content", item.get("parts")), assistant=role in ("assistant", "model"))
    if role == "tool":
        return ["tool", [["r", alnum(item.get("tool_call_id")), said]]]
    if role == "user" and said and said[0][0] == "t" and said[0][1].startswith(STATE_MARKS):
        return None
    calls = item.get("tool_calls")
    said += [_call(call) for call in calls] if isinstance(calls, list) else []
    rest = {name: value for name, value in item.items() if name not in _READ}
    return [role, said, more] if (more := kept(rest)) else [role, said]


_READ: Final = frozenset({"role", "type", "id", "content", "parts", "tool_calls", "tool_call_id"})
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


def parts(content: Any, *, assistant: bool = False) -> list[Any]:
    """Content as parts; empty texts and thinking are none."""
    if content is None:
        return []
    if not isinstance(content, list):
        content = [content]
    found = [_part(part, assistant=assistant) for part in content]
    return [part for part in found if part is not None]


def _part(part: Any, *, assistant: bool) -> Any:
    if isinstance(part, str):
        return _text(part, assistant=assistant)
    if not isinstance(part, dict):
        return ["j", part]
    kind = _word(part, "type")
    if kind in THOUGHTS or part.get("thought") is True:
        return None
    if kind == "tool_use":
        return _call(part)
    if kind == "tool_result":
        rest = ["error"] if part.get("is_error") else []
        return ["r", alnum(part.get("tool_use_id")), parts(part.get("content")), *rest]
    if isinstance(part.get("functionCall"), dict):
        return _call(part["functionCall"])
    if isinstance(answer := part.get("functionResponse"), dict):
        return ["r", alnum(answer.get("id")), answer.get("name"), answer.get("response")]
    text = part.get("text")
    if isinstance(text, str) and (not kind or kind in _TEXT_TYPES):
        return _text(text, assistant=assistant)
    return ["j", kept(part)]


def _word(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""


def _text(text: str, *, assistant: bool) -> list[Any] | None:
    if assistant and "<think>" in text:
        text = _THINK.sub("", text)
    text = text.strip()
    for nonce in NONCES:
        if (found := nonce.match(text)) is not None:
            text = text[found.end() :].lstrip()
    return ["t", text] if text else None


def _call(call: Any) -> list[Any]:
    """A tool call of any wire format: chat's, an item, a block, a functionCall."""
    if not isinstance(call, dict):
        return ["j", call]
    function = call.get("function")
    said = function if isinstance(function, dict) else call
    given = next((said[name] for name in ("arguments", "input", "args", "action") if name in said), None)
    name = said.get("name") or call.get("type")
    space = call.get("namespace")
    return ["c", f"{space}.{name}" if space else name, arguments(given), alnum(call.get("call_id") or call.get("id"))]


def arguments(given: Any) -> Any:
    """A tool call's arguments as a value; text that is no JSON stays text."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return given.strip() or {}
    return {} if given is None else given


def alnum(value: Any) -> str:
    """An id without what harnesses take out of it."""
    return _ID_NOISE.sub("", value) if isinstance(value, str) else ""


def kept(members: dict[str, Any]) -> dict[str, Any]:
    """A turn's or a part's members that say something. What stands deeper is what was said, and stays."""
    return {name: value for name, value in members.items() if name not in NOISE and value not in _EMPTY}


def digest(value: Any) -> bytes:
    """Of a JSON value, in whatever order its members stand."""
    return hashlib.blake2b(msgspec.json.encode(value, order="sorted"), digest_size=_SIZE).digest()


def spoken(said: Turn) -> bytes:
    """What a turn says, whatever its tool calls are called."""
    return digest([part[:3] if part and part[0] == "c" else part for part in said[1]])


def step(place: bytes, said: Turn) -> bytes:
    """A digest of a whole history: of what came before a turn, and the turn."""
    return onward(place, digest(said))


def onward(place: bytes, said: bytes) -> bytes:
    """The same with the turn's digest."""
    return hashlib.blake2b(place + said, digest_size=_SIZE).digest()
