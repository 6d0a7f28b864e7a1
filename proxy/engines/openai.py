"""Any other server of chat completions: text only, so nothing it says can be trained on.

The non-obvious fact: it is asked for nothing but the usage of a stream, because strict servers refuse members they
do not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from forge.proxy.engines import answers
from forge.proxy.engines.base import NOTHING, Adapters, Ask, Collect, Continues, Publication, Tokens, Wire
from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.engines.vllm import asks_usage


class OpenAI:
    name: str = "openai"
    trainable: bool = False
    wire: Wire = Wire()
    start_path: str | None = None
    start_pattern: bytes = b""
    token_in: str | None = None
    continuation: Continues | None = None
    fallback: str | None = None
    adapters: Adapters | None = None

    def ask(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect = NOTHING) -> Ask:
        if not stream or asks_usage(request):
            return Ask()
        return Ask({"stream_options": b'{"include_usage":true}'}, drop_usage_chunk=True)

    def read_whole(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return answers.read_whole(body, prompts)

    def read_stream(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        return answers.read_stream(body, prompts)

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        return None
