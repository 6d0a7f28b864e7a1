"""What a policy server can do, found out by asking: a few tiny calls when it joins the pool.

Strict recording refuses here, before a single token is wasted, a server whose calls could not train.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from forge.proxy.dialects.base import CHAT_PATH, COMPLETIONS_PATH
from forge.proxy.engines import ENGINES, read
from forge.proxy.engines.base import Abilities, Engine, Tokens
from forge.proxy.upstreams.client import BrokeOff, EngineClient, NotBegun
from forge.proxy.upstreams.identity import hash_ids, rendered_defaults, takes, tokenizer_hash, untold
from forge.storage.errors import Unavailable, Untrainable

log = logging.getLogger(__name__)

MAX_TOKENS: Final = 4
TOP: Final = 8
"""Alternatives asked for: the likeliest tokens, some of which a hidden truncation would take out."""
RESCORED_MAX: Final = 0.5
"""Nats: half precision and another batch explain a tenth of this."""
NEUTRAL: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
WAIT_S: Final = 0.25
NOTICE_S: Final = 5.0
PROCESSED, RAW = "processed", "raw"
USER: Final = {"role": "user", "content": "Say hello."}
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


async def wait_up(client: EngineClient, url: str, limit_s: float, notice: Callable[[str], None]) -> None:
    """Returns once the server answers. Raises ``Unavailable`` after ``limit_s``."""
    end = time.monotonic() + limit_s
    said = 0.0
    while True:
        try:
            status, _ = await client.json("GET", f"{url}/v1/models")
            if status == 200:
                return
            why = f"it answers {status}"
            if status in (401, 403):
                raise Unavailable(f"the policy server {url} refuses our key", "pass --upstream-key-file FILE")
        except (NotBegun, BrokeOff) as error:
            why = str(error)
        if time.monotonic() >= end:
            raise Unavailable(
                f"the policy server {url} is not up after {limit_s:g} s: {why}",
                f"start it, or check the URL with: curl {url}/v1/models",
            )
        if time.monotonic() - said >= NOTICE_S:
            said = time.monotonic()
            notice(f"waiting for the policy server {url} ({why})")
        await asyncio.sleep(WAIT_S)


async def probe(client: EngineClient, url: str, engine: Engine, known: Abilities) -> tuple[Engine, Abilities]:
    """``known``, and what its calls show; the engine that suits it. Raises ``Unavailable`` if it serves none."""
    found = await _probe(client, url, engine, known)
    if engine.fallback is not None and not found.stream_ids:
        other = ENGINES[engine.fallback]
        again = await _probe(client, url, other, known)
        if again.stream_ids:
            return other, again
    return engine, found


async def _probe(client: EngineClient, url: str, engine: Engine, known: Abilities) -> Abilities:
    ask = _Asker(client, url, engine, known.model)
    plain = await ask.whole([USER], temperature=0)
    if plain is None:
        raise Unavailable(f"the policy server {url} did not serve a probe call: {ask.failure}", "look at its log")
    first, raw = plain
    streamed = await ask.stream([USER])
    cooled = await ask.whole([USER], temperature=0.5, max_tokens=1)
    with_tools = await ask.whole([USER], temperature=0, max_tokens=1, tools=[TOOL])
    said = {"role": "assistant", "content": first.message.get("content") or ""}
    second = await ask.whole([USER, said, USER], temperature=0, max_tokens=1)
    append_only, divergence = _append_only(first, second[0] if second else None)
    rendered = [one[0].prompt_ids.tolist() for one in (plain, with_tools, second) if one is not None]
    answers = [one[0] for one in (plain, cooled, with_tools, second) if one is not None]
    return replace(
        known,
        ids=len(first.prompt_ids) > 0 and len(first.output_ids) > 0,
        stream_ids=streamed is not None and len(streamed.prompt_ids) > 0 and len(streamed.output_ids) > 0,
        log_probs=_scored(first) and all(map(_scored, [*answers, *([streamed] if streamed is not None else [])])),
        logprobs_mode=logprobs_mode(raw, cooled[1] if cooled else {}),
        stop_token_included=_stop_token(first, raw),
        tools_rendered=len(with_tools[0].prompt_ids) > len(first.prompt_ids) if with_tools else None,
        append_only=append_only,
        first_divergence=divergence,
        sampling_defaults=await _defaults(ask, known),
        token_in=await takes(client, url, engine.token_in),
        adapters=engine.adapters is not None and await takes(client, url, engine.adapters.load_path),
        rescored=await ask.rescored(first) if engine.trainable else None,
        template_hash=hash_ids(rendered) if len(first.prompt_ids) else None,
        tokenizer_hash=await tokenizer_hash(client, url, known.model),
    )


def _scored(tokens: Tokens) -> bool:
    """Each sampled token has a log prob, whatever stood between the sampler and the answer."""
    return len(tokens.output_log_probs) == len(tokens.output_ids) or not len(tokens.output_ids)


async def _defaults(ask: _Asker, known: Abilities) -> Mapping[str, Any]:
    """What the server takes for sampling members that it is not sent: as it says, else as its log probs show."""
    told = {**known.sampling_defaults, **await ask.rendered_defaults([USER])}
    if told:
        return told
    plain = await ask.whole([USER], max_tokens=1)
    neutral = await ask.whole([USER], max_tokens=1, **NEUTRAL)
    if plain is None or neutral is None:
        return {}
    return untold(_first_token(plain[1]), _first_token(neutral[1]))


def require_trainable(url: str, engine: Engine, found: Abilities) -> None:
    """Strict mode's door. Raises ``Untrainable`` naming what is missing and the fix."""
    hint = "use vLLM >= 0.12 or the embedded server; or record without training: --record best-effort"
    if not engine.trainable:
        raise Untrainable(f"the policy server {url} ({engine.name}) never gives token ids", hint)
    missing = [
        name
        for name, there in (
            ("token ids", found.ids),
            ("token ids in streams", found.stream_ids),
            ("log probabilities of every sampled token", found.log_probs),
        )
        if not there
    ]
    if missing:
        raise Untrainable(f"the policy server {url} ({engine.name}) does not give {' nor '.join(missing)}", hint)
    if found.rescored is not None and found.rescored > RESCORED_MAX:
        raise Untrainable(
            f"the policy server {url} gives log probs that are not those of its model: on the same tokens they are "
            f"{found.rescored:.2f} nats off on average",
            "turn speculative decoding off; " + hint,
        )
    if found.logprobs_mode == RAW:
        log.warning(
            "policy server %s gives raw log probs: they are those of the sampler only at temperature 1; "
            "start vLLM with --logprobs-mode processed_logprobs",
            url,
        )
    if found.append_only is False:
        log.warning("policy server %s: two turns are not append-only: %s", url, found.first_divergence)


class _Asker:
    """Tiny calls with the engine's own asks."""

    def __init__(self, client: EngineClient, url: str, engine: Engine, model: str | None) -> None:
        self._client = client
        self._url = url
        self._engine = engine
        self._model = model
        self.failure: str | None = None

    async def whole(self, messages: list[dict[str, str]], **members: Any) -> tuple[Tokens, dict[str, Any]] | None:
        body = await self._send({"messages": messages, "top_logprobs": TOP, "max_tokens": MAX_TOKENS} | members)
        if body is None:
            return None
        try:
            choices = self._engine.read_whole(body)
            return choices[0], msgspec.json.decode(body)
        except (ValueError, IndexError) as error:
            self.failure = f"its answer cannot be read: {error}"
            return None

    async def rescored(self, said: Tokens) -> float | None:
        """The same ids scored as a prompt. None where the server does not score prompts."""
        ids = [*said.prompt_ids.tolist(), *said.output_ids.tolist()]
        if not len(said.output_ids) or len(said.output_log_probs) != len(said.output_ids):
            return None
        request = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        body = await self._send(request, COMPLETIONS_PATH)
        try:
            scores = msgspec.json.decode(body or b"")["choices"][0]["logprobs"]["token_logprobs"]
            at = len(said.prompt_ids)
            found = np.array(scores[at : at + len(said.output_ids)], dtype=np.float64)
            whole = len(found) == len(said.output_log_probs)
            return float(np.mean(np.abs(found - said.output_log_probs))) if whole else None
        except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError):
            return None

    async def rendered_defaults(self, messages: list[dict[str, str]]) -> Mapping[str, Any]:
        named = {} if self._model is None else {"model": self._model}
        return await rendered_defaults(self._client, self._url, {"messages": messages, **named})

    async def stream(self, messages: list[dict[str, str]]) -> Tokens | None:
        body = await self._send({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True})
        try:
            choices = read(self._engine, body) if body is not None else []
        except ValueError as error:
            self.failure = f"its stream cannot be read: {error}"
            return None
        return choices[0] if choices else None

    async def _send(self, request: dict[str, Any], path: str = CHAT_PATH) -> bytes | None:
        if self._model is not None:
            request["model"] = self._model
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in request.items()}
        ask = self._engine.ask(raw, stream=bool(request.get("stream")))
        raw |= {name: msgspec.Raw(value) for name, value in ask.members.items()}
        try:
            reply = await self._client.send("POST", self._url + path, msgspec.json.encode(raw))
            try:
                body = await reply.body(1 << 20)
            finally:
                reply.close()
        except (NotBegun, BrokeOff) as error:
            self.failure = str(error)
            return None
        if reply.status != 200:
            text = self._client.redact(body)[:200].decode(errors="replace")
            self.failure = f"it answers {reply.status}: {text}"
            return None
        return body


def _first_token(answer: Mapping[str, Any]) -> dict[str, float]:
    """Log probability by token text, of the alternatives at the first position."""
    try:
        return {
            str(e["token"]): float(e["logprob"]) for e in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        }
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def logprobs_mode(at_one: Mapping[str, Any], at_half: Mapping[str, Any]) -> str | None:
    """Processed or raw, from one answer at temperature 1 (0 reports as 1 does) and one at 0.5; None: it cannot be told.

    Halving the temperature doubles the gap between two tokens if log probs are those of the sampler, and leaves raw
    ones alone. The same two tokens are compared: vLLM lists the sampled token first, however unlikely it was.
    """
    one, half = _first_token(at_one), _first_token(at_half)
    shared = sorted((token for token in one if token in half), key=one.__getitem__, reverse=True)[:2]
    if len(shared) < 2 or one[shared[0]] <= one[shared[1]]:
        return None
    likely, unlikely = shared
    return PROCESSED if (half[likely] - half[unlikely]) / (one[likely] - one[unlikely]) > 1.5 else RAW


def _stop_token(tokens: Tokens, answer: Mapping[str, Any]) -> bool | None:
    if tokens.finish_reason != "stop":
        return None
    try:
        entries = answer["choices"][0]["logprobs"]["content"]
        text = answer["choices"][0]["message"]["content"] or ""
    except (KeyError, IndexError, TypeError):
        return None
    return "".join(str(entry.get("token", "")) for entry in entries) != text


def _append_only(first: Tokens, second: Tokens | None) -> tuple[bool | None, str | None]:
    if second is None or not len(first.prompt_ids) or not len(second.prompt_ids):
        return None, None
    prompt, output = first.prompt_ids.tolist(), first.output_ids.tolist()
    later = second.prompt_ids.tolist()
    if later[: len(prompt)] != prompt:
        return False, "the first user message, once an answer follows it"
    if later[len(prompt) : len(prompt) + len(output)] != output:
        return False, "the assistant message: its text tokenises otherwise than it was sampled"
    return True, None
