"""Request bodies: compressed, cut short, too large, slow in coming, malformed, with Expect, a byte at a time."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.door.bodies import FRAMES_MAX, decompress
from forge.proxy.door.refusal import Refused
from forge.storage.frames import Open
from tests.engine import Gate, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, USER, WAIT_S, Serving, calls, serving

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = json.dumps({"model": "policy", "messages": [USER]}).encode()


def packed(data: bytes) -> bytes:
    """gzip without the time of day: test names must be the same in every worker."""
    return gzip.compress(data, mtime=0)


ENCODED = {
    "gzip": packed(BODY),
    "x-gzip": packed(BODY[:9]) + packed(BODY[9:]),
    "deflate": zlib.compress(BODY),
    "Deflate": zlib.compress(BODY, wbits=-15),
    "zstd": zstd.compress(BODY),
    "ZSTD": zstd.compress(BODY[:20]) + zstd.compress(b"") + zstd.compress(BODY[20:]),
    "br": brotli.compress(BODY),
    "identity": BODY,
    "": BODY,
    "gzip, zstd": zstd.compress(packed(BODY)),
}
"""Raw deflate, several members and several frames too: real clients send them."""
REFUSED = [
    ("made-up", BODY, 415),
    ("gzip, gzip, gzip", BODY, 415),
    ("br", BODY, 400),
    ("br", ENCODED["br"][:-2], 400),
    ("br", ENCODED["br"] + b"x", 400),
    ("deflate", ENCODED["deflate"] + b"x", 400),
    ("gzip", BODY, 400),
    ("gzip", ENCODED["gzip"] + b"x", 400),
    ("gzip", ENCODED["gzip"][:-9], 400),
    ("zstd", zstd.compress(BODY) * (FRAMES_MAX + 1), 400),
    ("zstd", ENCODED["zstd"][:-3], 400),
    ("zstd", b"", 400),
    ("gzip", packed(b"0" * 70_000), 413),
    ("br", brotli.compress(b"0" * 70_000), 413),
    ("zstd", zstd.compress(b"0" * 70_000), 413),
    ("zstd", zstd.compress(b"0" * 40_000) * 2, 413),
    ("", b"0" * 70_000, 413),
]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


async def post(s: Serving, data: Any, encoding: str, path: str = "/chat/completions") -> tuple[int, Any]:
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"} if encoding else {}
    async with s.http.post(s.proxy.base_url + path, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def connect(s: Serving, text: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    return reader, writer


async def line(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readline(), WAIT_S)


async def test_compressed_bodies_are_read_and_sent_on_plain(tmp_path: Path) -> None:
    """Field cases 1, 4: plain JSON goes on, with a length of its own and no encoding, and is what is recorded."""
    async with serving(tmp_path) as s:
        for encoding, data in ENCODED.items():
            assert (await post(s, data, encoding))[0] == 200, encoding
        assert all("Content-Encoding" not in x.headers and x.json["messages"] == [USER] for x in s.engine.served)
        assert all(int(x.headers["Content-Length"]) == len(x.body) for x in s.engine.served)
        assert len(s.engine.served) == len(ENCODED)
    assert all(json.loads(c.messages) == [USER] for c in calls(s.data))


@pytest.mark.parametrize(("encoding", "data", "status"), REFUSED, ids=range(len(REFUSED)))
async def test_what_cannot_be_read_is_refused_with_its_own_code(
    tmp_path: Path, encoding: str, data: bytes, status: int
) -> None:
    """Field case 3."""
    async with serving(tmp_path, limits=replace(QUICK, body_bytes=65536)) as s:
        got, body = await post(s, data, encoding)
        assert got == status
        codes = {415: "unsupported_content_encoding", 400: "bad_content_encoding", 413: "body_too_large"}
        assert body["error"]["code"] == codes[status]
        assert not s.frames(Open)


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip"])
def test_a_bomb_costs_no_more_than_the_cap(encoding: str) -> None:
    """Field case 3."""
    zeros = b"\0" * (64 << 20)
    bomb = {
        "zstd": zstd.compress,
        "br": lambda data: brotli.compress(data, quality=1),
        "gzip": packed,
    }[encoding](zeros)
    with pytest.raises(Refused) as caught:
        decompress(encoding, bomb, 1 << 20)
    assert caught.value.status == 413


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4), st.sampled_from(["gzip", "zstd", "br", "deflate"]))
def test_what_was_compressed_comes_back_and_a_cut_is_never_taken_for_the_whole(
    pieces: list[bytes], encoding: str
) -> None:
    plain = b"".join(pieces)
    frames = [packed(p) for p in pieces] if encoding == "gzip" else [zstd.compress(p) for p in pieces]
    whole = {"br": brotli.compress, "deflate": zlib.compress}.get(encoding, lambda _: b"".join(frames))(plain)
    ends = {sum(map(len, frames[:n])) for n in range(1, len(frames))} if encoding in ("gzip", "zstd") else set()
    assert decompress(encoding, whole, 1000) == plain
    for end in set(range(len(whole))) - ends:
        with pytest.raises(Refused) as caught:
            decompress(encoding, whole[:end], 1000)
        assert caught.value.status == 400


async def test_chunked_bodies_and_expect_are_served(tmp_path: Path) -> None:
    """Field cases 28, 29, 30."""

    async def chunks() -> Any:
        for start in range(0, len(BODY), 10):
            yield BODY[start : start + 10]

    async with serving(tmp_path) as s:
        assert (await post(s, chunks(), ""))[0] == 200
        async with s.http.post(f"{s.proxy.base_url}/chat/completions", data=BODY, expect100=True) as answer:
            assert answer.status == 200
        assert all(int(x.headers["Content-Length"]) == len(x.body) for x in s.engine.served)
        assert all("Expect" not in x.headers and "Transfer-Encoding" not in x.headers for x in s.engine.served)


async def test_a_client_that_waits_to_be_asked_is_asked(tmp_path: Path) -> None:
    """Field cases 28, 30: it sends nothing of its body before the 100."""
    async with serving(tmp_path) as s:
        reader, writer = await connect(s, HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BODY))
        assert await line(reader) == b"HTTP/1.1 100 Continue\r\n"
        writer.write(BODY)
        assert await line(reader) == b"\r\n"
        assert await line(reader) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n", b"413"),
        (b"Content-Length: 10\r\nExpect: a-miracle\r\n\r\n", b"417"),
        (b"Content-Length: 10\r\nExpect: 100-continue\r\nAuthorization: Bearer fs_abc_def\r\n\r\n", b"401"),
    ],
)
async def test_a_body_that_is_not_wanted_is_not_asked_for(tmp_path: Path, head: bytes, status: bytes) -> None:
    async with serving(tmp_path, limits=replace(QUICK, body_bytes=65536)) as s:
        reader, writer = await connect(s, HEAD + head)
        assert status in await line(reader)
        writer.close()


async def test_a_byte_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        reader, writer = await connect(s)
        for byte in HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY:
            writer.write(bytes([byte]))
            await writer.drain()
        assert b"200" in await line(reader)
        writer.close()


async def test_many_megabytes(tmp_path: Path) -> None:
    """Field case 3: long sessions are large, plain and compressed."""
    async with serving(tmp_path, ScriptedEngine(max_model_len=1 << 30)) as s:
        large = {"messages": [{"role": "user", "content": "x" * (6 << 20)}]}
        body = json.dumps(large).encode()
        for data, encoding in ((body, ""), (zstd.compress(body), "zstd")):
            assert (await post(s, io.BytesIO(data), encoding))[0] == 200
            assert s.engine.served[-1].json["messages"] == large["messages"]


@pytest.mark.parametrize("chunk", [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}XX", b"-1\r\n"])
async def test_malformed_chunks_are_400(tmp_path: Path, chunk: bytes) -> None:
    """Field case 29."""
    async with serving(tmp_path) as s:
        reader, writer = await connect(s, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        writer.write(chunk)
        assert b"400" in await line(reader)
        writer.close()
        assert not s.frames(Open)


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=replace(QUICK, body_s=0.2)) as s:
        reader, writer = await connect(s, HEAD + b"Content-Length: 100\r\n\r\n{")
        assert b"408" in await line(reader)
        writer.close()


@pytest.mark.parametrize("sent", [b"P", HEAD + b"Content-Le"], ids=["a letter", "nearly all"])
async def test_a_head_that_does_not_come_is_given_up(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path, limits=replace(QUICK, head_s=0.1)) as s:
        for before in (b"", b"HEAD /version HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            reader, writer = await connect(s, before)
            if before:  # a second head on a connection that was good
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            writer.write(sent)
            assert b"408" in await line(reader)
            assert (await asyncio.wait_for(reader.read(), WAIT_S)).endswith(b"\r\n\r\n"), "the connection has ended"
            writer.close()
        assert not s.frames(Open)


async def test_the_limit_of_heads_is_none_of_calls_and_idle_connections(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path, limits=replace(QUICK, head_s=0.05)) as s:
        s.engine.script(Turn("one", gate=gate))
        call = asyncio.ensure_future(s.chat().__aenter__())
        idle_reader, idle_writer = await connect(s)
        await s.opened()
        assert not (await asyncio.wait([call], timeout=0.3))[0]
        gate.open()
        assert (await call).status == 200
        idle_writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await line(idle_reader)
        idle_writer.close()


async def test_both_length_and_chunking_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        smuggled = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        reader, writer = await connect(s, HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled)
        assert b"400" in await line(reader)
        writer.close()
        assert not s.frames(Open)


async def test_slow_readers_and_half_open_clients_do_not_hold_up_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        for sock in idle:
            sock.sendall(HEAD + b"Content-Le")
        async with s.chat() as answer:
            assert answer.status == 200
        for sock in idle:
            sock.close()
