"""The scripted policy server: vLLM's chat completions for a model that says what ``script`` says.

It gives token ids and log probs, whole and streamed, and remembers every generation, so that what was served can be
held against what was recorded. One task in one harness is all it is for: no batching, no limits, no weights.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from forge.harness_check.script import Reply, answer
from forge.harness_check.words import END, PIECE, Words, render, tool_call

MODEL: Final = "scripted"
CONTEXT_TOKENS: Final = 131072
"""No harness's first prompt comes near it, even by words."""
BODY_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Served:
    """One generation."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]

    @property
    def usage(self) -> Mapping[str, int]:
        prompt, output = len(self.prompt_ids), len(self.output_ids)
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of an answer: what a client sees of it, and its tokens."""

    delta: Mapping[str, Any]
    ids: Sequence[int]


class ScriptedPolicy:
    def __init__(self) -> None:
        self.served: list[Served] = []
        self.url = ""
        self._words = Words()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """On a free port of 127.0.0.1."""
        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/{name:health|version|weight_info|v1/models}", self._state)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()

    async def _state(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "max_model_len": CONTEXT_TOKENS}
        known: dict[str, object] = {
            "health": {},
            "version": {"version": "0.32.0"},
            "weight_info": {"weight_version": "0"},
            "v1/models": {"object": "list", "data": [model]},
        }
        return web.json_response(known[request.match_info["name"]])

    async def _tokenize(self, request: web.Request) -> web.Response:
        asked = await request.json()
        ids = self._words.encode(asked["prompt"] if "prompt" in asked else render(asked))
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": CONTEXT_TOKENS})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked: dict[str, Any] = await request.json()
        prompt = self._words.encode(render(asked))
        reply = answer(asked)
        pieces, finish = _cut(self._pieces(reply), asked.get("max_completion_tokens") or asked.get("max_tokens"))
        served = Served(prompt, [each for piece in pieces for each in piece.ids])
        self.served.append(served)
        finish = finish or ("tool_calls" if reply.tool else "stop")
        head = {"id": f"chatcmpl-{len(self.served)}", "created": 0, "model": MODEL}
        if not asked.get("stream"):
            return web.json_response(head | self._whole(served, self._message(reply, pieces), finish))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        usage_asked = (asked.get("stream_options") or {}).get("include_usage")
        for chunk in self._chunks(served, pieces, finish, usage=bool(usage_asked)):
            body = json.dumps(head | {"object": "chat.completion.chunk"} | chunk)
            await response.write(f"data: {body}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _whole(self, served: Served, message: Mapping[str, Any], finish: str) -> dict[str, Any]:
        choice = {"index": 0, "message": message, "finish_reason": finish, "stop_reason": None}
        choice |= {"token_ids": served.output_ids, "logprobs": self._log_probs(served.output_ids)}
        body = {"object": "chat.completion", "choices": [choice], "usage": served.usage}
        return body | {"prompt_token_ids": served.prompt_ids}

    def _chunks(self, served: Served, pieces: Sequence[Piece], finish: str, *, usage: bool) -> Iterator[dict[str, Any]]:
        for number, piece in enumerate(pieces):
            ending = finish if number == len(pieces) - 1 else None
            choice = {"index": 0, "delta": piece.delta, "finish_reason": ending}
            choice |= {"token_ids": piece.ids, "logprobs": self._log_probs(piece.ids)}
            yield {"choices": [choice]} | ({} if number else {"prompt_token_ids": served.prompt_ids})
        if usage:
            yield {"choices": [], "usage": served.usage}

    def _pieces(self, reply: Reply) -> list[Piece]:
        encode = self._words.encode
        pieces = [Piece({"role": "assistant", "content": ""}, [])]
        pieces += [Piece({"content": each}, encode(each)) for each in PIECE.findall(reply.text)]
        if reply.tool is not None:
            before, after = tool_call(reply.tool, reply.arguments).split(reply.arguments)
            function = {"name": reply.tool, "arguments": ""}
            call = {"index": 0, "id": self._call_id(), "type": "function", "function": function}
            pieces.append(Piece({"tool_calls": [call]}, encode(before)))
            for each in PIECE.findall(reply.arguments):
                part = {"index": 0, "function": {"arguments": each}}
                pieces.append(Piece({"tool_calls": [part]}, encode(each)))
            pieces.append(Piece({}, encode(after)))
        return [*pieces, Piece({}, encode(END))]

    def _message(self, reply: Reply, pieces: Sequence[Piece]) -> Mapping[str, Any]:
        text = "".join(piece.delta.get("content", "") for piece in pieces)
        if reply.tool is None:
            return {"role": "assistant", "content": text}
        function = {"name": reply.tool, "arguments": reply.arguments}
        call = {"id": self._call_id(), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _call_id(self) -> str:
        return f"call_{len(self.served)}"

    def _log_probs(self, ids: Sequence[int]) -> Mapping[str, Any]:
        """Made up, but each token's own: a swapped or missing one shows."""
        return {"content": [{"token": self._words.decode([each]), "logprob": -(each % 97 + 1) / 128} for each in ids]}


def _cut(pieces: list[Piece], limit: int | None) -> tuple[list[Piece], str | None]:
    """The pieces that fit into ``limit`` tokens, and ``length`` if not all do."""
    left = limit or CONTEXT_TOKENS
    for number, piece in enumerate(pieces):
        if len(piece.ids) > left:
            return [*pieces[:number], Piece({}, piece.ids[:left])], "length"
        left -= len(piece.ids)
    return pieces, None
