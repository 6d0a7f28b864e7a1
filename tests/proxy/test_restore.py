"""A restart knows what went before, whether it is still in the journal alone or decoded already."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.proxy.decoder import Decoder
from forge.proxy.recorder import RETIRED
from forge.proxy.restore import remember
from forge.proxy.session_spec import Outcome, Policy, SessionSpec
from forge.storage.parts import parts_in, table_dir
from tests.engine import ScriptedEngine, Turn
from tests.proxy.serving import serving


def decode(data: Path) -> None:
    decoder = Decoder(data)
    try:
        decoder.catch_up()
    finally:
        decoder.close()


@pytest.mark.parametrize("decoded", [False, True], ids=["journal", "dataset"])
async def test_budgets_closed_sessions_and_policies_are_known(tmp_path: Path, decoded: bool) -> None:
    async with ScriptedEngine() as engine:
        engine.default = lambda _: Turn("one two three")
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            await s.control.publish(version=4, path="/w/4", digest="d4", lineage="main")
            going = await s.control.open_session(budgets={"output_tokens": 1000})
            done = await s.control.open_session()
            for ticket in (going, going, done):
                async with s.chat(key=ticket.api_key) as answer:
                    assert answer.status == 200
            await s.control.close_session(done.session_id, reward=1.0)
            before = s.proxy.deps.registry.get(going.session_id)
            assert before is not None
            used = (before.calls, before.output_tokens, before.context)
            assert used[0] == 2
            assert min(used) > 0
        if decoded:
            decode(tmp_path / "data")
            assert remember(tmp_path / "data", 0).positions == {}, "what is decoded is not read again"
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            after = s.proxy.deps.registry.get(going.session_id)
            assert after is not None
            assert (after.calls, after.output_tokens, after.context) == used
            async with s.chat(key=done.api_key) as answer:
                assert answer.status == 409
            assert [x.session_id for x in (await s.control.finished())[0]] == [done.session_id]
            assert s.proxy.deps.pool.all()[0].policy == (4, "main", "d4")
            async with s.chat(key=going.api_key) as answer:
                assert answer.status == 200
            closed = await s.control.close_session(going.session_id, reward=1.0)
            assert closed.calls.statuses == {"ok": 3}


async def test_calls_before_and_behind_the_decoders_mark_count_once(tmp_path: Path) -> None:
    """Decoded once in the middle: some calls are before the mark, some behind."""
    async with ScriptedEngine() as engine:
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            ticket = await s.control.open_session(budgets={"calls": 9})
            async with s.chat(key=ticket.api_key) as answer:
                assert answer.status == 200
            s.proxy.deps.recorder.cut()
            decode(s.data)
            async with s.chat(key=ticket.api_key) as answer:
                assert answer.status == 200
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            live = s.proxy.deps.registry.get(ticket.session_id)
            assert live is not None
            assert live.calls == 2


def spoil(path: Path) -> None:
    path.write_bytes(b"PAR1 no more")


async def test_what_was_closed_stays_closed_when_its_part_cannot_be_read(tmp_path: Path) -> None:
    """Neither as the open session that an older part tells of, nor as one that nobody knows."""
    data = tmp_path / "data"
    async with ScriptedEngine() as engine:
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            done, going = await s.control.open_session(), await s.control.open_session()
            for ticket in (done, going):
                async with s.chat(key=ticket.api_key) as answer:
                    assert answer.status == 200
        decode(data)
        before = set(parts_in(table_dir(data, "sessions"), "run"))
        assert before
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            await s.control.close_session(done.session_id, reward=1.0)
        decode(data)
        for path in set(parts_in(table_dir(data, "sessions"), "run")) - before:
            spoil(path)
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            for ticket, status in ((done, 409), (going, 200)):
                async with s.chat(key=ticket.api_key) as answer:
                    assert answer.status == status
        for path in before:
            spoil(path)
        async with serving(tmp_path, upstreams=[engine.url]) as s, s.chat(key=done.api_key) as answer:
            assert answer.status == 409
            assert (await answer.json())["error"]["code"] == "session_unknown"


async def test_a_session_is_read_back_however_many_closed_since(tmp_path: Path) -> None:
    """The places of its frames are forgotten, and no decoder has come to it."""
    async with serving(tmp_path) as s:
        first = await s.control.open_session()
        for _ in range(2):
            async with s.chat(key=first.api_key) as answer:
                assert answer.status == 200
        await s.control.close_session(first.session_id, reward=1.0)
        registry = s.proxy.deps.registry
        for _ in range(RETIRED):
            await registry.close(registry.open(SessionSpec(), Policy()), Outcome())
        assert first.session_id not in s.proxy.deps.recorder.positions
        assert [c.status for c in await s.control.calls(first.session_id)] == ["ok", "ok"]
