"""One file per kind of policy server: the fields it wants, the shape of its answers, what it can do."""

from __future__ import annotations

from typing import Final

from forge.proxy.engines.base import Engine, Tokens
from forge.proxy.engines.embedded import Embedded
from forge.proxy.engines.llamacpp import LlamaCpp
from forge.proxy.engines.openai import OpenAI
from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.engines.sglang import Sglang, SglangWhole
from forge.proxy.engines.vllm import Vllm

_ALL: Final[tuple[Engine, ...]] = (Vllm(), Sglang(), SglangWhole(), Embedded(), LlamaCpp(), OpenAI())
ENGINES: Final[dict[str, Engine]] = {engine.name: engine for engine in _ALL}


def read(engine: Engine, body: bytes, content_type: str = "", prompts: PromptIds | None = None) -> list[Tokens]:
    """A stream or a whole body, whichever it is: some engines answer whole where a stream was asked. Raises
    ``ValueError`` on what is neither."""
    whole = body[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") or "json" in content_type
    return engine.read_whole(body, prompts) if whole else engine.read_stream(body, prompts)
