"""A restart knows what went before, whether it is still in the journal alone or decoded already."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.proxy.decoder import Decoder
from forge.proxy.restore import remember
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
