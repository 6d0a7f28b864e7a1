"""Parsers and translators against bytes that were spoiled: never anything but their own errors, never a hang.

Documents are real ones with a few values or bytes changed, which reaches further than noise does. Each runs a little
here, and thousands of times where slow tests run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import BadRequest, Overrides, Target
from forge.proxy.door.bodies import DECODERS, decompress
from forge.proxy.door.refusal import Refused
from forge.proxy.door.routes import route
from forge.proxy.engines import ENGINES
from forge.proxy.recording.decode import decode_call
from forge.proxy.redaction import redact
from forge.proxy.sse import Splitter
from forge.storage.frames import Close, Open, decode
from forge.storage.journal_segment import payloads
from tests.faults.soak import examples, figures

GOLDEN: Final = Path(__file__).parents[1] / "proxy" / "golden" / "vllm-0.32.0"
ANSWERS: Final = [path.read_bytes() for path in sorted(GOLDEN.glob("*-asked.txt"))]
FIGURES: Final = figures(30, 1000, 8000)

TOOL = {"name": "run", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
CHAT: Final[dict[str, Any]] = {
    "model": "m",
    "stream": True,
    "max_tokens": 5,
    "temperature": 0.5,
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "auto",
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "developer", "content": "s"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"x":"1"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "t"}]},
    ],
}
RESPONSES: Final[dict[str, Any]] = {
    "model": "m",
    "stream": True,
    "instructions": "i",
    "tools": [{"type": "function", **TOOL}, {"type": "custom", "name": "patch", "format": {"type": "text"}}],
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}], "encrypted_content": None},
        {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "t"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "p"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "t"}]},
    ],
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "store": False,
}
MESSAGES: Final[dict[str, Any]] = {
    "model": "m",
    "stream": True,
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "run", "input_schema": {"type": "object"}}],
    "stop_sequences": ["x"],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "r", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "run", "input": {"x": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "t"}]},
    ],
}
GEMINI: Final[dict[str, Any]] = {
    "systemInstruction": {"parts": [{"text": "s"}]},
    "tools": [{"functionDeclarations": [TOOL]}],
    "generationConfig": {"maxOutputTokens": 5, "thinkingConfig": {"includeThoughts": True}},
    "contents": [
        {"role": "user", "parts": [{"text": "u"}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "run", "args": {"x": 1}}, "thoughtSignature": "c2ln"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "run", "response": {"output": "t"}}}]},
    ],
}
COMPLETIONS: Final[dict[str, Any]] = {"model": "m", "prompt": ["a", "b"], "stream": True, "n": 2, "logprobs": 1}
REQUESTS: Final = {
    "chat": CHAT,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "gemini": GEMINI,
    "completions": COMPLETIONS,
}
ODD: Final = st.one_of(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=10) | st.sampled_from(["user", "tool", "text", "c1", "{}", "data:,", "\0", "http://["]),
    st.just([]) | st.just({}) | st.just([[]]) | st.just({"type": "text"}) | st.just({"type": 1, "text": []}),
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in members:
        yield (*path, name)
        yield from places(value, (*path, name))


@st.composite
def spoiled(draw: st.DrawFn, document: dict[str, Any]) -> bytes:
    """The document with some values replaced, taken out or doubled, and sometimes a byte changed."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 4))):
        *above, last = draw(st.sampled_from(list(places(document)) or [("x",)]))
        holder = document
        for step in above:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "remove":
                del holder[last]
            case "double" if isinstance(holder, list):
                holder.insert(last, copy.deepcopy(holder[last]))
            case _:
                holder[last] = copy.deepcopy(draw(ODD))
    text = bytearray(json.dumps(document).encode())
    if draw(st.integers(0, 4)) == 0:
        text[draw(st.integers(0, len(text) - 1))] = draw(st.integers(0, 255))
    return bytes(text)


@FIGURES
@pytest.mark.parametrize("name", REQUESTS)
def test_a_spoiled_request_is_translated_or_refused(name: str, number: int) -> None:
    """What is sent on is JSON (bytes that are no text go through as they came), and an answer can be made for it."""
    dialect, engine = DIALECTS[name], ENGINES["vllm"]

    def body(text: bytes) -> None:
        overrides = Overrides(sampling={"temperature": 1.0}, model="served", context_len=4096)
        try:
            sent = dialect.request(text, engine=engine, overrides=overrides, call_id="c" * 26, target=Target("m", True))
        except BadRequest as refused:
            json.loads(dialect.error(400, code=refused.code, message=str(refused), param=refused.param))
            return
        assert isinstance(json.loads(sent.body.decode(errors="replace")), dict)
        answer = dialect.answer(sent, engine=engine, call_id="c" * 26, created=1)
        list(answer.feed(ANSWERS[0]))
        list(answer.finish())

    examples(number, spoiled(REQUESTS[name]), body)


@FIGURES
@pytest.mark.parametrize("name", REQUESTS)
def test_a_spoiled_answer_ends_the_clients_all_the_same(name: str, number: int) -> None:
    """Whatever the engine says, cut anywhere: pieces come out or not, and the decoder makes a row of it."""
    dialect, engine = DIALECTS[name], ENGINES["vllm"]
    request = json.dumps(REQUESTS[name]).encode()
    sent = dialect.request(request, engine=engine, overrides=Overrides(), call_id="c" * 26, target=Target("m", True))

    def body(case: tuple[bytes, list[tuple[int, int]], int]) -> None:
        text, changes, cut = case
        changed = bytearray(text)
        for at, byte in changes:
            changed[at % len(changed)] = byte
        answer = dialect.answer(sent, engine=engine, call_id="c" * 26, created=1)
        for start in range(0, len(changed), cut):
            list(answer.feed(bytes(changed[start : start + cut])))
        list(answer.finish())
        opened = Open(
            **{"call_id": "c", "session_id": "s", "run_id": "r", "boot": 1, "mono_us": 1, "writer": 0, "wall_us": 1},
            **{"dialect": name, "path": "/", "stream": True, "request_len": len(request), "engine": "vllm"},
        )
        close = Close(call_id="c", status="ok", content_type="text/event-stream", http_status=200)
        assert decode_call(opened, request, sent.body, bytes(changed), close)

    changes = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6)
    examples(number, st.tuples(st.sampled_from(ANSWERS), changes, st.sampled_from([7, 100, 1 << 20])), body)


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_a_usage_chunk_that_is_no_text_goes_as_it_came(name: str) -> None:
    dialect, engine = DIALECTS[name], ENGINES["vllm"]
    request = {n: v for n, v in REQUESTS[name].items() if n != "stream_options"}
    sent = dialect.request(json.dumps(request).encode(), engine=engine, overrides=Overrides(), call_id="c" * 26)
    event = b'data: {"choices":[],"\x80":1,"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    answer = dialect.answer(sent, engine=engine, call_id="c" * 26, created=1)
    assert event in b"".join(piece.data for piece in [*answer.feed(event), *answer.finish()])


@FIGURES
def test_spoiled_bytes_are_bodies_frames_events_and_paths_or_errors(number: int) -> None:
    def body(case: tuple[bytes, str]) -> None:
        noise, text = case
        for encoding in DECODERS:
            with suppress(Refused):
                assert len(decompress(encoding, noise, 1000)) <= 1000
        splitter = Splitter(cap=1000)
        events = [event for start in range(0, len(noise), 3) for event in splitter.feed(noise[start : start + 3])]
        assert b"".join(event.raw for event in events) + bytes(splitter.rest) == noise
        for _, payload in payloads(noise, 1):
            assert payload is None or decode(payload)
        route(text, text)
        redact(text)
        redact(noise)

    heads = st.sampled_from(
        [b"\x1f\x8b\x08", b"(\xb5/\xfd", b"\x78\x9c", b"data: ", b"\r\n\r\n", b"event:", b"\x05\0\0\0"]
    )
    noise = st.lists(heads | st.binary(max_size=20), max_size=8).map(b"".join)
    examples(number, st.tuples(noise, st.text(max_size=60)), body)
