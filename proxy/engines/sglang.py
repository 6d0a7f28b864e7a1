"""SGLang by URL: its OpenAI routes (read in 0.5.23's source) and how it loads new weights.

The non-obvious facts: a stream gives its ids once, in a chunk of its own after the finishing ones, and log probs in
the chunks; older servers ignore the members that ask for that and give ids in whole bodies alone, so such a server is
asked for whole bodies (``SglangWhole``; the probe tells which it is). Its whole answers name the weight versions of
their tokens. A harness that itself asks for one of the members that come beside the ids gets the ids with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from forge.proxy.engines import answers
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
from forge.proxy.engines.sglang_rest import chat
from forge.proxy.engines.vllm import asks, asks_usage

_IDS: Final = ("return_input_ids_in_sglext", "return_output_ids_in_sglext")
_BESIDE: Final = ("return_routed_experts", "return_cached_tokens_details", "return_spec_tokens_details")
"""What else rides on the member that holds the ids."""
_EXPERTS: Final = "return_routed_experts"
_MASK: Final = ("return_sampling_mask", "return_meta_info")
"""The kept ids come in the second's, in whole bodies of chat alone."""
_PAUSES: Final[Mapping[str, str]] = {"wait": "retract", "abort": "abort", "keep": "retract"}
"""``retract`` lets go of the cache of what runs and computes it again: ``in_place`` would keep it, and no flush would
succeed."""
_DONE: Final = {"success": True}


def _collected(
    request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect
) -> tuple[dict[str, bytes], tuple[Cut, ...]]:
    """What a run has recorded of a chat, and the harness did not ask for."""
    members: dict[str, bytes] = {}
    cuts: tuple[Cut, ...] = ()
    if collect.routed_experts and not asks(request, _EXPERTS):
        members[_EXPERTS] = b"true"
    if collect.sampling_mask and not stream and not asks(request, _MASK[0]):
        members |= dict.fromkeys(_MASK, b"true")
        cuts = (Cut(b"meta_info", None, None),) if not asks(request, _MASK[1]) else ()
    return members, cuts


def _alternatives(request: Mapping[str, bytes | Raw], name: str, collect: Collect) -> dict[str, bytes]:
    return {name: b"%d" % collect.top_logprobs} if collect.top_logprobs and not asks(request, "logprobs") else {}


def _continuation(path: str, body: bytes, so_far: GivenUp) -> Continuing:
    return raw(body, so_far) if path == RAW_PATH else chat(body, so_far)


class Sglang:
    name: str = "sglang"
    trainable: bool = True
    wire: Wire = Wire(developer_is_system=True)
    start_path: str | None = "/server_info"
    start_pattern: bytes = rb'"startup_time"\s*:\s*"?([^,"}\s]+)'
    token_in: str | None = "/generate"
    continuation: Continues | None = staticmethod(_continuation)
    fallback: str | None = "sglang_whole"
    adapters: Adapters | None = None
    log_prob_cut: Cut = Cut(b"logprobs", b"null", b"null")

    def ask(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect = NOTHING) -> Ask:
        if "prompt" in request:
            return self._ask_raw(request, stream=stream, collect=collect)
        members, cuts = _collected(request, stream=stream, collect=collect)
        ids = [name for name in _IDS if not asks(request, name)]
        members |= dict.fromkeys(ids, b"true") | _alternatives(request, "top_logprobs", collect)
        if len(ids) == len(_IDS) and not any(asks(request, name) for name in _BESIDE):
            cuts += (Cut(b"sglext", None, None),)
        return self._with_log_probs(request, members, cuts, stream=stream, log_probs=b"true")

    def _ask_raw(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect) -> Ask:
        members: dict[str, bytes] = {}
        cuts: tuple[Cut, ...] = ()
        if collect.routed_experts and not asks(request, _EXPERTS):
            members[_EXPERTS] = b"true"
            cuts += (Cut(b"sglext", None, None),) if not any(asks(request, name) for name in _BESIDE) else ()
        if not asks(request, "return_token_ids"):
            members["return_token_ids"] = b"true"
            cuts += (Cut(b"token_ids", None, None), Cut(b"prompt_token_ids", None, None))
        log_probs = b"%d" % collect.top_logprobs
        return self._with_log_probs(request, members, cuts, stream=stream, log_probs=log_probs)

    def _with_log_probs(
        self,
        request: Mapping[str, bytes | Raw],
        members: dict[str, bytes],
        cuts: tuple[Cut, ...],
        *,
        stream: bool,
        log_probs: bytes,
    ) -> Ask:
        asked = asks(request, "logprobs")
        if not asked:
            members["logprobs"] = log_probs
            cuts += (self.log_prob_cut,)
        usage = not stream or asks_usage(request)
        if not usage:
            members["stream_options"] = b'{"include_usage":true}'
        # Where a parser is on, log probs of tokens that show no text come in chunks of their own.
        return Ask(members, cuts, drop_usage_chunk=not usage, drop_empty_chunks=not asked and "prompt" not in request)

    def read_whole(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return answers.read_whole(body, prompts)

    def read_stream(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return answers.read_stream(body, prompts)

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        load = {"model_path": path, "flush_cache": True, "weight_version": str(version)}
        return Publication(
            pause=(Step("POST", "/pause_generation", {"mode": _PAUSES[mode]}),),
            load=(Step("POST", "/update_weights_from_disk", load, expect=_DONE),),
            # Answers 400 where something that runs still holds the cache.
            reset=(Step("POST", "/flush_cache"),),
            digest=None,
            set_version=(
                Step(
                    "POST",
                    "/update_weight_version",
                    {"new_version": str(version), "abort_all_requests": False},
                    expect=_DONE,
                ),
            ),
            resume=(Step("POST", "/continue_generation", {}),),
        )


class SglangWhole(Sglang):
    """One whose streams hold no ids: asked for a whole body, which the client gets as the stream it asked for."""

    name: str = "sglang_whole"
    fallback: str | None = None
    continuation: Continues | None = None

    def ask(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect = NOTHING) -> Ask:
        if "prompt" in request:
            return self._ask_raw(request, stream=stream, collect=collect)
        members, cuts = _collected(request, stream=False, collect=collect)
        asked = {
            "return_prompt_token_ids": (b"prompt_token_ids",),
            "return_token_ids": (b"response_token_ids",),
            "return_meta_info": (b"meta_info",),
        }
        for name, keys in asked.items():
            if not asks(request, name):
                members[name] = b"true"
                cuts += tuple(Cut(key, None, None) for key in keys)
        if stream:
            members["stream"] = b"false"
        if stream and asks(request, "stream_options"):
            members["stream_options"] = b"null"
        members |= _alternatives(request, "top_logprobs", collect)
        if not asks(request, "logprobs"):
            members["logprobs"] = b"true"
            cuts += (self.log_prob_cut,)
        return Ask(members, cuts, drop_usage_chunk=stream and not asks_usage(request))
