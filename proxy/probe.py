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

from forge.proxy.dialects.base import CHAT_PATH
from forge.proxy.engines import ENGINES
from forge.proxy.engines.base import Abilities, Engine, Tokens
from forge.proxy.upstream import BrokeOff, EngineClient, NotBegun
from forge.storage.errors import BadInput, Unavailable, Untrainable

log = logging.getLogger(__name__)

MAX_TOKENS: Final = 4
TOP: Final = 3
"""Alternatives asked for: the two likeliest tokens, and room for the sampled one."""
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


async def identify(client: EngineClient, url: str, name: str) -> tuple[Engine, Abilities]:
    """The kind of server, and what its plain routes say. ``name``: an engine, or ``auto``."""
    if name != "auto" and name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}", f"give one of: auto, {', '.join(ENGINES)}")
    _, models = await _get(client, f"{url}/v1/models")
    _, version = await _get(client, f"{url}/version")
    _, weights = await _get(client, f"{url}/weight_info")
    entry: dict[str, Any] = next(iter(models.get("data") or [{}]), {})
    length = entry.get("max_model_len")
    stated = str(weights.get("weight_version", ""))
    if name == "auto":
        name = "embedded" if "weight_digest" in weights else "vllm" if "version" in version else "openai"
    return ENGINES[name], Abilities(
        model=entry.get("id"),
        max_model_len=length if isinstance(length, int) else None,
        engine_version=version.get("version"),
        weight_version=int(stated) if stated.isdigit() else None,
        weight_digest=weights.get("weight_digest"),
        weight_lineage=weights.get("weight_lineage"),
        weight_update=bool(weights),
    )


async def probe(client: EngineClient, url: str, engine: Engine, known: Abilities) -> Abilities:
    """``known``, and what its calls show. Raises ``Unavailable`` if it serves none."""
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
    return replace(
        known,
        ids=len(first.prompt_ids) > 0 and len(first.output_ids) > 0,
        stream_ids=streamed is not None and len(streamed.prompt_ids) > 0 and len(streamed.output_ids) > 0,
        log_probs=0 < len(first.output_log_probs) == len(first.output_ids),
        logprobs_mode=logprobs_mode(raw, cooled[1] if cooled else {}),
        stop_token_included=_stop_token(first, raw),
        tools_rendered=len(with_tools[0].prompt_ids) > len(first.prompt_ids) if with_tools else None,
        append_only=append_only,
        first_divergence=divergence,
    )


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
            ("log probabilities", found.log_probs),
        )
        if not there
    ]
    if missing:
        raise Untrainable(f"the policy server {url} ({engine.name}) does not give {' nor '.join(missing)}", hint)
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
        self._url = url + CHAT_PATH
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

    async def stream(self, messages: list[dict[str, str]]) -> Tokens | None:
        body = await self._send({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True})
        choices = self._engine.read_stream(body) if body is not None else []
        return choices[0] if choices else None

    async def _send(self, request: dict[str, Any]) -> bytes | None:
        if self._model is not None:
            request["model"] = self._model
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in request.items()}
        ask = self._engine.ask(raw, stream=bool(request.get("stream")))
        raw |= {name: msgspec.Raw(value) for name, value in ask.members.items()}
        try:
            reply = await self._client.send("POST", self._url, msgspec.json.encode(raw))
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


async def _get(client: EngineClient, url: str) -> tuple[int, dict[str, Any]]:
    try:
        status, body = await client.json("GET", url)
    except (NotBegun, BrokeOff):
        return 0, {}
    return status, body if status == 200 and isinstance(body, dict) else {}


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
