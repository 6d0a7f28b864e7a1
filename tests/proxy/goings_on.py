"""A call whose generation is given up for new weights, in every format, and what its client has of it in the end."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from tests.engine import ScriptedEngine, Turn
from tests.proxy.serving import WAIT_S, Serving, events, serving
from tests.script import Gate, Served

Json = dict[str, Any]
TOOL = {"type": "object", "properties": {"cmd": {"type": "string"}}}
NAMED = {"name": "run", "description": "Runs it.", "parameters": TOOL}
TEXT = [{"role": "user", "content": "hello"}]
BODIES: dict[str, Json] = {
    "chat": {"messages": TEXT, "tools": [{"type": "function", "function": NAMED}], "logprobs": True},
    "completions": {"prompt": "hello there", "max_tokens": 64, "logprobs": 1},
    "responses": {"input": "hello", "tools": [NAMED | {"type": "function"}]},
    "messages": {
        "max_tokens": 64,
        "messages": TEXT,
        "tools": [{"name": "run", "description": "Runs it.", "input_schema": TOOL}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
        "tools": [{"functionDeclarations": [NAMED]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    },
}
PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses", "messages": "/messages"}


async def say(s: Serving, dialect: str, *, stream: bool, **members: Any) -> tuple[int, str]:
    body = BODIES[dialect] | members
    url = s.proxy.base_url + PATHS.get(dialect, "")
    if dialect == "gemini":
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        url = f"{s.proxy.base_url.removesuffix('/v1')}/v1beta/models/policy:{method}"
    else:
        body = body | {"model": "policy", "stream": stream}
    if dialect in ("chat", "completions") and stream:
        body |= {"stream_options": {"include_usage": True}}
    async with s.http.post(url, json=body) as answer:
        return answer.status, await answer.text()


async def given_up(
    s: Serving, dialect: str, *, stream: bool, after: int, times: int = 1, since: int = 0, **members: Any
) -> tuple[int, str]:
    """Given up ``times`` times after as many chunks, each time for a new version, the first one after ``since``."""
    s.engine.served.clear()
    s.engine.gate = Gate(is_open=False)
    call = asyncio.ensure_future(say(s, dialect, stream=stream, **members))
    for version in range(since + 1, since + times + 1):
        s.engine.gate.release(after)
        async with asyncio.timeout(WAIT_S):
            while not s.engine.gate.waiting.is_set():
                if call.done():
                    return await call
                await asyncio.sleep(0.001)
            asked = len(s.engine.served)
            await s.control.publish(version=version, path=f"/w/{version}", mode="abort")
            while len(s.engine.served) == asked and not call.done():
                await asyncio.sleep(0.001)
    s.engine.gate.open()
    async with asyncio.timeout(WAIT_S):
        return await call


async def uncut(tmp: Path, engine: ScriptedEngine, dialect: str, *, stream: bool, turn: Turn, **members: Any) -> Json:
    """What a client has where nothing is given up."""
    async with serving(tmp / "uncut", engine) as s:
        s.engine.script(turn)
        status, text = await say(s, dialect, stream=stream, **members)
        assert status == 200, text
        return told(dialect, text)


async def cut_everywhere(
    s: Serving, dialect: str, *, stream: bool, turn: Turn, step: int, unbroken: Json
) -> list[list[Served]]:
    """Gives the same answer up after every ``step`` chunks until it ends before it can be; what the engine served of
    each. The client has the same every time."""
    served = list[list[Served]]()
    while len(s.engine.served) != 1 or not served:
        s.engine.turns.clear()
        s.engine.script(turn)
        cut = len(served)
        status, text = await given_up(s, dialect, stream=stream, after=cut * step + 1, since=cut)
        assert (status, told(dialect, text)) == (200, unbroken), cut
        served.append(list(s.engine.served))
    assert [len(parts) for parts in served] == [2] * (len(served) - 1) + [1]
    return served


def told(dialect: str, text: str) -> Json:
    """What a client makes of an answer, streamed or whole, without ids and times of its own."""
    values = events(text) if re.search(r"^data: ", text, re.MULTILINE) else [json.loads(text)]
    return {"chat": _chat, "completions": _raw, "responses": _responses, "messages": _messages, "gemini": _gemini}[
        dialect
    ](values)


def _chat(values: list[Json]) -> Json:
    found: Json = {"text": "", "thought": "", "calls": {}, "finish": None, "usage": None, "log_probs": []}
    for value in values:
        found["usage"] = value.get("usage") or found["usage"]
        for choice in value["choices"]:
            said = choice.get("delta") or choice.get("message") or {}
            found["text"] += said.get("content") or ""
            found["thought"] += said.get("reasoning") or said.get("reasoning_content") or ""
            for place, call in enumerate(said.get("tool_calls") or ()):
                part = found["calls"].setdefault(call.get("index", place), {"name": "", "arguments": ""})
                for name in part:
                    part[name] += call["function"].get(name) or ""
            found["finish"] = choice["finish_reason"] or found["finish"]
            entries = (choice.get("logprobs") or {}).get("content") or []
            found["log_probs"] += [(e["token"], e["logprob"], len(e["top_logprobs"])) for e in entries]
    return found


def _raw(values: list[Json]) -> Json:
    found: Json = {"text": "", "finish": None, "usage": None, "log_probs": []}
    for value in values:
        found["usage"] = value.get("usage") or found["usage"]
        for choice in value["choices"]:
            found["text"] += choice["text"]
            found["finish"] = choice["finish_reason"] or found["finish"]
            given = choice["logprobs"] or {"tokens": [], "token_logprobs": [], "text_offset": []}
            found["log_probs"] += list(
                zip(*(given[n] for n in ("tokens", "token_logprobs", "text_offset")), strict=True)
            )
    return found


def _responses(values: list[Json]) -> Json:
    whole = values[-1]["response"] if "response" in values[-1] else values[0]
    if len(values) > 1:
        deltas = "".join(v["delta"] for v in values if v["type"].endswith("_text.delta"))
        parts = [part for i in whole["output"] for name in ("summary", "content") for part in i.get(name) or ()]
        said = "".join(part["text"] for part in parts)
        assert deltas == said
    kept = ("type", "content", "summary", "name", "arguments", "status")
    output = [{name: item[name] for name in kept if name in item} for item in whole["output"]]
    return {"output": output, "status": whole["status"], "usage": whole["usage"]}


def _messages(values: list[Json]) -> Json:
    if "content" in values[0]:
        blocks = [{k: v for k, v in b.items() if k not in ("id", "signature")} for b in values[0]["content"]]
        return {"blocks": blocks, "stop": values[0]["stop_reason"], "out": values[0]["usage"]["output_tokens"]}
    found: list[Json] = []
    stop, out = None, 0
    for value in values:
        if value["type"] == "content_block_start":
            block = value["content_block"]
            found.append({k: v for k, v in block.items() if k not in ("id", "signature")})
            found[-1] |= {"input": ""} if block["type"] == "tool_use" else {}
        elif value["type"] == "content_block_delta":
            for name in ("text", "thinking", "partial_json"):
                key = "input" if name == "partial_json" else name
                if name in value["delta"]:
                    found[value["index"]][key] += value["delta"][name]
        elif value["type"] == "message_delta":
            stop, out = value["delta"]["stop_reason"], value["usage"]["output_tokens"]
    for block in found:
        if "input" in block:
            block["input"] = json.loads(block["input"])
    return {"blocks": found, "stop": stop, "out": out}


def _gemini(values: list[Json]) -> Json:
    found: Json = {"text": "", "thought": "", "calls": [], "finish": None, "usage": None}
    for value in values:
        found["usage"] = value.get("usageMetadata") or found["usage"]
        for candidate in value.get("candidates") or ():
            found["finish"] = candidate.get("finishReason") or found["finish"]
            for part in (candidate.get("content") or {}).get("parts") or ():
                found["thought" if part.get("thought") else "text"] += part.get("text") or ""
                if call := part.get("functionCall"):
                    found["calls"].append((call["name"], call["args"]))
    return found
