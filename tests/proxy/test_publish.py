"""Publication is one operation: in order, complete, checked, and what calls see of it is true."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from forge.proxy.config import ProxyConfig
from forge.proxy.upstreams.replicas import join
from forge.storage.errors import BadInput, Unavailable
from forge.storage.frames import Close, Open, Policy
from tests.engine import Gate, ScriptedEngine, Turn
from tests.proxy.serving import WAIT_S, Serving, calls, serving


def paths(engine: ScriptedEngine) -> list[str]:
    return [path for path, _ in engine.admin]


async def test_the_steps_come_in_order_and_calls_carry_the_version(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        async with s.chat() as answer:
            await answer.read()
        done = await s.control.publish(version=1, path="/weights/1", digest="d1", lineage="main")
        assert (done.version, done.replicas, done.failed) == (1, [s.engine.url], {})
        assert paths(s.engine) == [
            "/pause",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/reset_mm_cache",
            "/reset_encoder_cache",
            "/update_weight_version",
            "/resume",
        ]
        assert s.engine.weight_version == "1"
        async with s.chat() as answer:
            await answer.read()
        ticket = await s.control.open_session()
        assert ticket.policy_version == 1
        assert [(p.policy_version, p.weight_digest, p.policy_lineage) for p in s.frames(Policy)] == [(1, "d1", "main")]
    before, after = calls(s.data)
    assert (before.policy_version_start, before.policy_version_end) == (0, 0)
    assert (after.policy_version_start, after.policy_version_end, after.weight_digest) == (1, 1, "d1")
    assert (after.policy_lineage, after.version_source, after.trainable) == ("main", "replica_state", True)


async def test_new_calls_wait_and_running_ones_end_first(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("old policy", gate=gate))
        running = asyncio.ensure_future(_call(s))
        await s.opened()
        publishing = asyncio.ensure_future(s.control.publish(version=1, path="/w/1"))
        async with asyncio.timeout(WAIT_S):
            while s.proxy.deps.pool.is_open:
                await asyncio.sleep(0.005)
        waiting = asyncio.ensure_future(_call(s))
        gate.open()
        await publishing
        assert "old" in await running
        await waiting
        assert [o.policy_version for o in s.frames(Open)] == [0, 1]
        assert [c.policy_version for c in s.frames(Close)] == [0, 1]


async def test_abort_ends_running_calls_as_aborted_rows(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two three", gate=gate))
        gate.release(2)
        running = asyncio.ensure_future(_call(s))
        await s.opened()
        await gate.waiting.wait()
        await s.control.publish(version=1, path="/w/1", mode="abort")
        assert "generation_aborted" in await running
    (row,) = calls(s.data)
    assert row.status == "aborted"


async def test_keep_marks_a_call_that_straddles_the_update(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two three", gate=gate))
        running = asyncio.ensure_future(_call(s))
        await s.opened()
        await s.control.publish(version=1, path="/w/1", mode="keep")
        gate.open()
        await running
    (row,) = calls(s.data)
    assert (row.policy_version_start, row.policy_version_end) == (0, 1)


async def test_a_digest_that_differs_takes_the_server_out_until_it_is_right(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(embedded=True)) as s:
        assert s.proxy.deps.pool.all()[0].engine.name == "embedded"
        with pytest.raises(Unavailable, match="digest-of-/w/1, not expected"):
            await s.control.publish(version=1, path="/w/1", digest="expected")
        async with s.chat() as answer:
            assert answer.status == 503
        assert s.engine.weight_version == "default", "a version is set only on checked weights"
        assert await s.control.ready() is False
        await s.control.publish(version=1, path="/w/1", digest="digest-of-/w/1")
        async with s.chat() as answer:
            assert answer.status == 200


async def test_a_cache_that_was_not_reset_takes_the_server_out(tmp_path: Path) -> None:
    """vLLM says so with a 200: new weights over the old ones' keys and values would sample from neither."""
    async with serving(tmp_path) as s:
        s.engine.holds_cache = True
        with pytest.raises(Unavailable, match="reset_prefix_cache"):
            await s.control.publish(version=1, path="/weights/1")
        assert s.engine.weight_version == "default", "no version is set on weights with an old cache"
        async with s.chat() as answer:
            assert answer.status == 503
        s.engine.holds_cache = False
        done = await s.control.publish(version=1, path="/weights/1")
        assert done.failed == {}
        async with s.chat() as answer:
            assert answer.status == 200


async def test_one_bad_server_does_not_stop_the_others(tmp_path: Path) -> None:
    async with ScriptedEngine() as other, serving(tmp_path) as s:
        await s.control.add_upstream(other.url)
        await other.refuse()
        done = await s.control.publish(version=1, path="/w/1")
        assert done.replicas == [s.engine.url]
        assert list(done.failed) == [other.url]
        async with s.chat() as answer:
            assert answer.status == 200


async def test_rolling_keeps_serving(tmp_path: Path) -> None:
    async with ScriptedEngine() as other, serving(tmp_path) as s:
        await s.control.add_upstream(other.url)
        gate = Gate(is_open=False)
        s.engine.script(Turn("long", gate=gate))
        running = asyncio.ensure_future(_call(s))
        await s.opened()
        publishing = asyncio.ensure_future(s.control.publish(version=1, path="/w/1", rolling=True))
        for _ in range(3):
            await _call(s)
        gate.open()
        await running
        assert len((await publishing).replicas) == 2
        assert {r.policy.version for r in s.proxy.deps.pool.all()} == {1}


async def test_versions_grow(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.control.publish(version=3, lineage="a")
        assert "/collective_rpc" not in paths(s.engine), "no path: the publisher has loaded the weights itself"
        assert "/reset_prefix_cache" in paths(s.engine)
        with pytest.raises(BadInput, match="lower than 3"):
            await s.control.publish(version=2, lineage="a")
        await s.control.publish(version=0, lineage="b")


async def test_a_trainer_that_loads_weights_itself_only_tells_the_version(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        before = list(s.engine.admin)
        await s.control.publish(version=5, by_trainer=True)
        assert s.engine.admin == before, "no pause, no load, no reset: the trainer has done them"
        assert [u["policy_version"] for u in await s.control.upstreams()] == [5]
        with pytest.raises(BadInput, match="exclude each other"):
            await s.control.publish(version=6, path="/w/6", by_trainer=True)


async def test_a_server_that_restarted_with_old_weights_stays_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.control.publish(version=1, path="/w/1")
        await s.engine.refuse()
        async with s.chat() as answer:
            assert answer.status == 503
        s.engine.weight_version = "default"
        await s.engine.accept()
        replica = s.proxy.deps.pool.all()[0]
        async with asyncio.timeout(WAIT_S):
            while not replica.bad_weights:
                await asyncio.sleep(0.005)
        async with s.chat() as answer:
            assert answer.status == 503
        assert "publish to it again" in (await s.control.upstreams())[0]["reason"]


async def test_the_version_is_known_after_a_restart_of_the_proxy(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            await s.control.publish(version=4, path="/w/4", digest="d4", lineage="main")
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            policy = s.proxy.deps.pool.all()[0].policy
            assert policy[:3] == (4, "main", "d4")


async def test_pause_holds_calls_until_resume(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.control.pause()
        waiting = asyncio.ensure_future(_call(s))
        assert not (await asyncio.wait([waiting], timeout=0.1))[0]
        assert not s.engine.served
        await s.control.resume()
        assert "ok" in await waiting


async def test_the_pool_grows_drains_and_shrinks(tmp_path: Path) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as two, serving(tmp_path, upstreams=[]) as s:
        assert await s.control.ready() is False
        async with s.chat() as answer:
            assert answer.status == 503
        await s.control.add_upstream(one.url + "/v1/")
        assert await s.control.ready()
        ticket = await s.control.open_session()
        one.served.clear()
        for _ in range(3):
            async with s.chat(key=ticket.api_key) as answer:
                assert answer.status == 200
        await s.control.add_upstream(two.url)
        two.served.clear()
        async with s.chat(key=ticket.api_key) as answer:
            await answer.read()
        assert (len(one.served), len(two.served)) == (4, 0), "a session sticks to its server"
        await s.control.drain_upstream(one.url)
        async with s.chat(key=ticket.api_key) as answer:
            assert answer.status == 200
        assert len(two.served) == 1
        await s.control.remove_upstream(one.url)
        assert [u["url"] for u in await s.control.upstreams()] == [two.url]
        with pytest.raises(BadInput, match="no policy server"):
            await s.control.remove_upstream(one.url)
        with pytest.raises(BadInput, match="not a policy server's URL"):
            await s.control.add_upstream("file:///etc/passwd")
    replicas = [c.replica for c in calls(s.data)]
    assert replicas == ["", one.url, one.url, one.url, one.url, two.url]


async def test_a_call_that_moves_to_another_server_names_the_one_that_answered(tmp_path: Path) -> None:
    async with ScriptedEngine() as other, serving(tmp_path) as s:
        await s.control.publish(version=1)
        await s.control.add_upstream(other.url)
        await s.engine.refuse()
        async with s.chat() as answer:
            assert answer.status == 200
    (row,) = calls(s.data)
    assert (row.replica, row.policy_version_start, row.policy_version_end) == (other.url, 0, 0)
    assert row.trainable


def test_a_key_in_an_upstream_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="may hold no user"):
        ProxyConfig(data=tmp_path, run_id="r", upstreams=("http://user:secret@host:1",))


async def test_a_publication_does_not_end_a_pause(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.control.pause()
        await s.control.publish(version=1, path="/w/1")
        assert s.proxy.deps.pool.is_open is False
        await s.control.resume()
        assert "ok" in await _call(s)


async def test_a_full_journal_leaves_no_publication_half_done(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        journal = s.proxy.deps.recorder.journal
        good, full = os.dup(journal._fd), os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, journal._fd)
        try:
            done = await s.control.publish(version=1, path="/w/1")
        finally:
            os.dup2(good, journal._fd)
            os.close(good)
            os.close(full)
        assert (done.failed, paths(s.engine)[-1]) == ({}, "/resume")
        assert "ok" in await _call(s)
    (row,) = calls(s.data)
    assert row.policy_version_start == 1


async def test_a_server_added_twice_at_once_is_one(tmp_path: Path) -> None:
    async with ScriptedEngine() as other, serving(tmp_path) as s:
        one, two = await asyncio.gather(*(join(s.proxy.deps, other.url, start_s=WAIT_S) for _ in range(2)))
        assert one is two is s.proxy.deps.pool.get(other.url)


async def _call(s: Serving) -> str:
    async with s.chat(stream=True) as answer:
        text: str = await answer.text()
        return text
