"""What a policy server is, from its plain routes: its kind, its version, when it started, its tokenizer, its defaults.

Owns every question that samples nothing. The one non-obvious fact: no server tells its tokenizer's or template's
files, so each is told by what it does: the hash of the ids that it makes of fixed texts, or of fixed chats (a template
that writes today's date has another hash tomorrow).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from forge.proxy.dialects.base import CHAT_PATH
from forge.proxy.door.discovery import MODEL_OWNER
from forge.proxy.engines import ENGINES
from forge.proxy.engines.adapters import listed
from forge.proxy.engines.base import Abilities, Engine
from forge.proxy.recording.worth import DEFAULTED, UNTOLD
from forge.proxy.upstreams.client import BrokeOff, EngineClient, NotBegun
from forge.storage.errors import BadInput

OWNERS: Final = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
"""``owned_by`` in a server's list of models to the engine."""
TEXTS: Final = (
    "The quick brown fox jumps over 13 lazy dogs.\n\tdef f(x): return x**2  # \u00e9\u4f60\u597d\U0001f642\u2028",
    '<|im_start|>user\n{"name": "probe", "arguments": {"word": "a\\nb"}}<|im_end|></s><tool_call></think>',
)
"""What tokenizers tell apart: digits, white space, code, other scripts, special tokens."""
SAMPLED_BY: Final = (*DEFAULTED, "presence_penalty", "frequency_penalty")
START_BYTES: Final = 1 << 20
LIKELY: Final = 3
DIFFERS: Final = 0.25
"""Nats: more than what batching in half precision moves a likely token's log prob by."""


async def identify(client: EngineClient, url: str, name: str) -> tuple[Engine, Abilities]:
    """The kind of server, and what its plain routes say. ``name``: an engine, or ``auto``."""
    if name != "auto" and name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}", f"give one of: auto, {', '.join(ENGINES)}")
    models = await get(client, f"{url}/v1/models")
    version = await get(client, f"{url}/version")
    weights = await get(client, f"{url}/weight_info")
    known = listed(models)
    entry: dict[str, Any] = next(iter(models.get("data") or [{}]), {})
    length = entry.get("max_model_len")
    if entry.get("owned_by") == MODEL_OWNER:
        raise BadInput(f"{url} is a Forge proxy, no policy server", "give the URL of the server behind it")
    if name == "auto":
        owner = OWNERS.get(str(entry.get("owned_by")), "vllm" if "version" in version else "openai")
        name = "embedded" if "weight_digest" in weights else owner
    engine = ENGINES[name]
    if name.startswith("sglang"):
        weights = await get(client, f"{url}/model_info") or await get(client, f"{url}/get_model_info")
        version = await get(client, f"{url}/server_info") or await get(client, f"{url}/get_server_info")
    serves = stated(weights)
    adapter = known.of(serves)
    return engine, Abilities(
        model=known.base,
        adapter=adapter,
        weights=known.root if serves is None or adapter is not None else None,
        max_model_len=length if isinstance(length, int) else None,
        engine_version=version.get("version"),
        weight_version=serves,
        weight_digest=weights.get("weight_digest"),
        weight_lineage=weights.get("weight_lineage"),
        weight_update=bool(weights),
        sampling_defaults=_sampled_by(weights.get("preferred_sampling_params")),
        started=await started(client, url, engine),
    )


def stated(weights: Mapping[str, Any]) -> int | None:
    """The version that a server says it serves; None for what it was started with."""
    said = str(weights.get("weight_version", ""))
    return int(said) if said.isdigit() else None


async def started(client: EngineClient, url: str, engine: Engine) -> str | None:
    """When the server's process started, or which one it is, in its own words; None where it does not say."""
    if engine.start_path is None:
        return None
    try:
        reply = await client.send("GET", url + engine.start_path)
        try:
            body = await reply.body(START_BYTES)
        finally:
            reply.close()
    except (NotBegun, BrokeOff):
        return None
    found = re.search(engine.start_pattern, body) if reply.status == 200 else None
    return found[1].decode(errors="replace") if found is not None else None


async def tokenizer_hash(client: EngineClient, url: str, model: str | None) -> str | None:
    """Of the ids of fixed texts; None where the server tokenises nothing."""
    named = {} if model is None else {"model": model}
    ids = []
    for text in TEXTS:
        for member in ("prompt", "content"):  # the second is llama.cpp's
            tokens = (await post(client, f"{url}/tokenize", {**named, member: text})).get("tokens")
            if isinstance(tokens, list) and tokens:
                break
        else:
            return None
        ids.append(tokens)
    return hash_ids(ids)


def hash_ids(lists: Sequence[Sequence[Any]]) -> str:
    return hashlib.blake2b(msgspec.json.encode(lists), digest_size=16).hexdigest()


async def takes(client: EngineClient, url: str, path: str | None) -> bool:
    """Whether it has that route: an empty request asks for nothing, and is refused where there is one."""
    if path is None:
        return False
    try:
        status, _ = await client.json("POST", url + path, {})
    except (NotBegun, BrokeOff):
        return False
    return status not in (403, 404, 405, 501)


async def rendered_defaults(client: EngineClient, url: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """What it takes for sampling members that it is not sent, where it shows a request made ready (vLLM's scale-out
    routes)."""
    said = await post(client, f"{url}{CHAT_PATH}/render", request)
    found = said.get("sampling_params")
    return _sampled_by(found) if isinstance(found, dict) else {}


def _sampled_by(said: Any) -> Mapping[str, Any]:
    if not isinstance(said, dict):
        return {}
    return {name: said[name] for name in SAMPLED_BY if isinstance(said.get(name), int | float)}


def untold(plain: Mapping[str, float], neutral: Mapping[str, float]) -> Mapping[str, Any]:
    """Log probs of the likeliest first tokens, by text, without any sampling members and with neutral ones: where they
    differ the server has defaults that it does not tell."""
    likely = sorted(neutral, key=neutral.__getitem__, reverse=True)[:LIKELY]
    differ = [abs(plain.get(token, -math.inf) - neutral[token]) > DIFFERS for token in likely]
    return {UNTOLD: True} if plain and any(differ) else {}


async def get(client: EngineClient, url: str) -> dict[str, Any]:
    return await _json(client, "GET", url, None)


async def post(client: EngineClient, url: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    return await _json(client, "POST", url, payload)


async def _json(client: EngineClient, method: str, url: str, payload: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answer's object; empty where there is none."""
    try:
        status, body = await client.json(method, url, payload)
    except (NotBegun, BrokeOff):
        return {}
    return body if status == 200 and isinstance(body, dict) else {}
