"""Request bodies: compressed, cut short, too large, slow in coming, with Expect; and the doors beside calls."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.proxy.bodies import decompress
from forge.proxy.refusal import Refused
from forge.proxy.routes import Kind, route
from forge.storage.frames import Open
from tests.proxy.serving import QUICK, USER, Serving, calls, serving

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = json.dumps({"model": "policy", "messages": [USER]}).encode()
ENCODED = {
    "gzip": gzip.compress(BODY, mtime=0),
    "deflate": zlib.compress(BODY),
    "zstd": zstd.compress(BODY),
    "identity": BODY,
    "": BODY,
    "gzip, zstd": zstd.compress(gzip.compress(BODY, mtime=0)),
}


async def post(s: Serving, data: Any, encoding: str, path: str = "/chat/completions") -> tuple[int, Any]:
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"} if encoding else {}
    async with s.http.post(s.proxy.base_url + path, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_compressed_bodies_are_read_and_sent_on_plain(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for encoding, data in ENCODED.items():
            assert (await post(s, data, encoding))[0] == 200, encoding
        assert all("Content-Encoding" not in x.headers and x.json["messages"] == [USER] for x in s.engine.served)
        assert len(s.engine.served) == len(ENCODED)
    assert all(json.loads(c.messages) == [USER] for c in calls(s.data))


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("br", BODY, 415),
        ("made-up", BODY, 415),
        ("gzip, gzip, gzip", BODY, 415),
        ("gzip", BODY, 400),
        ("gzip", ENCODED["gzip"][:-9], 400),
        ("zstd", ENCODED["zstd"][:-3], 400),
        ("zstd", b"", 400),
        ("gzip", gzip.compress(b"0" * 70_000, mtime=0), 413),
        ("zstd", zstd.compress(b"0" * 70_000), 413),
        ("", b"0" * 70_000, 413),
    ],
)
async def test_what_cannot_be_read_is_refused_with_its_own_code(
    tmp_path: Path, encoding: str, data: bytes, status: int
) -> None:
    async with serving(tmp_path, limits=replace(QUICK, body_bytes=65536)) as s:
        got, body = await post(s, data, encoding)
        assert got == status
        codes = {415: "unsupported_content_encoding", 400: "bad_content_encoding", 413: "body_too_large"}
        assert body["error"]["code"] == codes[status]
        assert not s.frames(Open)


def test_a_bomb_costs_no_more_than_the_cap() -> None:
    bomb = zstd.compress(b"\0" * (256 << 20))
    with pytest.raises(Refused) as caught:
        decompress("zstd", bomb, 1 << 20)
    assert caught.value.status == 413


async def test_chunked_bodies_and_expect_are_served(tmp_path: Path) -> None:
    async def chunks() -> Any:
        for start in range(0, len(BODY), 10):
            yield BODY[start : start + 10]

    async with serving(tmp_path) as s:
        assert (await post(s, chunks(), ""))[0] == 200
        async with s.http.post(f"{s.proxy.base_url}/chat/completions", data=BODY, expect100=True) as answer:
            assert answer.status == 200


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=replace(QUICK, body_s=0.2)) as s:
        port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        line = await asyncio.wait_for(reader.readline(), 5)
        assert b"408" in line
        writer.close()


async def test_both_length_and_chunking_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert b"400" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        assert not s.frames(Open)


SID = "abcdefghijkl"


@pytest.mark.parametrize(
    ("path", "kind", "dialect", "session"),
    [
        ("/v1/chat/completions", Kind.CALL, "chat", None),
        ("/chat/completions", Kind.CALL, "chat", None),
        ("/v1/chat/completions/", Kind.CALL, "chat", None),
        ("//v1//chat/completions", Kind.CALL, "chat", None),
        (f"/s/{SID}/v1/chat/completions", Kind.CALL, "chat", SID),
        (f"/s/{SID}/chat/completions", Kind.CALL, "chat", SID),
        (f"/s/{SID}/v1/responses", Kind.CALL, "responses", SID),
        ("/v1/chat/completions/chat/completions", Kind.CALL, "chat", None),
        ("/v1/responses/v1/responses", Kind.CALL, "responses", None),
        ("/v1/v1/responses", Kind.CALL, "responses", None),
        ("/v1/completions", Kind.CALL, "completions", None),
        ("/v1/models", Kind.MODELS, "chat", None),
        (f"/s/{SID}/v1/models", Kind.MODELS, "chat", SID),
        ("/v1/models/policy", Kind.MODELS, "chat", None),
        ("/api/v1/models", Kind.MODELS, "chat", None),
        ("/", Kind.PROBE, "chat", None),
        ("/v1", Kind.PROBE, "chat", None),
        ("/api/hello", Kind.PROBE, "chat", None),
        (f"/s/{SID}", Kind.PROBE, "chat", SID),
        ("/api/event_logging/batch", Kind.DROP, "chat", None),
        ("/s/short/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        ("/s/UPPERCASEISNOT/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        (f"/s/{SID}%2f..%2f/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        (f"/s/../{SID}/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        ("/sessions", Kind.UNKNOWN, "chat", None),
        ("/v1/gpt-4", Kind.UNKNOWN, "chat", None),
        ("/pause", Kind.UNKNOWN, "chat", None),
    ],
)
def test_paths(path: str, kind: Kind, dialect: str, session: str | None) -> None:
    found = route(path)
    assert (found.kind, found.dialect, found.session_id) == (kind, dialect, session)


async def test_probes_are_cheap_answers_and_no_calls(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        for method, path in [
            ("HEAD", "/"),
            ("GET", "/"),
            ("HEAD", "/api/hello"),
            ("GET", "/api/v1/models"),
            ("GET", "/api/tags"),
            ("GET", "/props"),
            ("GET", "/version"),
            ("POST", "/api/show"),
            ("GET", "/v1/models"),
            ("POST", "/api/event_logging/batch"),
            ("GET", "/health"),
        ]:
            async with s.http.request(method, root + path) as answer:
                assert answer.status == 200, (method, path)
        assert not s.frames(Open)
        assert not s.engine.served


async def test_models_for_everyone_and_for_codex(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        async with s.http.get(f"{s.proxy.base_url}/models") as answer:
            plain = await answer.json()
        assert [m["id"] for m in plain["data"]] == ["policy"]
        assert plain["data"][0]["max_model_len"] == 4096
        async with s.http.get(f"{s.proxy.base_url}/models?client_version=0.163.0") as answer:
            assert {"data", "models"} <= (await answer.json()).keys()
        async with s.http.get(f"{s.proxy.base_url}/models/policy") as answer:
            assert (await answer.json())["id"] == "policy"


async def test_unknown_paths_name_the_right_base_url(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        for path in ("/v1/gpt-4", "/openai/deployments", "/v1/systemone", "/s/abc/v1/chat/completions"):
            async with s.http.post(root + path, json={}) as answer:
                assert answer.status == 404
                assert s.proxy.base_url in (await answer.json())["error"]["message"]
        async with s.http.get(f"{s.proxy.base_url}/chat/completions") as answer:
            assert answer.status == 405
        async with s.http.post(f"{s.proxy.base_url}/completions", json={"prompt": "x"}) as answer:
            assert answer.status == 501


async def test_a_websocket_is_426_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "x",
            "Sec-WebSocket-Version": "13",
        }
        for path in ("/responses", "/chat/completions", "/anything"):
            async with s.http.get(s.proxy.base_url + path, headers=headers) as answer:
                assert answer.status == 426


async def test_slow_readers_and_half_open_clients_do_not_hold_up_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        for sock in idle:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        async with s.chat() as answer:
            assert answer.status == 200
        for sock in idle:
            sock.close()
