"""Request bodies: read and decompressed within limits.

Harnesses compress long histories (Codex by zstd). A bomb costs at most the cap: every decoder is asked for no more
bytes than are still allowed.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from aiohttp import web

from forge.proxy.config import Limits
from forge.proxy.refusal import Refused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS_MAX: Final = 2
"""Nested encodings; nobody honest sends more."""


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def _zlib(bits: int) -> Callable[[], _Decoder]:
    return lambda: zlib.decompressobj(bits)


DECODERS: Final[dict[str, Callable[[], _Decoder]]] = {
    "gzip": _zlib(31),
    "x-gzip": _zlib(31),
    "deflate": _zlib(47),
    "zstd": zstd.ZstdDecompressor,
}


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """The decoded body. Raises ``Refused`` 400, 408, 413 or 415."""
    encodings = [e.strip().lower() for e in request.headers.get("Content-Encoding", "").split(",")]
    encodings = [e for e in encodings if e not in ("", "identity")]
    for encoding in encodings:
        if encoding not in DECODERS or len(encodings) > ENCODINGS_MAX:
            raise Refused(
                415,
                "unsupported_content_encoding",
                f"Content-Encoding {encoding[:40]!r} cannot be read here; send {', '.join(DECODERS)} or none",
            )
    body = await _read(request, limits)
    for encoding in reversed(encodings):
        body = decompress(encoding, body, limits.body_bytes)
    return body


def decompress(encoding: str, body: bytes, limit: int) -> bytes:
    """Raises ``Refused`` 400 on a broken or cut body, 413 above ``limit`` bytes."""
    decoder = DECODERS[encoding]()
    try:
        plain = decoder.decompress(body, limit + 1)
    except (zlib.error, zstd.ZstdError) as error:
        raise Refused(400, "bad_content_encoding", f"the body is not {encoding}: {error}") from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not decoder.eof:
        raise Refused(400, "bad_content_encoding", f"the {encoding} body is cut short")
    return plain


async def _read(request: web.BaseRequest, limits: Limits) -> bytes:
    if (request.content_length or 0) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "body_timeout", f"the body did not arrive within {limits.body_s:g} s") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> Refused:
    return Refused(413, "body_too_large", f"the request body is larger than {limit} bytes")
