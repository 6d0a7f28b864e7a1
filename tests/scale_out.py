"""The scripted vLLM with its scale-out routes, as 0.32 answers them: render, generate, derender; and ``/detokenize``.

Owns a fake of the server's parser, which takes texts apart as the template put them together. What it says of aborts,
stop strings and ends was seen in the real server: the event that gives up carries a token; a derendered text keeps its
last token; each route sees stop strings in what it samples itself, and holds text back that may begin one.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from tests.engine import ScriptedEngine
from tests.script import EOS, Chunk, Json, Served
from tests.shapes import choice_of, dumps

RENDER, DERENDER = "/v1/chat/completions/render", "/v1/chat/completions/derender"
GENERATE = "/inference/v1/generate"
CALL = re.compile(r'<tool_call>\n\{"name": "(\w+)", "arguments": (.*?)(\}\n</tool_call>|$)', re.DOTALL)
DEFAULT_LIMIT = 16
"""Rendering leaves it out, as whatever is the default of vLLM's own parameters."""
THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)


class ScaleOutEngine(ScriptedEngine):
    def __init__(self, *, scale_out: bool = True) -> None:
        super().__init__()
        self.scale_out = scale_out
        self.instead: dict[str, Json] = {}
        """Path to what it answers in place of the scripted answer."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path not in (RENDER, DERENDER, GENERATE, "/detokenize"):
            return await super()._handle(request)
        if not self.scale_out and path != "/detokenize":
            return web.json_response({"error": {"message": "Scale-out endpoints are disabled."}}, status=403)
        self.probes.append(path)
        asked = json.loads(await request.read() or b"{}")
        if path in self.instead:
            return web.json_response(self.instead[path])
        if path == "/detokenize":
            return web.json_response({"prompt": self.tokenizer.decode(asked["tokens"])})
        if path == RENDER:
            return web.json_response(self.rendered(asked))
        if path == DERENDER:
            return web.json_response(self.derendered(asked))
        if "token_ids" not in asked:
            return web.json_response({"error": {"message": "token_ids: Field required"}}, status=400)
        return await self._rest(request, asked["token_ids"], asked["sampling_params"])

    def rendered(self, asked: Json) -> Json:
        prompt = self.tokenizer.encode(self.render(asked))
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        names = ("temperature", "seed", "presence_penalty", "structured_outputs", "min_tokens")
        params: Json = {name: asked[name] for name in names if asked.get(name) is not None}
        params |= {"stop": _strings(asked.get("stop")), "bad_words": [], "output_kind": 2}
        params |= {"max_tokens": limit or self.max_model_len - len(prompt)} if limit != DEFAULT_LIMIT else {}
        params |= {"logprobs": asked.get("top_logprobs") or 0} if asked.get("logprobs") else {}
        head = {"request_id": "chatcmpl-rendered", "model": asked.get("model", self.model), "output_mode": "tokens"}
        return head | {"token_ids": prompt, "sampling_params": params, "stream": bool(asked.get("stream"))}

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if isinstance(asked.get("prompt"), list) and not asked.get("echo"):
            return await self._rest(request, asked["prompt"], asked)
        return await super()._generate(request)

    async def _rest(self, request: web.Request, ids: list[int], params: Json) -> web.StreamResponse:
        """Of the newest answer that was given up, which must have come just as far."""
        given_up = next(s for s in reversed(self.served) if s.aborted.is_set())
        before = given_up.before + given_up.output_ids
        wanted = params | {"return_token_ids": True, "stream": True}
        if params.get("max_tokens"):
            wanted["max_tokens"] = params["max_tokens"] + len(before)
        if request.path == GENERATE:
            wanted |= {"top_logprobs": params["logprobs"], "logprobs": True}
        served = Served(request.path, await request.read(), dict(request.headers), wanted, ids, given_up.turn)
        served.before = before
        assert ids[len(ids) - len(before) :] == before
        self.served.append(served)
        try:
            return await self._answer(request, served)
        finally:
            served.done.set()

    def _chunks(self, served: Served) -> list[Chunk]:
        room = served.prompt_ids
        served.prompt_ids = room[: len(room) - len(served.before)]
        chunks = super()._chunks(served)
        served.prompt_ids = room
        stops = _strings(served.json.get("stop"))
        return self._stopped(chunks, stops, len(served.before)) if stops else chunks

    def _stopped(self, chunks: Sequence[Chunk], stops: Sequence[str], before: int) -> list[Chunk]:
        """Of plain text: ended by a stop string in what comes after ``before`` tokens, and held back meanwhile."""
        hold = max(map(len, stops)) - 1
        kept: list[Chunk] = []
        text, said, seen = "", 0, 0
        for chunk in chunks:
            seen += len(chunk.ids)
            if seen <= before:
                kept.append(chunk)
                continue
            ends = chunk.finish in ("stop", "tool_calls")
            text += self.tokenizer.decode(chunk.ids[:-1] if ends else chunk.ids)
            hit = next((stop for stop in stops if stop in text), None)
            until = text.index(hit) if hit is not None else len(text) - (0 if chunk.finish else hold)
            piece, said = text[said : max(said, until)], max(said, until)
            delta = {"content": piece} if piece else {}
            finish = "stop" if hit is not None else chunk.finish
            kept.append(Chunk(delta, chunk.ids, finish, hit, piece))
            if hit is not None:
                break
        return kept

    def _given_up(self, served: Served, chunk: Chunk) -> Json:
        """With a token that was sampled meanwhile."""
        if chunk.finish is not None:
            return super()._given_up(served, chunk)
        self._emit(served, chunk.ids)
        ids = chunk.ids if self._asks_ids(served) else None
        return choice_of(chunk.delta, self._log_probs(served, chunk.ids), "abort") | {"token_ids": ids}

    async def _events(self, served: Served, chunks: list[Chunk]) -> AsyncIterator[bytes]:
        events = self._generated if served.path == GENERATE else super()._events
        async for event in events(served, chunks):
            yield event

    async def _generated(self, served: Served, chunks: list[Chunk]) -> AsyncIterator[bytes]:
        """``output_mode: text``, streamed."""
        gate = served.turn.gate or self.gate
        for chunk in chunks[served.skip :]:
            if not chunk.ids:
                continue
            if not await gate.passed_before(served.aborted):
                yield self._text_event(served, Chunk({}, [], "abort"))
                break
            self._emit(served, chunk.ids)
            yield self._text_event(served, chunk)
        yield b"data: [DONE]\n\n"

    def _text_event(self, served: Served, chunk: Chunk) -> bytes:
        entries = [self._log_prob_entry(token, served.json) for token in chunk.ids]
        for entry in entries:
            own = {name: entry[name] for name in ("token", "logprob", "bytes")}
            entry["top_logprobs"] = entry["top_logprobs"] or [own]
        spans = [{"version": self.weight_version, "start": 0, "end": len(served.output_ids)}] if chunk.finish else None
        finish = "stop" if chunk.finish == "tool_calls" else chunk.finish
        text = chunk.text if chunk.text is not None else self.tokenizer.decode(chunk.ids).replace(EOS, "")
        choice: Json = {"index": 0, "finish_reason": finish, "stop_reason": chunk.stop, "token_ids": chunk.ids}
        choice |= {"routed_experts": None, "sampling_mask": None, "weight_versions": spans, "text": text}
        choice |= {"logprobs": {"content": entries}}
        body = {"request_id": "generate-tokens-1", "usage": None, "output_mode": "text", "choices": [choice]}
        return b"data: " + dumps(body) + b"\n\n"

    def derendered(self, asked: Json) -> Json:
        stream = asked["stream"]
        whole = asked["generate_chunk" if stream else "generate_response"]
        (choice,) = whole["choices"]
        said = parsed(self.tokenizer.decode(choice["token_ids"]), anew=not stream)
        finish = {"index": 0, "finish_reason": choice["finish_reason"], "logprobs": None}
        if not stream:
            return {"id": whole["request_id"], "choices": [finish | {"message": {"role": "assistant"} | said}]}
        parts: list[Json] = []
        for index, call in enumerate(said.pop("tool_calls", [])):
            function = call["function"]
            parts.append(call | {"index": index, "function": {"name": function["name"], "arguments": None}})
            rest = {"name": None, "arguments": function["arguments"]}
            parts.append({"id": None, "type": None, "index": index, "function": rest})
        delta = {"role": "assistant"} | said | ({"tool_calls": parts} if parts else {})
        return {"chunk": {"id": whole["request_id"], "choices": [finish | {"delta": delta}]}, "stream_state": {}}


def parsed(text: str, *, anew: bool) -> Json:
    """A message; ``anew``: arguments of a call are read and written again, and a call that's not whole is text."""
    thought = THOUGHT.match(text)
    rest = text[thought.end() :] if thought else text
    found = [m for m in CALL.finditer(rest) if m[3] or not anew]
    content = rest[: found[0].start()] if found else rest
    message: Json = {"content": content or (None if found else ""), "reasoning": thought[1] if thought else None}
    if found:
        message["tool_calls"] = [
            {"id": f"derendered-{n}", "type": "function", "function": {"name": m[1], "arguments": _written(m[2], anew)}}
            for n, m in enumerate(found)
        ]
    return message


def _written(arguments: str, anew: bool) -> str:
    return json.dumps(json.loads(arguments)) if anew else arguments


def _strings(stop: object) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or [])  # type: ignore[call-overload]
