"""Clients of every dialect that call until their proxy is gone, and note in the ledger what they read."""

from __future__ import annotations

import json
from itertools import count

import aiohttp

from forge.proxy.calls.call import CALL_HEADER
from tests.faults.ledger import Ledger
from tests.proxy.wire import documents
from tests.proxy.wires import TEXT, WIRES
from tests.proxy.wires import request as request_of

ARGUMENTS = '{"a": "ls"}'
_ENDS = {"chat": b"data: [DONE]\n\n", "responses": b"response.completed", "messages": b"message_stop"}


def body_of(wire: str, stream: bool, text: str) -> tuple[str, bytes]:
    """A request with a tool, whose text is like no other's."""
    path, body = request_of(wire, stream, tools=True)
    return path, json.dumps(body).replace(json.dumps(TEXT), json.dumps(text)).encode()


async def client(
    base_url: str, number: int, ledger: Ledger, *, limit: int | None = None, key: str | None = None, first: int = 0
) -> None:
    """One after the other, streams and not, through all dialects, until the proxy is gone or ``limit`` were made."""
    root = base_url.removesuffix("/v1")
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=60)) as http:
        for turn in count(first) if limit is None else range(first, first + limit):
            wire, stream = WIRES[(number + turn) % len(WIRES)], (number + turn) % 3 != 0
            path, body = body_of(wire, stream, f"client {number} turn {turn} {base_url} " + "word " * (turn % 30))
            try:
                await _call(http, root + path, wire, stream, body, ledger)
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                if limit is None:
                    return


async def _call(http: aiohttp.ClientSession, url: str, wire: str, stream: bool, body: bytes, ledger: Ledger) -> None:
    got = b""
    call_id: str | None = None
    try:
        async with http.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            call_id = answer.headers.get(CALL_HEADER)
            if call_id is not None:
                ledger.begun.add(call_id)
            async for piece in answer.content.iter_any():
                got += piece
                await ledger.note_chunk()
            if call_id is not None and answer.status == 200 and (not stream or _ENDS.get(wire, b"") in got):
                ledger.note_whole(call_id, wire, got)
                return
    finally:
        if call_id is not None and call_id not in ledger.whole and stream and could_act(wire, got):
            ledger.acted[call_id] = [ARGUMENTS]


def could_act(wire: str, got: bytes) -> bool:
    """Whether what came of a stream holds a tool call that is whole."""
    whole = got[: got.rfind(b"\n\n") + 2]
    events = documents(whole) if whole else []
    if wire == "chat":
        return any(choice.get("finish_reason") for event in events for choice in event.get("choices") or ())
    if wire == "responses":
        ends = [event for event in events if event["type"] == "response.output_item.done"]
        return any(event["item"]["type"] == "function_call" for event in ends)
    if wire == "messages":
        starts = [event for event in events if event["type"] == "content_block_start"]
        tools = {event["index"] for event in starts if event["content_block"]["type"] == "tool_use"}
        return any(event["type"] == "content_block_stop" and event["index"] in tools for event in events)
    parts = [p for e in events for c in e.get("candidates", ()) for p in c.get("content", {}).get("parts", ())]
    return any("functionCall" in part for part in parts)
