"""Bytes to a port and bytes back, for tests that send what no HTTP client would."""

from __future__ import annotations

import asyncio
import re

WAIT_S = 10.0
CHAT = b'{"messages":[{"role":"user","content":"hi"}]}'
LENGTH = b"Content-Length: %d" % len(CHAT)
CLOSE = b"Connection: close"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT), CHAT)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def request(
    *heads: bytes,
    line: bytes = b"POST /v1/chat/completions HTTP/1.1",
    host: bytes = b"Host: 127.0.0.1\r\n",
    body: bytes = CHAT,
) -> bytes:
    return line + b"\r\n" + host + b"".join(head + b"\r\n" for head in heads) + b"\r\n" + body


async def said(port: int, raw: bytes, *, ends: bool = False) -> bytes:
    """All that comes back until the other side closes, which a good request has to ask for (``CLOSE``), or which it
    does when it sees that nothing more comes (``ends``)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        if ends:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), WAIT_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    """Of every response in the bytes, in order."""
    return [int(status) for status in re.findall(rb"HTTP/\d\.\d (\d{3}) ", answer)]
