"""A restart knows what went before, whether it is still in the journal alone or decoded already."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.proxy.recording.decoder import Decoder
from forge.proxy.recording.recorder import RETIRED
from forge.proxy.sessions.archive import Forgotten
from forge.proxy.sessions.restore import remember
from forge.proxy.sessions.spec import Outcome, Policy, SessionSpec
from forge.storage.parts import parts_in, table_dir
from tests.engine import ScriptedEngine, Turn
from tests.proxy.serving import QUICK, serving


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
            assert s.proxy.deps.pool.all()[0].policy[:3] == (4, "main", "d4")
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
            await registry.close(await registry.open(SessionSpec(), Policy()), Outcome())
        assert first.session_id not in s.proxy.deps.recorder.positions
        assert [c.status for c in await s.control.calls(first.session_id)] == ["ok", "ok"]


@pytest.mark.parametrize("decoded", [False, True], ids=["journal", "dataset"])
@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
async def test_a_closed_session_that_memory_has_no_room_for_is_read_back(
    tmp_path: Path, decoded: bool, again: bool
) -> None:
    """Its door stays shut, its idempotency key stays its own, and all that was asked of it can still be."""
    limits = replace(QUICK, closed_sessions=2)
    async with ScriptedEngine() as engine, AsyncExitStack() as stack:
        options: Any = {"upstreams": [engine.url], "limits": limits}
        s = await stack.enter_async_context(serving(tmp_path, **options))
        first = await s.control.open_session(idempotency_key="once")
        for _ in range(2):
            async with s.chat(key=first.api_key) as answer:
                assert answer.status == 200
        await s.control.close_session(first.session_id, reward=0.5)
        async with s.chat(key=first.api_key) as answer:
            assert answer.status == 409
        others = [await s.control.open_session() for _ in range(6)]
        for ticket in others:
            await s.control.close_session(ticket.session_id, reward=1.0)
        if again:
            await stack.aclose()
        if decoded:
            decode(tmp_path / "data")
        if again:
            s = await stack.enter_async_context(serving(tmp_path, **options))
        registry = s.proxy.deps.registry
        assert registry.get(first.session_id) is None

        async with s.chat(key=first.api_key) as answer:
            assert answer.status == 409
            assert (await answer.json())["error"]["code"] == "session_closed"
        assert (await s.control.open_session(idempotency_key="once")).session_id == first.session_id
        headers = {"Authorization": f"Bearer {s.proxy.control_token}"}
        async with s.http.get(f"{s.proxy.control_url}/sessions/{first.session_id}", headers=headers) as answer:
            told = await answer.json()
        assert (told["calls"], told["running"], told["session"]["reward"]) == (2, 0, 0.5)
        assert (await s.control.set_reward(first.session_id, 0.75)).reward == 0.75
        assert [c.status for c in await s.control.calls(first.session_id)] == ["ok", "ok", "late", "late"]
        for ticket in others:
            live = await registry.find(ticket.session_id)
            assert live is not None
        assert registry.get(first.session_id) is None, "what was read back gives way too"
        live = await registry.find(first.session_id)
        assert live is not None
        assert (live.record.reward, live.record.revision) == (0.75, 2)

        seen, cursor = [], ""
        while found := await registry.finished(cursor, 0.0, 3):
            page, cursor = found
            if not page:
                break
            seen += [session.session_id for session in page]
        assert seen == [first.session_id, *[ticket.session_id for ticket in others]]
        assert not s.proxy.deps.registry.open_ones()


def test_names_that_were_forgotten_are_known_for_such() -> None:
    forgotten = Forgotten()
    for n in range(2000):
        forgotten.add(f"s{n}")
    assert all(f"s{n}" in forgotten for n in range(2000))
    assert sum(f"t{n}" in forgotten for n in range(2000)) < 5
