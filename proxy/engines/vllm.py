"""vLLM by URL: what its chat and raw completions want and give (checked against 0.32), and how it loads new weights.

The non-obvious facts, all from its serving code: a whole body writes every member, null where nothing was asked; a
chunk writes ``token_ids`` and ``logprobs`` as null when not asked, the first one ``prompt_token_ids`` too; a chunk
with an empty delta is sent only when ids or log probs are asked; and the fingerprint stands on the finishing chunks
unless a usage chunk follows. Its chat answers name no weight version. Reloading does not flush any cache. Routed
experts come in whole bodies of a server that was started so, asked or not; prompt log probs in whole bodies alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.engines import answers
from forge.proxy.engines.adapters import by_base
from forge.proxy.engines.base import (
    NOTHING,
    Adapters,
    Ask,
    Collect,
    Continues,
    Continuing,
    Cut,
    GivenUp,
    Publication,
    Step,
    Tokens,
    Wire,
)
from forge.proxy.engines.going_on import RAW_PATH, raw
from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.engines.vllm_rest import TOKEN_IN, chat
from forge.proxy.splice import UNREADABLE

_ASKS_NOTHING: Final = (b"", b"null", b"false")
_DONE: Final = {"success": True}
_MAYBE_MISSING: Final = (200, 404)
"""Caches that not every version has."""


def _continuation(path: str, body: bytes, so_far: GivenUp) -> Continuing:
    return raw(body, so_far) if path == RAW_PATH else chat(body, so_far)


class Vllm:
    name: str = "vllm"
    trainable: bool = True
    wire: Wire = Wire(developer_is_system=True, tool_text_only=True, reasoning=True)
    start_path: str | None = "/metrics"
    start_pattern: bytes = rb"(?m)^process_start_time_seconds (\S+)"
    token_in: str | None = TOKEN_IN
    continuation: Continues | None = staticmethod(_continuation)
    fallback: str | None = None
    adapters: Adapters | None = Adapters("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
    id_cuts: tuple[Cut, ...] = (
        Cut(b"token_ids", b"null", b"null"),
        Cut(b"prompt_token_ids", b"null", b"null"),
    )
    log_prob_cut: Cut = Cut(b"logprobs", b"null", b"null")
    usage_members: tuple[str, ...] = ("system_fingerprint",)
    empty_when_asked: bool = True
    """It sends a chunk with an empty delta only where ids or log probs are asked."""

    def ask(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect = NOTHING) -> Ask:
        members: dict[str, bytes] = {}
        cuts: tuple[Cut, ...] = ()
        raw = "prompt" in request
        # Asked for ids, it leaves the prompt's text out of an echo; asked for log probs, it scores the prompt.
        echo = raw and asks(request, "echo")
        ids = echo or asks(request, "return_token_ids")
        log_probs = echo or asks(request, "logprobs")
        usage = not stream or asks_usage(request)
        if not ids:
            members["return_token_ids"] = b"true"
            cuts += self.id_cuts
        if not log_probs:
            members["logprobs"] = b"0" if raw else b"true"
            cuts += (self.log_prob_cut,)
            if collect.top_logprobs:
                members["logprobs" if raw else "top_logprobs"] = b"%d" % collect.top_logprobs
        if collect.prompt_logprobs and not stream and not asks(request, "prompt_logprobs"):
            members["prompt_logprobs"] = b"0"
            cuts += (Cut(b"prompt_logprobs", None, b"null"),)
        if not usage:
            members["stream_options"] = b'{"include_usage":true}'
        return Ask(
            members,
            cuts,
            drop_usage_chunk=not usage,
            usage_members=self.usage_members,
            drop_empty_chunks=self.empty_when_asked and not raw and not ids and not log_probs,
        )

    def read_whole(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return [by_base(tokens) for tokens in answers.read_whole(body, prompts)]

    def read_stream(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return [by_base(tokens) for tokens in answers.read_stream(body, prompts)]

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        reload: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        return Publication(
            pause=(Step("POST", f"/pause?mode={mode}"),),
            load=(Step("POST", "/collective_rpc", reload),),
            reset=(
                # Requests kept in flight hold blocks: the reset answers 200 with success false unless they are let go
                # and computed again.
                Step(
                    "POST",
                    f"/reset_prefix_cache{'?reset_running_requests=true' if mode == 'keep' else ''}",
                    expect=_DONE,
                ),
                Step("POST", "/reset_mm_cache", ok=_MAYBE_MISSING),
                Step("POST", "/reset_encoder_cache", ok=_MAYBE_MISSING),
            ),
            digest=None,
            set_version=(Step("POST", "/update_weight_version", {"new_version": str(version)}, expect=_DONE),),
            resume=(Step("POST", "/resume"),),
        )


def asks(request: Mapping[str, bytes | Raw], name: str) -> bool:
    """Whether the harness itself asks for this member of the answer."""
    return bytes(request.get(name, b"")) not in _ASKS_NOTHING


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


def asks_usage(request: Mapping[str, bytes | Raw]) -> bool:
    options = bytes(request.get("stream_options", b""))
    if options in _ASKS_NOTHING:
        return False
    try:
        return bool(msgspec.json.decode(options, type=_StreamOptions).include_usage)
    except UNREADABLE:
        # Malformed: left as it is for the engine to refuse.
        return True
