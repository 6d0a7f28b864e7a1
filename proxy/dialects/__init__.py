"""One file per wire format, pure: bytes in, bytes out, no I/O."""

from __future__ import annotations

from typing import Final

from forge.proxy.dialects.base import Dialect
from forge.proxy.dialects.chat import Chat
from forge.proxy.dialects.completions import Completions
from forge.proxy.dialects.gemini import Gemini
from forge.proxy.dialects.gemini_framing import Array
from forge.proxy.dialects.messages import Messages
from forge.proxy.dialects.responses import Responses

_ALL: Final[tuple[Dialect, ...]] = (Chat(), Completions(), Responses(), Messages(), Gemini())
GEMINI_ARRAY: Final = "gemini-array"
"""The route of Gemini's other kind of stream; its calls are ``gemini`` calls like the rest."""
DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in _ALL} | {GEMINI_ARRAY: Gemini(Array)}
