"""No key, cookie or token that a request or a policy server shows reaches a log, a row, an error or a metric."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forge.storage.frames import Open
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import USER, Serving, calls, serving

ENGINE_KEY = "engine-key-7f3a9c"
PLANTED = {
    "Authorization": "Bearer sk-ant-planted-oauth",
    "Cookie": "session=planted-cookie",
    "x-api-key": "planted-foreign-key",
    "x-goog-api-key": "planted-google-key",
    "Proxy-Authorization": "Basic planted-proxy",
    "X-Amz-Security-Token": "planted-cloud-token",
    "ChatGPT-Account-Id": "planted-account",
}
SAYS_ITS_KEY = json.dumps({"error": {"message": f"bad key {ENGINE_KEY} (hash planted-hash, ends in 3a9c)"}})
OWN_FILES = ("secret", "control.token")
"""Where a secret belongs."""


class Seen:
    """Everything that was said to anyone."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def take(self, request: Any) -> tuple[int, str]:
        async with request as answer:
            text = await answer.text()
            self.texts += [text, repr(answer.headers)]
            return answer.status, text


async def test_a_secret_is_found_nowhere_but_where_it_belongs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Field cases 185, 186, 187, 188, 189, 190."""
    caplog.set_level(logging.DEBUG)
    key_file = tmp_path / "key"
    key_file.write_text(ENGINE_KEY + "\n")
    seen = Seen()
    async with serving(tmp_path, ScriptedEngine(key=ENGINE_KEY), upstream_key_file=key_file) as s:
        session = await s.control.open_session()
        forged = f"fs_{session.session_id}_{'0' * 32}"
        wrong = [*PLANTED.values(), session.api_key, forged, ENGINE_KEY, "planted", "ends in 3a9c"]
        await _calls(s, seen, session, forged)
        async with s.http.get(f"{s.proxy.control_url}/metrics", headers=_token(s)) as answer:
            seen.texts.append(await answer.text())
        for path in (f"/sessions/{session.session_id}", f"/sessions/{session.session_id}/calls", "/upstreams"):
            status, _ = await seen.take(s.http.get(s.proxy.control_url + path, headers=_token(s)))
            assert status == 200, path
        seen.texts.append(repr(s.proxy.ready()))
        for served in s.engine.served:
            assert served.headers["Authorization"] == f"Bearer {ENGINE_KEY}"
            assert "planted" not in repr(served.headers), "a client's own credentials go nowhere"
    rows = calls(s.data)
    assert len(rows) >= 6
    assert session.session_id in {row.session_id for row in rows}
    seen.texts += [repr(rows), caplog.text, *(repr(record.__dict__) for record in caplog.records)]
    written = [f.read_bytes() for f in s.data.rglob("*") if f.is_file() and f.name not in OWN_FILES]
    assert len(written) > 1
    everything = "\n".join([*seen.texts, *(data.decode(errors="replace") for data in written)])
    for secret in [*wrong, s.proxy.control_token]:
        assert secret not in everything, secret


async def _calls(s: Serving, seen: Seen, session: Any, forged: str) -> None:
    """Every door and every fault, each with secrets about it."""
    url, body = f"{s.proxy.base_url}/chat/completions", {"messages": [USER]}
    ours = {**PLANTED, "Authorization": f"Bearer {session.api_key}"}
    assert (await seen.take(s.http.post(url, json=body, headers=PLANTED)))[0] == 200
    assert (await seen.take(s.http.post(url, json=body, headers=ours)))[0] == 200
    assert (await seen.take(s.http.post(f"{session.base_url}/chat/completions", json=body, headers=ours)))[0] == 200
    status, text = await seen.take(s.http.post(f"{session.base_url}/chat/completions", json=body, headers=PLANTED))
    assert status == 401, "the id in the path opens nothing"
    status, text = await seen.take(s.http.post(url, json=body, headers=ours | {"Authorization": f"Bearer {forged}"}))
    assert (status, json.loads(text)["error"]["code"]) == (401, "key_invalid")
    query = f"?key={session.api_key}"
    assert (await seen.take(s.http.post(url + query, json=body)))[0] == 200
    assert (await seen.take(s.http.post(f"{s.proxy.base_url}/nowhere{query}", json=body, headers=ours)))[0] == 404
    assert (await seen.take(s.http.post(url, data=b"{", headers=ours)))[0] == 400
    for status in (401, 500):
        s.engine.script(
            Turn(
                fault=Fault(
                    status=status,
                    body=SAYS_ITS_KEY.replace("hash planted-hash, ends in 3a9c", "") if status == 500 else SAYS_ITS_KEY,
                )
            )
        )
        got, text = await seen.take(s.http.post(url, json=body, headers=ours))
        assert got == (502 if status == 401 else 500)
    assert "[redacted]" in text, "the rest of the engine's words is kept"
    await _malformed(s, seen)
    await s.control.close_session(session.session_id)
    assert (await seen.take(s.http.post(url, json=body, headers=ours)))[0] == 409


async def _malformed(s: Serving, seen: Seen) -> None:
    port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
    for head in (
        b"Authorization\x01: Bearer planted\r\n",
        b"X: \x00planted\r\n",
        b"X: planted" + b"x" * 70_000 + b"\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        text = await asyncio.wait_for(reader.read(), 10)
        assert b" 400 " in text.splitlines()[0]
        assert b'"code":"bad_request"' in text
        seen.texts.append(text.decode())
        writer.close()


def _token(s: Serving) -> dict[str, str]:
    return {"Authorization": f"Bearer {s.proxy.control_token}"}


async def test_a_key_that_the_engine_refuses_is_the_proxys_own_trouble(tmp_path: Path) -> None:
    """Field case 188: a harness that gets a 401 asks its user to log in again, and quotes what it got."""
    async with serving(tmp_path) as s:
        for stream in (False, True):
            s.engine.script(Turn(fault=Fault(status=401, body=SAYS_ITS_KEY)))
            async with s.chat(stream=stream) as answer:
                assert answer.status == 502
                error = (await answer.json())["error"]
                assert error["code"] == "upstream_unauthorized"
                assert "--upstream-key-file" in error["message"]
    assert [(row.status, row.http_status) for row in calls(s.data)] == [("error", 502)] * 2


async def test_only_allow_listed_headers_are_recorded(tmp_path: Path) -> None:
    """Field case 185."""
    async with serving(tmp_path) as s, aiohttp.ClientSession() as http:
        headers = PLANTED | {"X-New-Secret": "planted", "User-Agent": "codex_exec/1.0", "session-id": "abc"}
        async with http.post(f"{s.proxy.base_url}/chat/completions", json={"messages": [USER]}, headers=headers) as _:
            pass
        (opened,) = s.frames(Open)
        assert opened.headers.keys() <= {"user-agent", "session-id", "content-type", "accept"}
        assert opened.headers["session-id"] == "abc"
