"""One file per wire format, pure: bytes in, bytes out, no I/O."""

from __future__ import annotations

from typing import Final

from forge.proxy.dialects.base import Dialect
from forge.proxy.dialects.chat import Chat
from forge.proxy.dialects.responses import Responses

_ALL: Final[tuple[Dialect, ...]] = (Chat(), Responses())
DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in _ALL}
