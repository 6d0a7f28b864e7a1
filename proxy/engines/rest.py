"""The rest of a generation that was given up, as an answer tells it, and the end of the call's answer with it.

Owns reading ids and log prob entries as they stand in an answer, and putting the rest where the giving up stands in
the end of a stream or in a whole body: all else of that end stays the engine's. It must not ask anybody anything, nor
know which engine it reads. The one non-obvious fact: what the client was given is the beginning of the whole message,
or the rest cannot be told: nothing is made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from forge.proxy.engines.base import Rest
from forge.proxy.engines.shapes import decode_object
from forge.proxy.splice import UNREADABLE
from forge.proxy.sse import EventTooLarge, Splitter

THOUGHTS: Final = ("reasoning", "reasoning_content")


@dataclass(slots=True)
class Said:
    """The one choice of an answer."""

    ids: list[int] = field(default_factory=list)
    log_probs: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    """Of a raw completion."""
    prompt_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    end: dict[str, Any] = field(default_factory=dict)
    """The choice that has the finish reason."""

    @property
    def pieces(self) -> list[str]:
        return [entry["token"] for entry in self.log_probs]


def said(body: bytes) -> Said:
    """Of a stream or a whole body. Raises one of ``INEXACT`` where it cannot be read, or tells of several choices."""
    found = Said()
    for document in _documents(body):
        extension = document.get("sglext") or {}
        found.ids = (extension.get("output_ids") or [found.ids])[0]
        found.prompt_ids = document.get("prompt_token_ids") or extension.get("input_ids") or found.prompt_ids
        for choice in document.get("choices") or ():
            if choice["index"]:
                raise ValueError("it has several choices")
            found.ids = found.ids + (choice.get("token_ids") or [])
            found.prompt_ids = choice.get("prompt_token_ids") or found.prompt_ids
            found.log_probs += _entries(choice.get("logprobs") or {})
            found.text += choice.get("text") or ""
            if choice.get("finish_reason"):
                found.finish_reason, found.end = choice["finish_reason"], choice
    return found


def _documents(body: bytes) -> Iterator[dict[str, Any]]:
    """Each event's, or the body's own."""
    try:
        if body.lstrip().startswith(b"{"):
            yield decode_object(body)
            return
        for event in Splitter().feed(body):
            if event.data and event.data != b"[DONE]":
                yield decode_object(event.data)
    except (*UNREADABLE, EventTooLarge) as failure:
        raise ValueError(f"it cannot be read: {failure}") from failure


def _entries(log_probs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """In chat's form. A raw completion's alternatives stay the object that they are there."""
    if "token_logprobs" not in log_probs:
        return list(log_probs.get("content") or ())
    tops = log_probs.get("top_logprobs") or [None] * len(log_probs["tokens"])
    rows = zip(log_probs["tokens"], log_probs["token_logprobs"], tops, strict=True)
    return [{"token": token, "logprob": value, "top_logprobs": top} for token, value, top in rows]


def end_of_stream(withheld: bytes, given: Mapping[str, Any], text: str, rest: Rest) -> bytes:
    """The events by which the stream ended in the giving up, with the rest in its place. ``given``: the message that
    the client has; ``text``: the same of a raw completion. Raises one of ``INEXACT``."""
    events = []
    for event in Splitter().feed(withheld):
        if not event.data or event.data == b"[DONE]":
            events.append(event.raw)
            continue
        document = decode_object(event.data)
        for choice in document.get("choices") or ():
            if not choice.get("finish_reason"):
                continue
            if "delta" in choice:
                choice["delta"] = missing(given, rest.message)
            else:
                choice["text"] = _after(text, rest.text)
            _settle(choice, rest, len(text), beside=b'"sglext"' not in withheld)
        events.append(event.with_data(_counted(document, rest)))
    return b"".join(events)


def end_of_body(body: bytes, rest: Rest) -> bytes:
    """The whole body that ended in the giving up, with the rest in its place. Raises one of ``INEXACT``."""
    document = decode_object(body)
    (choice,) = document["choices"]
    if "message" in choice:
        choice["message"] = dict(rest.message)
    else:
        choice["text"] = rest.text
    _settle(choice, rest, 0, beside="sglext" not in document)
    return _counted(document, rest)


def _settle(choice: dict[str, Any], rest: Rest, offset: int, *, beside: bool) -> None:
    """Log probs, how it ends, and ids where those stand beside the text."""
    if beside:
        choice["token_ids"] = (choice.get("token_ids") or []) + rest.ids
    before = choice.get("logprobs") or {}
    entries = [*_entries(before), *rest.log_probs]
    offset = next(iter(before.get("text_offset") or ()), offset)
    choice["logprobs"] = _raw_log_probs(entries, offset) if "text" in choice else {"content": entries}
    if "routed_experts" in choice:
        choice["routed_experts"] = None  # those of one part are not those of the answer
    choice["finish_reason"] = rest.finish_reason
    choice.update({name: value for name, value in rest.members.items() if name in choice or value is not None})


def _raw_log_probs(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "text_offset": offsets,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "tokens": [entry["token"] for entry in entries],
        "top_logprobs": [entry["top_logprobs"] for entry in entries],
    }


def _counted(document: dict[str, Any], rest: Rest) -> bytes:
    """With the rest's tokens in what counts or lists all tokens."""
    if usage := document.get("usage"):
        for name in ("completion_tokens", "total_tokens"):
            usage[name] += len(rest.ids)
    extension = document.get("sglext") or {}
    if ids := extension.get("output_ids"):
        extension["output_ids"] = [ids[0] + rest.ids]
    return msgspec.json.encode(document)


def missing(given: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The delta between the message that the client has and the whole one."""
    delta: dict[str, Any] = {}
    thought = next((name for name in THOUGHTS if whole.get(name)), THOUGHTS[0])
    for name, had in ((thought, given.get("reasoning")), ("content", given.get("content"))):
        if text := _after(had or "", whole.get(name) or ""):
            delta[name] = text
    calls, had_calls = whole.get("tool_calls") or [], given.get("tool_calls") or []
    if len(calls) < len(had_calls):
        raise ValueError("a call of a tool that was given is not in the whole message")
    parts = [_part(place, call, had_calls[place : place + 1]) for place, call in enumerate(calls)]
    if any(parts):
        delta["tool_calls"] = [part for part in parts if part]
    return delta


def _part(place: int, call: Mapping[str, Any], had: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    function = call["function"]
    if not had:
        named = {"name": function["name"], "arguments": function["arguments"]}
        return {"index": place, "id": call["id"], "type": "function", "function": named}
    before = had[0]["function"]
    if before["name"] != function["name"]:
        raise ValueError("a call of a tool has another name in the whole message")
    arguments = _after(before["arguments"], function["arguments"])
    return {"index": place, "function": {"arguments": arguments}} if arguments else None


def _after(had: str, whole: str) -> str:
    """What comes after that which the client has; some parsers strip white space. Raises ``ValueError``."""
    for before, text in ((had, whole), (had.lstrip(), whole.lstrip())):
        if text.startswith(before):
            return text[len(before) :]
    if had.strip() == whole.strip():
        return ""
    raise ValueError("the whole message does not begin with what was given")
