"""Request bodies: read and decompressed within limits.

Harnesses compress long histories (Codex by zstd). A bomb costs at most the cap: every decoder is asked for no more
bytes than are still allowed. What a client waits for before it sends (``Expect``) is said here too, once the request
may have a body at all.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol

import brotli  # type: ignore[import-untyped]

from forge.proxy.config import Limits
from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import Request

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS_MAX: Final = 2
"""Nested encodings; nobody honest sends more."""
FRAMES_MAX: Final = 64
"""Frames or members behind one another: parallel compressors write one per few megabytes."""
THREAD_BYTES: Final = 256 << 10
"""A compressed body larger than this is decoded in a thread: the loop serves other calls meanwhile."""


class _Decoder(Protocol):
    """One frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Brotli:
    """Brotli in the shape of the others. Its limit is a target: it stops within a few blocks after it."""

    unused_data: Final = b""
    """It refuses what follows its end by itself."""

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._decoder.is_finished())

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        pieces = [self._decoder.process(data, output_buffer_limit=max_length)]
        size = len(pieces[0])
        while size < max_length and not self._decoder.can_accept_more_data():
            pieces.append(self._decoder.process(b"", output_buffer_limit=max_length - size))
            size += len(pieces[-1])
        return b"".join(pieces)


def _zlib(bits: int) -> Callable[[], _Decoder]:
    return lambda: zlib.decompressobj(bits)


_GZIP: Final = _zlib(31)
_DEFLATE: Final = _zlib(15)
_RAW_DEFLATE: Final = _zlib(-15)
DECODERS: Final[dict[str, Callable[[], _Decoder]]] = {
    "gzip": _GZIP,
    "x-gzip": _GZIP,
    "deflate": _DEFLATE,
    "zstd": zstd.ZstdDecompressor,
    "br": _Brotli,
}
FRAMED: Final = frozenset({"gzip", "x-gzip", "zstd"})
"""Formats in which frames may follow one another."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """The decoded body. Raises ``Refused`` 400, 408, 413, 415 or 417."""
    if request.head.plain and request.complete and request.size <= request.limit:
        return request.take()
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
        if len(body) > THREAD_BYTES:
            body = await asyncio.to_thread(decompress, encoding, body, limits.body_bytes)
        else:
            body = decompress(encoding, body, limits.body_bytes)
    return body


def decompress(encoding: str, body: bytes, limit: int) -> bytes:
    """Raises ``Refused`` 400 on a broken or cut body, 413 above ``limit`` bytes."""
    make = DECODERS[encoding]
    if make is _DEFLATE and not _has_zlib_head(body):
        make = _RAW_DEFLATE
    pieces: list[bytes] = []
    size, rest = 0, body
    for _ in range(FRAMES_MAX if encoding in FRAMED else 1):
        decoder = make()
        try:
            pieces.append(decoder.decompress(rest, limit + 1 - size))
        except (zlib.error, zstd.ZstdError, brotli.error) as error:
            raise Refused(400, "bad_content_encoding", f"the body is not {encoding}: {error}") from error
        size += len(pieces[-1])
        if size > limit:
            raise _too_large(limit)
        if not decoder.eof:
            raise Refused(400, "bad_content_encoding", f"the {encoding} body is cut short")
        rest = decoder.unused_data
        if not rest:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise Refused(400, "bad_content_encoding", f"something follows the end of the {encoding} body")


def _has_zlib_head(body: bytes) -> bool:
    """``deflate`` means a zlib stream; some clients send it without its two-byte head."""
    return len(body) >= 2 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0


async def _read(request: Request, limits: Limits) -> bytes:
    if request.too_large:
        raise _too_large(limits.body_bytes)
    _go_on(request)
    if not request.complete:
        try:
            async with asyncio.timeout(limits.body_s):
                await request.arrived()
        except TimeoutError:
            raise Refused(408, "body_timeout", f"the body did not arrive within {limits.body_s:g} s") from None
    if request.broken:
        raise Refused(400, "bad_framing", "the body's chunks or length are malformed")
    if request.too_large:
        raise _too_large(limits.body_bytes)
    return request.take()


def _go_on(request: Request) -> None:
    """Tells a client that asked first (curl does above 1 KB) to send its body."""
    expected = request.headers.get("expect", "").lower()
    if not expected:
        return
    if expected != "100-continue":
        raise Refused(417, "expectation_failed", f"Expect: {expected[:40]} is not understood here")
    request.outlet.go_on()


def _too_large(limit: int) -> Refused:
    return Refused(413, "body_too_large", f"the request body is larger than {limit} bytes")
