"""Faults of our own: each is the call's error and never its client's doing, and no row says more than happened."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.proxy.config import Record
from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import Answer, Outgoing, Piece
from forge.proxy.dialects.chat import Chat
from forge.proxy.door.routes import CALLS
from forge.proxy.engines import ENGINES
from forge.proxy.engines.base import Abilities, Engine
from forge.proxy.recording.assembly import Assembly
from forge.proxy.recording.recorder import Recorder
from forge.proxy.upstreams.pool import Replica
from forge.storage.frames import Close, Cut, Open
from forge.storage.journal import (
    JournalFull,
    JournalReader,
    JournalWriter,
    Position,
    journal_dir,
    segment_path,
    segments,
)
from tests.engine import Gate, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, USER, Serving, calls, entries, events, serving

FAULT = "a secret that the request held"


class Broken(Chat):
    """A dialect with a fault in it."""

    name: str = "broken"
    at: str = "feed"
    given: int = 0

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        inner = super().answer(outgoing, engine=engine, call_id=call_id, created=created)
        return _BrokenAnswer(inner, self.at, self.given)


class _BrokenAnswer:
    def __init__(self, inner: Answer, at: str, given: int) -> None:
        self._inner, self._at, self._left = inner, at, given
        self.complete, self.finish_reason, self.error = False, None, None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        if self._at == "feed" and self._left == 0:
            raise RuntimeError(FAULT)
        self._left -= 1
        return self._inner.feed(chunk)

    def finish(self) -> Sequence[Piece]:
        if self._at == "finish":
            raise RuntimeError(FAULT)
        return self._inner.finish()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """One more dialect, at a path of its own."""
    dialect = Broken()
    monkeypatch.setitem(DIALECTS, dialect.name, dialect)
    monkeypatch.setitem(CALLS, dialect.name, dialect.name)
    return dialect


async def raw(s: Serving, stream: bool) -> bytes:
    """All bytes of the answer, its head too."""
    port = int(s.proxy.base_url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"messages":[{"role":"user","content":"hello"}],"stream":%s}' % (b"true" if stream else b"false")
    writer.write(
        b"POST /v1/broken HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    text = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return text


@pytest.mark.parametrize(("at", "given"), [("feed", 0), ("feed", 2), ("finish", 0)])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_fault_in_a_call_is_its_error_and_ends_the_answer_rightly(
    tmp_path: Path, broken: Broken, at: str, given: int, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Field case 5: the engine sees the connection end, the client an error of the dialect, the row says whose."""
    broken.at, broken.given = at, given
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two three four"))
        text = await raw(s, stream)
        assert text.count(b"HTTP/1.1 ") == 1, "never a second head inside an answer"
        if stream:
            assert text.startswith(b"HTTP/1.1 200")
            assert text.endswith(b"0\r\n\r\n"), "the stream ends as streams end"
            (last,) = events(text.rpartition(b"data: ")[1] + text.rpartition(b"data: ")[2])
            assert last["error"]["code"] == "internal_error"
        elif at == "finish" or given == 0:
            assert text.startswith(b"HTTP/1.1 500")
            assert b'"code":"internal_error"' in text
        async with s.chat() as answer:
            assert answer.status == 200, "the next call is served"
        (close, _) = await s.closed(2)
        if text.startswith(b"HTTP/1.1 500") or stream:
            assert (close.status, close.error) == ("error", "internal_error: RuntimeError inside the proxy")
            assert close.http_status == (200 if stream else 500)
            assert close.delivered == 0 or stream
    assert FAULT not in repr(calls(s.data))


async def test_a_fault_before_a_call_is_a_500_and_no_row(tmp_path: Path, broken: Broken) -> None:
    class BrokenRequest(Broken):
        def request(self, *_: Any, **__: Any) -> Outgoing:
            raise RuntimeError(FAULT)

    DIALECTS["broken"] = BrokenRequest()
    async with serving(tmp_path) as s:
        text = await raw(s, False)
        assert text.startswith(b"HTTP/1.1 500")
        assert FAULT.encode() not in text
        assert not s.frames(Open)


async def test_a_call_that_a_sessions_close_cuts_off_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", gate=Gate(is_open=False)))
        session = await s.control.open_session()
        call = asyncio.ensure_future(s.chat(base=session.base_url, key=session.api_key).__aenter__())
        await s.opened()
        await s.control.close_session(session.session_id, status="failed", grace=0)
        await asyncio.wait([call])
        assert call.exception() is not None
        (close,) = await s.closed()
        assert (close.status, close.error) == ("aborted", "its session was closed")


@contextmanager
def no_room(data: Path) -> Iterator[None]:
    """The journal's file may not grow."""
    directory = journal_dir(data, 0)
    size = segment_path(directory, segments(directory)[-1]).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_call_that_was_refused_for_the_disk_is_nobodys_retry(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        session = await s.control.open_session()
        target = {"base": session.base_url, "key": session.api_key}
        with no_room(s.data):
            async with s.chat(**target) as answer:
                assert answer.status == 503
                assert (await answer.json())["error"]["code"] == "recorder_unavailable"
        for _ in range(2):
            async with s.chat(**target) as answer:
                assert answer.status == 200
    first, second = calls(s.data)
    assert first.retry_of is None, "no row has the refused call's id"
    assert second.retry_of == first.call_id


class Refusing(JournalWriter):
    """A journal on a disk that takes writes and refuses flushes, while ``refuses``."""

    refuses = True

    async def durable(self, position: Position) -> None:
        if self.refuses:
            raise JournalFull("the journal could not be flushed to disk")


def opened(recorder: Recorder, call_id: str) -> Any:
    frame = Open(
        call_id=call_id,
        session_id="s",
        run_id="r",
        boot=1,
        mono_us=recorder.now(),
        writer=0,
        wall_us=1,
        dialect="chat",
        path="/",
        stream=False,
        request_len=0,
    )
    return recorder.open(frame, b"", b"")


async def test_an_answer_withheld_for_a_flush_that_failed_is_no_ok_row(tmp_path: Path) -> None:
    """Whether its part is cut at once, later, or after a restart."""
    journal = Refusing.open(tmp_path, 0, run_id="r", durability="disk")
    recorder = Recorder(journal, cut_bytes=1, data_frame_bytes=1)  # a cut follows every close
    withheld, other = opened(recorder, "withheld"), opened(recorder, "other")
    with pytest.raises(JournalFull):
        await withheld.end(Close(call_id="withheld", status="ok", delivered=7))
    journal.refuses = False
    await other.end(Close(call_id="other", status="ok"))
    recorder.cut()
    journal.close()
    found = entries(tmp_path)
    closes = [e.frame.status for e in found if isinstance(e.frame, Close) and e.frame.call_id == "withheld"]
    assert closes == ["ok", "interrupted"]
    assert _rows(Assembly(0), found) == [("withheld", "interrupted"), ("other", "ok")]
    for cut in [e for e in found if isinstance(e.frame, Cut)]:
        before = _rows(Assembly(0), [e for e in found if e.position <= cut.position])
        after = _rows(Assembly(0, replay_until=cut.end), found)
        assert before + after == [("withheld", "interrupted"), ("other", "ok")], "a decoder that starts over there"


def _rows(assembly: Assembly, found: Sequence[Any]) -> list[tuple[str, str]]:
    bounds = [assembly.feed(entry) for entry in found]
    return [(c.open.call_id, c.close.status) for bound in bounds if bound for c in bound.calls]


async def test_a_call_is_in_one_part_while_its_close_waits_for_the_disk(tmp_path: Path) -> None:
    flush = asyncio.Event()

    class Slow(JournalWriter):
        async def durable(self, position: Position) -> None:
            await flush.wait()

    journal = Slow.open(tmp_path, 0, run_id="r", durability="disk")
    recorder = Recorder(journal, cut_bytes=1, data_frame_bytes=1)
    ending = asyncio.ensure_future(opened(recorder, "a").end(Close(call_id="a", status="ok")))
    await asyncio.sleep(0)
    recorder.cut()
    assembly = Assembly(0)
    reader = JournalReader(journal_dir(tmp_path, 0))
    assert _rows(assembly, reader.read()) == []
    assert assembly.oldest is not None, "its frames are still needed"
    flush.set()
    await ending
    recorder.cut()
    assert _rows(assembly, reader.read()) == [("a", "ok")]
    assert assembly.oldest is None
    reader.close()
    journal.close()


async def test_a_request_goes_only_to_the_kind_of_server_it_was_written_for(tmp_path: Path) -> None:
    """A vLLM that goes away, and another kind of server that comes up while its call is sent again."""
    async with ScriptedEngine(model="other") as other, serving(tmp_path) as s:
        other.gives_ids = False
        await s.engine.refuse()
        s.proxy.deps.pool.add(_replica(other))
        async with s.chat() as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "policy_unavailable"
        assert not other.served, "it was written for the other one"
        async with s.chat() as answer:
            assert answer.status == 200
        (served,) = other.served
        assert "return_token_ids" not in served.json, "this one was written for it"
        assert served.json["model"] == "other"
    assert [(row.status, row.engine) for row in calls(s.data)] == [("error", "vllm"), ("ok", "openai")]


def _replica(engine: ScriptedEngine) -> Replica:
    return Replica(engine.url, ENGINES["openai"], Abilities(model=engine.model))


async def test_a_server_that_comes_up_late_gets_a_request_of_its_own_kind(tmp_path: Path) -> None:
    """With no server at all there is no call to record until one is chosen."""
    options: Any = {"upstreams": (), "record": Record.BEST_EFFORT, "limits": replace(QUICK, backoff_s=0.3)}
    async with ScriptedEngine(model="other") as other, serving(tmp_path, **options) as s:
        call = asyncio.ensure_future(s.chat().__aenter__())
        assert not (await asyncio.wait([call], timeout=0.1))[0]
        s.proxy.deps.pool.add(_replica(other))
        answer = await call
        assert answer.status == 200
        assert "return_token_ids" not in other.served[0].json
    (row,) = calls(s.data)
    assert (row.engine, row.replica) == ("openai", other.url)


async def test_no_server_at_all_is_said_and_is_a_row(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams=(), record=Record.BEST_EFFORT) as s, s.chat([USER]) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["message"] == "no policy server is up"
    (row,) = calls(s.data)
    assert (row.status, row.http_status) == ("error", 503)
