"""The HTTP side: the key, the routes that harnesses call, and streams.

Every number of model state lives in the scheduler's thread; here a job is a queue of steps. Not obvious: handlers are
cancelled when their client goes away (``handler_cancellation``), which is what ends the generation.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from forge import __version__
from forge.policy import protocol
from forge.policy.admin import Admin
from forge.policy.answer import Answer, StopRules
from forge.policy.grammar import Grammars, from_regex, from_schema, from_tools
from forge.policy.llama import Llama
from forge.policy.options import Options
from forge.policy.protocol import Refused, Wanted
from forge.policy.replies import ChatReply, CompletionReply, error
from forge.policy.rows import RowCache
from forge.policy.sampler import Sampler, Sampling
from forge.policy.scheduler import Job, QueueFull, Scheduler, Step
from forge.policy.template import Detokenizer, Text
from forge.policy.weights import weight_digest
from forge.proxy.door.origin import from_here
from forge.storage.errors import BadInput

log = logging.getLogger(__name__)

BODY_BYTES = 32 << 20
"""Largest request body: far above any prompt that fits the model."""
QUEUE_LIMIT = 256
"""Jobs that may wait for a slot; one more is answered 429."""
DRAIN_SECONDS = 10.0
"""How long answers in flight may go on after SIGTERM."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PolicyServer:
    """One model behind HTTP. ``app()`` gives the routes; ``close()`` ends the scheduler."""

    def __init__(self, options: Options, llama: Llama | None = None) -> None:
        """``llama``: what answers, where it is not the model in the directory."""
        llama = llama or Llama(options.directory)
        shape = llama.shape
        longest = options.max_model_len or shape.max_len
        if not 2 <= longest <= shape.max_len:
            raise BadInput(f"--max-model-len {longest}: the model takes 2 to {shape.max_len} tokens", "give less")
        self.options = options
        self.max_len = longest
        self.text = Text(options.directory)
        self.grammars = Grammars(self.text.file, shape.vocab, shape.eos)
        self.created = int(time.time())
        rows = RowCache(shape, longest, options.prefix_cache_bytes)
        digest = weight_digest(options.directory)
        self.scheduler = Scheduler(llama, options.version, digest, options.slots, rows, QUEUE_LIMIT)
        self.scheduler.start()

    def close(self) -> None:
        self.scheduler.close()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._door])
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/chat/completions/continue", self.go_on),
                web.post("/v1/completions", self.completions),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
            ]
        )
        app.add_routes(Admin(self.scheduler, self.options.lineage).routes())
        return app

    @web.middleware
    async def _door(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The key, or that no web page asks; and every error in one shape."""
        if self.options.key is not None and request.path != "/health":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self.options.key.encode()):
                return _json(error(401, "wrong or missing key: send Authorization: Bearer <key>"), 401)
        elif self.options.key is None and not from_here(request):
            return _json(error(403, "without a key, web pages and foreign host names are not served"), 403)
        try:
            return await handler(request)
        except Refused as refused:
            return _json(error(refused.status, refused.message, refused.param), refused.status)
        except BadInput as bad:
            return _json(error(400, bad.message), 400)
        except QueueFull:
            return _json(error(429, f"{self.scheduler.queue_limit} requests wait already"), 429)
        except web.HTTPException as http:
            return _json(error(http.status, f"{request.method} {request.path}: {http.reason}"), http.status)
        except Exception:  # the request is the boundary
            log.exception("request failed method=%s path=%s", request.method, request.path)
            return _json(error(500, "internal error, see the server's log"), 500)

    # What harnesses and the proxy call.

    async def health(self, request: web.Request) -> web.Response:
        return _json({})

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": self.options.name, "object": "model", "created": self.created, "owned_by": "forge"}
        model |= {"root": str(self.options.directory), "parent": None, "max_model_len": self.max_len}
        return _json({"object": "list", "data": [model]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        chat = protocol.parse(await request.read(), protocol.Chat)
        wanted = protocol.check(chat)
        prompt = self._render(chat.messages, chat.tools)
        job, reply, steps = await self._submit(wanted, prompt, ChatReply)
        return await self._answer(request, job, reply, steps)

    async def go_on(self, request: web.Request) -> web.StreamResponse:
        """The rest of a chat answer that was given up, from its exact ids: a stream without what was said already; a
        whole body with the whole message, and the ids and log probs of the rest."""
        asked = protocol.parse(await request.read(), protocol.GoOn)
        wanted = protocol.check(asked.request)
        prompt, so_far = self._prompt([*asked.prompt_ids]), self._prompt([*asked.output_ids])
        job, reply, steps = await self._submit(wanted, prompt, ChatReply, so_far)
        reply.head |= {"id": asked.id, "created": asked.created}
        return await self._answer(request, job, reply, steps)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        completion = protocol.parse(await request.read(), protocol.Completion)
        wanted = protocol.check(completion)
        job, reply, steps = await self._submit(wanted, self._prompt(completion.prompt), CompletionReply)
        return await self._answer(request, job, reply, steps)

    async def tokenize(self, request: web.Request) -> web.Response:
        asked = protocol.parse(await request.read(), protocol.Tokenize)
        if (asked.prompt is None) == (asked.messages is None):
            raise Refused("give prompt or messages", "prompt")
        ids = (
            self.text.encode(asked.prompt or "")
            if asked.messages is None
            else self._render(asked.messages, asked.tools)
        )
        return _json({"count": len(ids), "max_model_len": self.max_len, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        asked = protocol.parse(await request.read(), protocol.Detokenize)
        return _json({"prompt": self.text.decode(asked.tokens)})

    # From a request to a job, and from its steps to an answer.

    def _render(self, messages: list[protocol.Message], tools: protocol.Tools | None) -> list[int]:
        return self.text.encode(self.text.render(protocol.plain(messages), tools))

    def _prompt(self, prompt: str | list[int | str]) -> list[int]:
        if isinstance(prompt, list):
            ids = [p for p in prompt if isinstance(p, int)]
            if len(ids) < len(prompt):
                raise Refused("one prompt only: a text or a list of token ids", "prompt")
            wrong = next((i for i in ids if not 0 <= i < self.scheduler.llama.shape.vocab), None)
            if wrong is not None:
                raise Refused(f"token id {wrong} is out of vocabulary", "prompt")
            return ids
        return self.text.encode(prompt)

    async def _submit(
        self,
        wanted: Wanted,
        prompt: list[int],
        kind: type[ChatReply] | type[CompletionReply],
        so_far: Sequence[int] | None = None,
    ) -> tuple[Job, ChatReply | CompletionReply, asyncio.Queue[Step]]:
        common = wanted.common
        if common.model not in (None, "", self.options.name):
            raise Refused(f"The model `{common.model}` does not exist.", "model", 404)
        if not prompt:
            raise Refused("the prompt is empty", "prompt")
        asked = wanted.max_tokens
        if len(prompt) >= self.max_len:
            raise Refused(
                f"This model's maximum context length is {self.max_len} tokens. However, your prompt contains "
                f"{len(prompt)} input tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )
        if asked is not None and asked > self.max_len:
            raise Refused(
                f"max_tokens={asked} cannot be greater than max_model_len={self.max_len}. "
                "Please request fewer output tokens.",
                "max_tokens",
            )
        room = self.max_len - len(prompt)
        rules = StopRules(
            max_tokens=min(asked or room, room),
            strings=wanted.stops,
            ids=frozenset(common.stop_token_ids or ()),
            eos=frozenset() if common.ignore_eos else frozenset(self.scheduler.llama.shape.eos),
            include=bool(common.include_stop_str_in_output),
        )
        answer = Answer(Detokenizer(self.text), rules)
        matcher = await asyncio.to_thread(self._matcher, wanted.grammar) if wanted.grammar else None
        loop, steps = asyncio.get_running_loop(), asyncio.Queue[Step]()

        def tell(step: Step) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, step)

        job = Job(prompt, Sampler(_sampling(wanted)), answer, matcher, tell, prompt_top=common.prompt_logprobs)
        head = {"id": kind.prefix + uuid.uuid4().hex, "created": int(time.time()), "model": self.options.name}
        reply = kind(wanted, self.text, answer, prompt, head)
        if so_far is not None:
            if not reply.go_on(so_far):
                raise Refused("the answer had come to its end", "output_ids")
            if matcher is not None:
                for token in so_far:
                    matcher.accept(token)
        self.scheduler.submit(job)
        return job, reply, steps

    def _matcher(self, grammar: protocol.Grammar) -> Any:
        build: dict[str, Callable[[Any], str]] = {"regex": from_regex, "json": from_schema, "tools": from_tools}
        return self.grammars.compile(build[grammar.kind](grammar.value))

    async def _answer(
        self, request: web.Request, job: Job, reply: ChatReply | CompletionReply, steps: asyncio.Queue[Step]
    ) -> web.StreamResponse:
        try:
            first = await steps.get()
            if first.said.finish == "error":
                return _json(error(500, "the model failed, see the server's log"), 500)
            reply.cached = job.cached
            if reply.wanted.common.stream:
                return await self._stream(request, reply, first, steps)
            reply.parse(first)
            while reply.finish is None:
                reply.parse(await steps.get())
            if reply.finish == "error":
                return _json(error(500, "the model failed, see the server's log"), 500)
            reply.scored = job.scored
            return _json(reply.whole(self._fingerprint()))
        finally:
            # also reached when the client is gone and this handler is cancelled
            self.scheduler.cancel(job)

    async def _stream(
        self, request: web.Request, reply: ChatReply | CompletionReply, step: Step, steps: asyncio.Queue[Step]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        if isinstance(reply, ChatReply) and not reply.goes_on:
            await response.write(_event(reply.first()))
        while True:
            await response.write(_event(reply.chunk(step)))
            if reply.finish is not None:
                break
            step = await steps.get()
        options = reply.wanted.common.stream_options
        if options and options.include_usage:
            await response.write(_event(reply.usage_chunk(self._fingerprint())))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _fingerprint(self) -> str:
        return f"forge-{__version__}-{self.scheduler.digest[:8]}"


def _sampling(wanted: Wanted) -> Sampling:
    c = wanted.common
    return Sampling(
        temperature=1.0 if c.temperature is None else c.temperature,
        top_p=1.0 if c.top_p is None else c.top_p,
        top_k=c.top_k or 0,
        min_p=c.min_p or 0.0,
        seed=c.seed,
        top_logprobs=wanted.top,
    )


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
