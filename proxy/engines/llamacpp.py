"""llama.cpp's server by URL: sampled ids beside their log probs, and no ids of the prompt, so it never trains.

The non-obvious facts (its server's source): each entry of ``logprobs.content`` holds its token's ``id``; the log probs
are those before its samplers and its temperature; the token that ended the answer is not among them; a probability of
0 is written as the lowest number there is. It loads no new weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from forge.proxy.engines import answers
from forge.proxy.engines.base import NOTHING, Adapters, Ask, Collect, Continues, Cut, Publication, Tokens, Wire
from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.engines.vllm import asks, asks_usage


class LlamaCpp:
    name: str = "llamacpp"
    trainable: bool = False
    wire: Wire = Wire(developer_is_system=True, tool_text_only=True)
    start_path: str | None = None
    start_pattern: bytes = b""
    token_in: str | None = "/completion"
    continuation: Continues | None = None
    fallback: str | None = None
    adapters: Adapters | None = None

    def ask(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect = NOTHING) -> Ask:
        members: dict[str, bytes] = {}
        cuts: tuple[Cut, ...] = ()
        # A raw completion that asks for log probs is given another shape by each of its versions: it is left alone.
        if "prompt" not in request and not asks(request, "logprobs"):
            members["logprobs"] = b"true"
            cuts = (Cut(b"logprobs", None, None),)
        usage = not stream or asks_usage(request)
        if not usage:
            members["stream_options"] = b'{"include_usage":true}'
        return Ask(members, cuts, drop_usage_chunk=not usage)

    def read_whole(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return answers.read_whole(body, prompts)

    def read_stream(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return answers.read_stream(body, prompts)

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        return None
