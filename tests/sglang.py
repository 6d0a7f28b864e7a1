"""The scripted SGLang: 0.5.23's chat shapes (ids once, in an event of their own), parsers' and weight routes.

What it says was read in its source: chat takes ``input_ids`` in place of the template's, an abort is a finishing event
without ids or text, and the parsers' own routes take a whole text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from aiohttp import web

from tests.scale_out import ScaleOutEngine, parsed
from tests.script import EOS, Chunk, Json, Served
from tests.shapes import dumps

HEAD = {"id": "a1", "object": "chat.completion.chunk", "created": 1700000000, "model": "policy"}


class SglangEngine(ScaleOutEngine):
    def __init__(self, *, takes_ids: bool = True) -> None:
        super().__init__()
        self.owned_by = "sglang"
        self.takes_ids = takes_ids
        """False: an older one, that ignores them."""
        self.parsers: Json = {"tool_call_parser": "qwen25", "reasoning_parser": "qwen3"}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in ("/server_info", "/model_info"):
            said = {"startup_time": self.started, "version": "0.5.23", "weight_version": self.weight_version}
            return web.json_response(said | self.parsers)
        if path in ("/generate", "/detokenize", "/separate_reasoning", "/parse_function_call"):
            return self._looked(path, json.loads(await request.read() or b"{}"))
        if path in ("/pause_generation", "/continue_generation", "/flush_cache", "/update_weights_from_disk"):
            return self._weights(path, json.loads(await request.read() or b"{}"))
        return await super()._handle(request)

    def _looked(self, path: str, asked: Json) -> web.Response:
        if path == "/generate":
            return web.json_response({"error": {"message": "input_ids missing"}}, status=400)
        if path == "/detokenize":
            text = self.tokenizer.decode(asked["tokens"])
            return web.json_response({"text": text.replace(EOS, "") if asked["skip_special_tokens"] else text})
        if path == "/separate_reasoning":
            found = parsed(asked["text"], anew=True)
            at = asked["text"].find("</think>")
            text = asked["text"][at + len("</think>") :] if at >= 0 else asked["text"]
            return web.json_response({"reasoning_text": found["reasoning"] or "", "text": text})
        found = parsed(asked["text"], anew=True)
        functions = [call["function"] for call in found.get("tool_calls") or ()]
        calls = [{"tool_index": 0, "name": f["name"], "parameters": f["arguments"]} for f in functions]
        return web.json_response({"normal_text": found["content"] or "", "calls": calls})

    def _weights(self, path: str, asked: Json) -> web.Response:
        self.admin.append((path, asked))
        if path == "/pause_generation":
            self.resumed.clear()
            for served in self.served if asked["mode"] == "abort" else ():
                served.aborted.set()
        elif path == "/continue_generation":
            self.resumed.set()
        elif path == "/update_weights_from_disk":
            self.weight_version = asked["weight_version"]
        return web.json_response({"success": True})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if asked.get("input_ids") and self.takes_ids:
            return await self._rest(request, asked["input_ids"], asked)
        return await super()._generate(request)

    async def _events(self, served: Served, chunks: list[Chunk]) -> AsyncIterator[bytes]:
        gate, finish, stop = served.turn.gate or self.gate, None, None
        yield _event(said({"role": "assistant", "content": ""}))
        for chunk in chunks[served.skip :]:
            if not await gate.passed_before(served.aborted):
                finish = "abort"
                break
            served.skip += 1
            self._emit(served, chunk.ids)
            delta, log_probs = self._delta(served, chunk), self._log_probs(served, chunk.ids)
            if delta or log_probs:
                yield _event(said(delta, log_probs=log_probs))
            finish, stop = chunk.finish, chunk.stop
        if served.before and finish == "tool_calls":
            finish = "stop"
        matched = {"matched_stop": stop or self.tokenizer.id(EOS)} if finish in ("stop", "tool_calls") else {}
        yield _event(said({}, finish=finish, **matched))
        if served.json.get("return_output_ids_in_sglext"):
            ids = {"input_ids": served.prompt_ids, "output_ids": [served.output_ids]}
            yield _event(HEAD | {"choices": [], "usage": None, "sglext": ids})
        if (served.json.get("stream_options") or {}).get("include_usage"):
            yield _event(HEAD | {"choices": [], "usage": self._usage(served)})
        yield b"data: [DONE]\n\n"

    def _delta(self, served: Served, chunk: Chunk) -> Json:
        if served.before or served.json.get("input_ids"):
            text = self.tokenizer.decode(chunk.ids).replace(EOS, "")
            return {"content": text} if text else {}
        delta = dict(chunk.delta)
        return {("reasoning_content" if name == "reasoning" else name): value for name, value in delta.items()}

    async def _whole(self, served: Served, chunks: list[Chunk]) -> AsyncIterator[bytes]:
        async for body in super()._whole(served, chunks):
            document = json.loads(body)
            (choice,) = document["choices"]
            message = {"role": "assistant", "content": choice["message"]["content"] or ""}
            message |= {"reasoning_content": choice["message"]["reasoning"]}
            message |= {"tool_calls": choice["message"].get("tool_calls")}
            finish = choice["finish_reason"]
            matched = choice["stop_reason"] or (self.tokenizer.id(EOS) if finish in ("stop", "tool_calls") else None)
            kept = {name: choice[name] for name in ("index", "logprobs", "finish_reason")}
            choices = [kept | {"message": message, "matched_stop": matched}]
            ids = {"input_ids": served.prompt_ids, "output_ids": [served.output_ids]}
            rest = {"usage": document["usage"], "metadata": {"weight_version": self.weight_version}, "sglext": ids}
            yield dumps(HEAD | {"object": "chat.completion", "choices": choices} | rest)


def said(delta: Json, *, log_probs: Json | None = None, finish: str | None = None, **members: object) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish}
    return HEAD | {"choices": [choice | members]}


def _event(value: object) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"
