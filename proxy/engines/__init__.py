"""One file per kind of policy server: the fields it wants, the shape of its answers, what it can do."""

from __future__ import annotations

from typing import Final

from forge.proxy.engines.base import Engine
from forge.proxy.engines.embedded import Embedded
from forge.proxy.engines.openai import OpenAI
from forge.proxy.engines.vllm import Vllm

_ALL: Final[tuple[Engine, ...]] = (Vllm(), Embedded(), OpenAI())
ENGINES: Final[dict[str, Engine]] = {engine.name: engine for engine in _ALL}
