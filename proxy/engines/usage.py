"""An engine's own count of an answer's tokens, without reading the answer: every engine writes it once, at the end.

Pure. The one non-obvious fact: inside a JSON string a quote is always escaped, so the bytes looked for are the member
itself; the last one counts, for some engines write a count so far into every chunk.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from forge.proxy.splice import UNREADABLE

_SIGN: Final = b'"usage":'
_ENDS_MAX: Final = 8
"""Objects inside the count, and its own end."""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class Counted(NamedTuple):
    prompt: int
    output: int
    """Of all choices together."""


_decoder: Final = msgspec.json.Decoder(_Usage)


def counted(answer: bytes | bytearray) -> Counted | None:
    """Of a whole body or a stream; None where it says none."""
    at = answer.rfind(_SIGN)
    while at >= 0:
        start = end = at + len(_SIGN)
        for _ in range(_ENDS_MAX):
            end = answer.find(b"}", end) + 1
            if not end:
                break
            try:
                usage = _decoder.decode(memoryview(answer)[start:end])
            except UNREADABLE:
                continue
            return Counted(usage.prompt_tokens, usage.completion_tokens)
        at = answer.rfind(_SIGN, 0, at)
    return None
