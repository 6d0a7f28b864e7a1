"""A scripted policy server: a real HTTP server with vLLM's shapes, whose answers and faults a test writes.

The only fake of the test suite. It tokenises by words (exactly reversible), renders an append-only template, keeps
every body it got and gave, and paces its streams by a gate that the test opens: nothing here sleeps.

``async with ScriptedEngine() as engine: engine.script(Turn("Hello there"), Turn(tool_calls=[("ls", "{}")]))``
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import accumulate
from typing import Self

from aiohttp import web

from tests.raw import RawAnswer, raw_events
from tests.script import Fault, Gate, Json, Served, Turn, WordTokenizer, log_prob_of, markup
from tests.shapes import Shapes, dumps

__all__ = ["Fault", "Gate", "ScriptedEngine", "Served", "Turn", "WordTokenizer"]


CONTINUE = "/v1/chat/completions/continue"
LOAD = "/v1/load_lora_adapter"
PLAIN = ("/tokenize", "/v1/chat/completions/render", "/inference/v1/generate", "/generate", CONTINUE)
"""Routes that change nothing."""


class ScriptedEngine(Shapes):
    """Listens at ``url``. ``served`` holds every generation, ``admin`` every publication request."""

    def __init__(
        self,
        *,
        model: str = "policy",
        max_model_len: int = 4096,
        key: str | None = None,
        embedded: bool = False,
        like_qwen: bool = False,
    ) -> None:
        super().__init__(model, max_model_len)
        self.key = key
        self.embedded = embedded
        """Says its weights' digest, as our embedded server does."""
        self.like_qwen = like_qwen
        """Its template is like Qwen3.6's: it writes arguments anew, and drops the thinking before the last user's text
        unless asked to keep it."""
        self.turns: deque[Turn] = deque()
        self.default: Callable[[Json], Turn] = lambda request: Turn("ok")
        self.admin: list[tuple[str, Json]] = []
        self.probes: list[str] = []
        self.weight_version = "default"
        self.weight_digest = "digest-0"
        self.holds_cache = False
        """Its prefix cache will not be reset: a 200 says so."""
        self.owned_by = "vllm"
        """How its list of models names its kind."""
        self.misscored = 0.0
        """Nats by which a prompt's own log probs are off."""
        self.started = "1700000000.25"
        """When its process started, as its plain routes say it: a test changes it to restart the server."""
        self.digest_of: Callable[[str], str] = lambda path: f"digest-of-{path}"
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.host = "127.0.0.1"
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def script(self, *turns: Turn) -> None:
        self.turns.extend(turns)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.open()
        await self.refuse()

    async def accept(self) -> None:
        """Listen (again, on the same port)."""
        app = web.Application(client_max_size=256 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Stop listening: connects are refused."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if self.key is not None and path != "/health" and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _json({"error": "Unauthorized"}, 401)
        if path in ("/v1/chat/completions", "/v1/completions"):
            return await self._generate(request)
        if path == CONTINUE and self.embedded and (asked := json.loads(await request.read() or b"{}")):
            return await self._go_on(request, asked)
        if request.method == "GET":
            self.probes.append(path)
            return self._get(path)
        payload = json.loads(await request.read() or b"{}")
        if path in PLAIN or (path == LOAD and not payload):
            self.probes.append(path)
            return self._post(path, payload, dict(request.query))
        self.admin.append((path, dict(payload) | dict(request.query)))
        return self._post(path, payload, dict(request.query))

    def _get(self, path: str) -> web.Response:
        known: dict[str, Json] = {
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/is_paused": {"is_paused": not self.resumed.is_set()},
            "/weight_info": {"weight_version": self.weight_version}
            | ({"weight_digest": self.weight_digest, "boot_id": self.started} if self.embedded else {}),
            "/v1/models": {
                "object": "list",
                "data": [
                    {
                        "id": self.model,
                        "object": "model",
                        "owned_by": self.owned_by,
                        "max_model_len": self.max_model_len,
                    }
                ],
            },
        }
        if path == "/metrics":
            return web.Response(text=f"# TYPE x gauge\nprocess_start_time_seconds {self.started}\n")
        return _json(known[path]) if path in known else _json({"detail": "Not Found"}, 404)

    def _post(self, path: str, payload: Json, query: dict[str, str]) -> web.Response:
        if path == "/pause":
            self.resumed.clear()
            if query.get("mode") == "abort":
                for served in self.served:
                    served.aborted.set()
        elif path == "/resume":
            self.resumed.set()
        elif path == "/update_weight_version":
            self.weight_version = str(payload["new_version"])
        elif path in ("/collective_rpc", "/reload_weights"):
            target = payload.get("path") or payload.get("kwargs", {}).get("weights_path", "")
            self.weight_digest = self.digest_of(target)
            return _json({"weight_digest": self.weight_digest})
        elif path == CONTINUE and self.embedded:
            return _json({"error": {"message": "request: Field required"}}, 400)
        elif path == "/tokenize":
            text = payload["prompt"] if "prompt" in payload else self.render(payload)
            return _json({"tokens": self.tokenizer.encode(text)})
        elif path not in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"):
            return _json({"detail": "Not Found"}, 404)
        return _json({"success": not (self.holds_cache and path == "/reset_prefix_cache")})

    # Prompts

    def render(self, request: Json) -> str:
        """The chat template: tools in a system block, tool calls and reasoning as markup; append-only, unless it
        is ``like_qwen``."""
        parts = []
        kept = (request.get("chat_template_kwargs") or {}).get("preserve_thinking") is True
        asked = max((n for n, m in enumerate(request["messages"]) if m["role"] == "user"), default=0)
        if request.get("tools"):
            parts.append(f"<|im_start|>tools\n{json.dumps(request['tools'], sort_keys=True)}<|im_end|>\n")
        for place, message in enumerate(request["messages"]):
            thinks = not self.like_qwen or kept or place > asked
            text = markup(message, thinks=thinks, anew=self.like_qwen)
            parts.append(f"<|im_start|>{message['role']}\n{text}<|im_end|>\n")
        return "".join(parts) + "<|im_start|>assistant\n"

    # Generation

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        payload = json.loads(body)
        if payload.get("echo") and isinstance(payload["prompt"], list):
            self.probes.append(request.path)
            return self._score(payload["prompt"])
        turn = self.turns.popleft() if self.turns else self.default(payload)
        if "messages" in payload:
            prompt = self.tokenizer.encode(self.render(payload))
        else:
            given = payload["prompt"]
            prompt = list(given) if isinstance(given, list) else self.tokenizer.encode(given)
        served = Served(request.path, body, dict(request.headers), payload, prompt, turn)
        self.served.append(served)
        try:
            return await self._answer(request, served)
        except (asyncio.CancelledError, ConnectionError):
            served.client_left.set()
            raise
        finally:
            served.done.set()

    async def _go_on(self, request: web.Request, asked: Json) -> web.StreamResponse:
        """The rest of an answer that a pause gave up, from its ids, as our embedded server gives it."""
        given_up = next(s for s in reversed(self.served) if s.aborted.is_set() and s.prompt_ids == asked["prompt_ids"])
        body, headers = await request.read(), dict(request.headers)
        served = Served(request.path, body, headers, asked["request"], asked["prompt_ids"], given_up.turn)
        served.before, served.id, served.skip = asked["output_ids"], asked["id"], given_up.skip
        assert served.before == given_up.before + given_up.output_ids
        self.served.append(served)
        try:
            return await self._answer(request, served)
        finally:
            served.done.set()

    async def _answer(self, request: web.Request, served: Served) -> web.StreamResponse:
        fault = served.turn.fault
        await self.resumed.wait()
        if fault.mute:
            await asyncio.Event().wait()
        served.status = fault.status or 200
        if (refused := self._refusal(served, fault)) is not None:
            served.answer += refused.body if isinstance(refused.body, bytes) else b""
            return refused
        chunks = self._chunks(served)
        served.skip = sum(ids <= len(served.before) for ids in accumulate(len(chunk.ids) for chunk in chunks))
        streaming = bool(served.json.get("stream")) and not fault.json_to_stream
        if served.path == "/v1/completions":
            answer = RawAnswer(served, self.tokenizer, self._asks_ids(served), self.named(served))
            gate = served.turn.gate or self.gate
            events = raw_events(answer, chunks, gate, self._emit, self._usage, streaming=streaming)
        else:
            events = self._events(served, chunks) if streaming else self._whole(served, chunks)
        headers = {"Content-Type": "text/event-stream; charset=utf-8" if streaming else "application/json"}
        response = web.StreamResponse(headers=headers)
        if fault.silence:
            await response.prepare(request)
            await asyncio.Event().wait()
        if streaming:
            await response.prepare(request)
        await self._send(request, response, served, events)
        return response

    def _refusal(self, served: Served, fault: Fault) -> web.Response | None:
        if fault.html:
            return web.Response(text="<html><body>It works</body></html>", content_type="text/html")
        if fault.status is None:
            limit = len(served.prompt_ids)
            if limit < self.max_model_len:
                return None
            message = (
                f"This model's maximum context length is {self.max_model_len} tokens. However, your request has "
                f"{limit} input tokens. Please reduce the length of the input messages."
            )
            served.status = 400
            return _json({"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}, 400)
        headers = dict(fault.headers)
        if fault.retry_after is not None:
            headers["Retry-After"] = fault.retry_after
        if fault.body is not None:
            return web.Response(status=fault.status, text=fault.body, headers=headers, content_type="application/json")
        error = {"message": f"scripted {fault.status}", "type": "Error", "param": None, "code": fault.status}
        return _json({"error": error}, fault.status, headers)

    async def _send(
        self, request: web.Request, response: web.StreamResponse, served: Served, events: AsyncIterator[bytes]
    ) -> None:
        fault = served.turn.fault
        limit = fault.reset_after if fault.reset_after is not None else fault.end_after
        async for event in events:
            if not response.prepared:
                if limit is None:
                    response.content_length = len(event)
                await response.prepare(request)
            piece = event if limit is None else event[: max(0, limit - len(served.answer))]
            served.answer += piece
            await response.write(piece)
            if limit is not None and len(served.answer) >= limit:
                if fault.reset_after is not None:
                    _reset(request)
                return
        await response.write_eof()
        served.ended = True

    def _score(self, prompt: list[int]) -> web.Response:
        """A prompt's own log probs, as an echo gives them."""
        scores = [None, *(log_prob_of(token) + self.misscored for token in prompt[1:]), -1.0]
        return _json({"choices": [{"index": 0, "text": "", "logprobs": {"token_logprobs": scores}}]})


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=dumps(value), status=status, headers=headers, content_type="application/json")


def _reset(request: web.Request) -> None:
    """Close with a TCP reset, not a FIN."""
    transport = request.transport
    assert transport is not None
    sock = transport.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
