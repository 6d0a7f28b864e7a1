"""Property-driven requests on every control route: whatever an owner sends, no 5xx but by design, no harm."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import strategies as st

from forge.storage.rows import to_batch
from tests.faults.soak import examples, figures
from tests.proxy.serving import Serving, calls, serving
from tests.proxy.test_control import CONTROL_ROUTES

DEEP = b"[" * 100_000 + b"]" * 100_000
TEXT = st.text(max_size=20) | st.sampled_from(["\0", "../..", "http://[", "http://a:99999", "x" * 300, "\ud7ff", "%00"])
NUMBERS = st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXT, SCALARS, max_size=3)
MEMBERS = (
    *(
        "run_id",
        "task_id",
        "group_id",
        "rollout_index",
        "purpose",
        "harness",
        "sampling",
        "history",
        "budgets",
        "labels",
    ),
    *("status", "reward", "reward_components", "reward_author", "exit_code", "error", "idempotency_key"),
    *("version", "path", "digest", "lineage", "mode", "rolling", "by_trainer", "drain", "nonsense"),
)
OBJECTS = st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=6)
BODIES = st.one_of(
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.sampled_from([DEEP, b'{"labels":' + DEEP + b"}", b'{"grace":1e999}', b'{"reward":' + b"9" * 5000 + b"}"]),
    st.sampled_from([b'{"task_id":"\xff"}', b'{"task_id":"\\ud800"}', b"[]", b"null", b"{", b""]),
)
IDS = st.sampled_from(["{open}", "nosuchsession", "..", "%2e%2e%2f", "a%00b", "x" * 400])
QUERIES = st.dictionaries(
    st.sampled_from(["cursor", "wait", "x"]), st.sampled_from(["", "nan", "-1", "1:a", "٣:x", "\0"])
)
BY_DESIGN = (502, 503)


async def _ask(s: Serving, method: str, path: str, body: bytes, session_id: str) -> int:
    url = s.proxy.control_url + path.replace("{open}", session_id)
    headers = {"Authorization": f"Bearer {s.proxy.control_token}"}
    async with s.http.request(method, url, data=body, headers=headers) as answer:
        text = await answer.read()
        if answer.status != 200 and answer.content_type != "text/plain":
            assert "error" in json.loads(text) or answer.status == 201, text
        return answer.status


@figures(20, 3000 // len(CONTROL_ROUTES) + 1, 50_000 // len(CONTROL_ROUTES) + 1)
async def test_no_request_breaks_the_control_plane(tmp_path: Path, number: int) -> None:
    """Rounds of one request to each route. Whatever was taken is a row that the dataset can hold."""
    async with serving(tmp_path) as s:
        loop = asyncio.get_running_loop()
        taken: list[str] = []

        def ask_each(data: st.DataObject) -> None:
            session_id = _run(loop, s.control.open_session()).session_id
            taken.append(session_id)
            for method, route in CONTROL_ROUTES:
                query = "&".join(f"{name}={quote(value)}" for name, value in data.draw(QUERIES).items())
                path = route.replace("{id}", data.draw(IDS)) + (f"?{query}" if query and method == "GET" else "")
                status = _run(loop, _ask(s, method, path, data.draw(BODIES), session_id))
                assert status < 500 or status in BY_DESIGN, (method, path, status)

        await asyncio.to_thread(examples, number, st.data(), ask_each)
        await s.control.resume()
        sessions = [await s.control.session(session_id) for session_id in taken]
        to_batch("sessions", sessions)
        async with s.chat() as answer:
            assert answer.status == 200
    assert calls(s.data)


def _run(loop: asyncio.AbstractEventLoop, job: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(job, loop).result(10)


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "completions", "messages/count_tokens"])
async def test_deep_and_giant_json_is_refused_in_the_callers_own_shape(tmp_path: Path, path: str) -> None:
    """100,000 levels, numbers of 5,000 digits, halves of characters: never a 500 of ours, and the next call is well."""
    plain = '{"messages":[{"role":"user","content":"x"}],"input":"x","prompt":"x","max_tokens":5,'
    odd = [DEEP, b"9" * 5000, b"1e999999", b'"\\ud800"', b'"\xff"', b"[[" * 3000 + b"]]" * 3000]
    async with serving(tmp_path) as s:
        for member in ("messages", "input", "prompt", "tools", "metadata", "system", "stop", "max_tokens", "stream"):
            for value in odd:
                body = plain.encode() + b'"' + member.encode() + b'":' + value + b"}"
                async with s.http.post(f"{s.proxy.base_url}/{path}", data=body) as answer:
                    text = await answer.read()
                    assert b"internal_error" not in text, (member, value[:20])
        async with s.http.post(f"{s.proxy.base_url}/{path}", data=DEEP) as answer:
            assert answer.status == 400
            assert "error" in await answer.json()
        async with s.chat() as answer:
            assert answer.status == 200


async def test_a_number_that_no_column_holds_is_refused_at_the_door(tmp_path: Path) -> None:
    """In the journal it would stop the decoder for ever."""
    async with serving(tmp_path) as s:
        for body in ({"rollout_index": 1 << 40}, {"task_id": "x" * 300}, {"group_id": "a\0b"}, {"harness": "x" * 65}):
            assert await _ask(s, "POST", "/sessions", json.dumps(body).encode(), "") == 400, body
        ticket = await s.control.open_session()
        path = f"/sessions/{ticket.session_id}/close"
        assert await _ask(s, "POST", path, b'{"exit_code":99999999999}', "") == 400
        assert await _ask(s, "POST", "/policy/publish", b'{"version":9223372036854775808}', "") == 400
