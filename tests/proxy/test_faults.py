"""Every way an engine can fail gives the client a protocol-right end, and the data exactly one row that says so."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forge.proxy.config import Limits
from forge.storage.frames import Close, Open
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, USER, calls, events, serving

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
DIALECT = pytest.mark.parametrize("dialect", ["chat", "responses"])

DEEP = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def request(dialect: str, stream: bool) -> tuple[str, dict[str, Any]]:
    if dialect == "chat":
        return "/chat/completions", {"model": "policy", "messages": [USER], "stream": stream}
    return "/responses", {"model": "policy", "input": "hello", "stream": stream}


@STREAM
@DIALECT
@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_engines_error_keeps_its_status_and_words(
    tmp_path: Path, status: int, stream: bool, dialect: str
) -> None:
    """Field cases 31, 83."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=status)))
        path, body = request(dialect, stream)
        async with s.http.post(s.proxy.base_url + path, json=body) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["message"] == f"scripted {status}"
        assert len(s.engine.served) == 1
    (row,) = calls(s.data)
    assert (row.status, row.http_status, row.trainable) == ("error", status, False)
    assert f"scripted {status}" in (row.error or "")


@STREAM
async def test_a_full_context_is_told_in_the_engines_words(tmp_path: Path, stream: bool) -> None:
    long = [{"role": "user", "content": "word " * 100}]
    async with serving(tmp_path, ScriptedEngine(max_model_len=64)) as s, s.chat(long, stream=stream) as answer:
        assert answer.status == 400
        assert "maximum context length is 64 tokens" in (await answer.json())["error"]["message"]


@STREAM
@pytest.mark.parametrize("status", [429, 503])
async def test_busy_engines_are_asked_again_and_each_attempt_is_recorded(
    tmp_path: Path, status: int, stream: bool
) -> None:
    """Field case 117: absorbed where the engine cannot have begun."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=status)), Turn(fault=Fault(status=status, retry_after="0")), Turn("ok"))
        async with s.chat(stream=stream) as answer:
            assert answer.status == 200
            assert b"ok" in await answer.read()
        assert len(s.engine.served) == 3
    (row,) = calls(s.data)
    assert row.status == "ok"
    assert row.trainable
    assert [a.get("status") for a in json.loads(row.attempts or "[]")] == [status, status, 200]


@pytest.mark.parametrize("retry_after", [None, "3600"], ids=["no hint", "a long one"])
async def test_an_engine_that_stays_busy_is_the_clients_to_wait_for(tmp_path: Path, retry_after: str | None) -> None:
    """Field cases 117, 118: its own Retry-After, unchanged, or none."""
    async with serving(tmp_path) as s:
        s.engine.default = lambda _: Turn(fault=Fault(status=429, retry_after=retry_after))
        async with s.chat() as answer:
            assert answer.status == 429
            assert answer.headers.get("Retry-After") == retry_after, "never one of our own"
        assert len(s.engine.served) == (1 if retry_after else QUICK.attempts)
    (row,) = calls(s.data)
    assert (row.status, row.http_status) == ("error", 429)


async def test_a_stated_retry_after_is_honoured_before_the_engine_is_asked_again(tmp_path: Path) -> None:
    """Field case 117."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=429, retry_after="1")), Turn("ok"))
        async with s.chat() as answer:
            assert answer.status == 200
    (row,) = calls(s.data)
    first, second = json.loads(row.attempts or "[]")
    assert second["at_us"] - first["at_us"] >= 1_000_000


async def test_a_retry_after_that_is_no_number_breaks_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=429, retry_after="\N{SUPERSCRIPT TWO}")), Turn("ok"))
        async with s.chat() as answer:
            assert answer.status == 200
    assert [row.status for row in calls(s.data)] == ["ok"]


async def test_a_refused_connection_is_tried_again_and_then_said(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.engine.refuse()
        async with s.chat() as answer:
            assert answer.status == 503
            error = (await answer.json())["error"]
            assert (error["code"], s.engine.url in error["message"]) == ("policy_unavailable", True)
        await s.engine.accept()
        async with s.chat() as answer:
            while answer.status == 503:
                answer = await s.chat().__aenter__()
            assert answer.status == 200
    rows = calls(s.data)
    assert rows[0].status == "error"
    assert rows[-1].status == "ok"


@STREAM
@DIALECT
@pytest.mark.parametrize("after", [0, 1, 200, 700, 1500])
@pytest.mark.parametrize("how", ["reset", "end"])
async def test_an_answer_that_breaks_off_ends_as_an_error_and_a_truncated_row(
    tmp_path: Path, how: str, after: int, stream: bool, dialect: str
) -> None:
    async with serving(tmp_path) as s:
        fault = Fault(reset_after=after) if how == "reset" else Fault(end_after=after)
        s.engine.script(Turn("word " * 50, fault=fault))
        path, body = request(dialect, stream)
        async with s.http.post(s.proxy.base_url + path, json=body) as answer:
            if (how, dialect, stream) == ("reset", "chat", True):
                # As without us: its clients ask again after a break, and some give up on an error event.
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.text()
                text = ""
            else:
                text = await answer.text()
            if text and stream:
                assert answer.status == 200
                last = events(text)[-1]
                assert "error" in last or last["type"] in ("response.failed", "error"), last
            elif text:
                assert answer.status == 502
                assert "error" in json.loads(text)
        assert len(s.engine.served) == 1, "no token is sampled twice"
    (row,) = calls(s.data)
    assert (row.status, row.trainable) == ("truncated", False)


async def test_a_stream_without_done_is_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", fault=Fault(no_done=True)))
        async with s.chat(stream=True) as answer:
            assert events(await answer.text())[-1]["choices"][0]["finish_reason"] == "stop"
    (row,) = calls(s.data)
    assert row.status == "ok"
    assert row.trainable


@DIALECT
async def test_a_stream_without_a_finish_never_hangs_a_harness(tmp_path: Path, dialect: str) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", fault=Fault(no_finish=True)))
        path, body = request(dialect, True)
        async with s.http.post(s.proxy.base_url + path, json=body) as answer:
            last = events(await answer.text())[-1]
            assert "error" in last or last["type"] in ("response.failed", "error")
    (row,) = calls(s.data)
    assert row.status == "truncated"


@STREAM
async def test_a_web_page_is_named_with_its_url(tmp_path: Path, stream: bool) -> None:
    """Field case 7."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(html=True)))
        async with s.chat(stream=stream) as answer:
            assert answer.status == 502
            assert f"{s.engine.url}/v1/chat/completions answered with text/html" in await answer.text()
    (row,) = calls(s.data)
    assert (row.status, row.http_status) == ("error", 502)


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=302, headers=(("Location", "http://169.254.169.254/"),))))
        async with s.chat() as answer:
            assert answer.status == 502
        assert len(s.engine.served) == 1


@STREAM
@pytest.mark.parametrize("fault", [Fault(silence=True), Fault(mute=True)], ids=["after headers", "before"])
async def test_a_silent_engine_is_given_up_within_the_limit(tmp_path: Path, fault: Fault, stream: bool) -> None:
    limits = Limits(backoff_s=0.01, silence_s=0.3)
    async with serving(tmp_path, limits=limits) as s:
        s.engine.script(Turn(fault=fault))
        async with s.chat(stream=stream) as answer:
            text = await answer.text()
            assert answer.status == (200 if stream and fault.silence else 502)
            assert "error" in text
        await s.engine.served[0].client_left.wait()
    (row,) = calls(s.data)
    assert row.status == ("truncated" if fault.silence else "error")


async def test_a_whole_body_for_a_stream_still_streams(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", fault=Fault(json_to_stream=True)))
        async with s.chat(stream=True) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            last = events(await answer.text())
        assert any(e["choices"][0]["finish_reason"] == "stop" for e in last if e["choices"])
    (row,) = calls(s.data)
    assert row.status == "ok"
    assert row.trainable


@STREAM
@pytest.mark.parametrize(
    ("fault", "reason"),
    [(Fault(no_ids=True), "prompt_ids_missing"), (Fault(no_log_probs=True), "log_probs_missing")],
    ids=["ids", "log probs"],
)
async def test_what_the_engine_did_not_give_is_null_with_a_reason(
    tmp_path: Path, fault: Fault, reason: str, stream: bool
) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", fault=fault))
        async with s.chat(stream=stream) as answer:
            assert answer.status == 200
            await answer.read()
    (row,) = calls(s.data)
    assert (row.status, row.trainable, row.untrainable_reason) == ("ok", False, reason)


@STREAM
async def test_an_aborted_generation_is_an_error_to_retry_and_an_aborted_row(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two three", finish="abort"))
        async with s.chat(stream=stream) as answer:
            assert answer.status == (200 if stream else 503)
            assert "generation_aborted" in await answer.text()
    (row,) = calls(s.data)
    assert (row.status, row.trainable) == ("aborted", False)


async def test_malformed_requests_are_refused_and_are_no_calls(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for path in ("/chat/completions", "/responses"):
            for body in (b"", b"[]", b"{", b'"x"', b"\xff", b"null", DEEP):
                async with s.http.post(s.proxy.base_url + path, data=body) as answer:
                    assert answer.status == 400, (path, body[:40])
                    assert (await answer.json())["error"]["message"]
        assert not s.frames(Open)
        assert not s.engine.served


async def test_every_open_has_one_close(tmp_path: Path) -> None:
    faults = [Fault(), Fault(status=500), Fault(reset_after=300), Fault(no_finish=True), Fault(html=True)]
    async with serving(tmp_path) as s:
        for fault in faults:
            s.engine.script(Turn("one two", fault=fault))
            async with s.chat(stream=True) as answer:
                with suppress(aiohttp.ClientPayloadError):
                    await answer.read()
        opens = [f.call_id for f in s.frames(Open)]
        assert [f.call_id for f in s.frames(Close)] == opens
        assert len(set(opens)) == len(faults)
