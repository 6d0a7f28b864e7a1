"""Adapters beside a server's base weights: which server takes one, in which steps, and that no call names another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from forge.proxy.engines.adapters import listed, name_of
from forge.proxy.upstreams.plan import Adapter
from forge.storage.errors import BadInput, Unavailable
from forge.storage.frames import Policy
from tests.engine import LOAD, Gate, ScriptedEngine, Turn
from tests.lora import UNLOAD, LoraEngine
from tests.proxy.goings_on import say
from tests.proxy.serving import WAIT_S, Serving, calls, serving
from tests.proxy.test_output_limit import TOGETHER, refused
from tests.script import Fault

BASE = "/models/base"
ONE, TWO, THREE = (name_of("policy", version, f"d{version}") for version in (1, 2, 3))
AROUND = ["/pause", LOAD, "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/update_weight_version"]


async def publish(s: Serving, version: int, *, base: str = BASE, **members: object) -> None:
    adapter = Adapter(path=f"/w/{version}/adapter", base=base)
    done = await s.control.publish(
        version=version, path=f"/w/{version}", adapter=adapter, digest=f"d{version}", lineage="main", **members
    )  # type: ignore[arg-type]
    assert done.failed == {}


def steps(engine: ScriptedEngine) -> list[str]:
    return [path for path, _ in engine.admin]


def models(engine: ScriptedEngine) -> list[str]:
    return [served.json["model"] for served in engine.served]


async def ask(s: Serving) -> None:
    async with s.chat() as answer:
        assert answer.status == 200, await answer.text()


async def test_each_version_is_an_adapter_of_its_own_and_calls_name_it(tmp_path: Path) -> None:
    """Field cases 172, 174: caches are reset; nothing is exchanged under a name."""
    engine = LoraEngine()
    async with serving(tmp_path, engine, model="said by the owner") as s:
        async with s.chat(model="said by the owner") as answer:
            assert answer.status == 404, (
                "this server has no model of that name: --model rules until there is an adapter"
            )
        await publish(s, 1)
        assert steps(engine) == [*AROUND, "/resume"]
        assert engine.admin[1][1] == {"lora_name": ONE, "lora_path": "/w/1/adapter"}
        await ask(s)
        await publish(s, 2)
        await ask(s)
        await publish(s, 3)
        await ask(s)
        assert steps(engine)[-8:] == [*AROUND, "/resume", UNLOAD]
        assert list(engine.adapters) == [TWO, THREE], "calls that run may still need the one before"
        assert models(engine) == [ONE, TWO, THREE]
        assert [u["adapter"] for u in await s.control.upstreams()] == [THREE]
        assert [(p.policy_version, p.weight_digest) for p in s.frames(Policy)] == [(1, "d1"), (2, "d2"), (3, "d3")]
    rows = calls(s.data)[1:]
    assert [(row.policy_version_start, row.policy_version_end, row.weight_digest) for row in rows] == [
        (1, 1, "d1"), (2, 2, "d2"), (3, 3, "d3"),
    ]  # fmt: skip
    assert {(row.model_served, row.version_source, row.policy_lineage) for row in rows} == {
        ("policy", "engine_answer", "main")
    }, "one model throughout: a session's turns join over a publication"
    assert all(row.trainable for row in rows)


@pytest.mark.parametrize("why", ["no route", "another base", "whole weights since"])
async def test_a_server_that_cannot_take_it_loads_the_whole_weights(tmp_path: Path, why: str) -> None:
    engine = ScriptedEngine() if why == "no route" else LoraEngine()
    async with serving(tmp_path, engine) as s:
        if why == "whole weights since":
            await s.control.publish(version=0, path="/w/0")
        await publish(s, 1, base="/models/other" if why == "another base" else BASE)
        assert LOAD not in steps(engine)
        assert steps(engine)[-6] == "/collective_rpc"
        await ask(s)
        assert models(engine) == ["policy"]
        assert (await s.control.upstreams())[0]["adapter"] is None
    (row,) = calls(s.data)
    assert (row.policy_version_start, row.version_source) == (1, "replica_state")


async def test_an_adapter_fits_whole_weights_that_were_published(tmp_path: Path) -> None:
    """They are where a new run begins."""
    async with serving(tmp_path, LoraEngine()) as s:
        await s.control.publish(version=4, path="/w/4")
        await publish(s, 5, base="/w/4/")
        await ask(s)
        assert models(s.engine) == [name_of("policy", 5, "d5")]


async def test_whole_weights_take_the_place_of_an_adapter(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with serving(tmp_path, engine) as s:
        await publish(s, 1)
        engine.admin.clear()
        await s.control.publish(version=2, path="/w/2", mode="keep")
        assert engine.admin[0] == ("/pause", {"mode": "abort"}), "an adapter over other weights would be neither policy"
        assert steps(engine)[1:3] == [UNLOAD, "/collective_rpc"]
        assert engine.adapters == {}
        await ask(s)
        assert models(engine) == ["policy"]


async def test_an_adapter_that_is_refused_comes_as_whole_weights(tmp_path: Path) -> None:
    engine = LoraEngine()
    engine.breaks = "LoRA rank 64 is greater than max_lora_rank 16."
    async with serving(tmp_path, engine) as s:
        await publish(s, 1)
        assert steps(engine)[:4] == ["/pause", LOAD, "/pause", "/collective_rpc"]
        await ask(s)
        engine.breaks = None
        await publish(s, 2)
        assert steps(engine).count(LOAD) == 1, "its base weights are others now"
    assert [row.policy_version_start for row in calls(s.data)] == [1]


async def test_a_failure_after_loading_began_takes_the_server_out_until_it_is_right(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with serving(tmp_path, engine) as s:
        await publish(s, 1)
        engine.holds_cache = True
        with pytest.raises(Unavailable, match="reset_prefix_cache"):
            await publish(s, 2)
        assert engine.weight_version == "1"
        async with s.chat() as answer:
            assert answer.status == 503
        engine.holds_cache = False
        engine.admin.clear()
        await publish(s, 2)
        assert LOAD not in steps(engine), "it is there since the first try"
        await ask(s)
        assert models(engine) == [TWO]


async def test_a_server_that_restarted_has_lost_it_and_stays_out(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with serving(tmp_path, engine) as s:
        await publish(s, 1)
        await engine.refuse()
        async with s.chat() as answer:
            assert answer.status == 503
        engine.restart()
        await engine.accept()
        replica = s.proxy.deps.pool.all()[0]
        async with asyncio.timeout(WAIT_S):
            while not replica.bad_weights:
                await asyncio.sleep(0.005)
        async with s.chat() as answer:
            assert answer.status == 503
        await publish(s, 2)
        await ask(s)
        assert models(engine) == [TWO], "it has its first weights again, which the adapter fits"


async def test_a_proxy_that_restarted_finds_the_adapter(tmp_path: Path) -> None:
    async with LoraEngine() as engine:
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            await publish(s, 1)
            await publish(s, 2)
        async with serving(tmp_path, upstreams=[engine.url]) as s:
            engine.served.clear()
            assert s.proxy.deps.pool.all()[0].policy == (2, "main", "d2", TWO)
            await ask(s)
            await publish(s, 3)
            await ask(s)
        assert models(engine) == [TWO, THREE]


async def test_other_proxies_of_a_server_take_over_the_adapter(tmp_path: Path) -> None:
    async with LoraEngine() as engine:
        async with (
            serving(tmp_path / "one", upstreams=[engine.url]) as one,
            serving(tmp_path / "two", upstreams=[engine.url]) as two,
        ):
            engine.served.clear()
            await publish(one, 1)
            await two.control.publish(version=1, digest="d1", by_trainer=True)
            await ask(two)
            await publish(two, 2)
            await ask(one)
        assert models(engine) == [ONE, ONE], "one goes on with what it was told of, and says so"
    assert [row.policy_version_end for row in calls(one.data)] == [1]


async def test_weights_that_somebody_else_loaded_are_not_taken_for_the_first(tmp_path: Path) -> None:
    async with LoraEngine() as engine:
        async with (
            serving(tmp_path / "one", upstreams=[engine.url]) as one,
            serving(tmp_path / "two", upstreams=[engine.url]) as two,
        ):
            await two.control.publish(version=1, path="/w/1")
            await publish(one, 2)
        assert LOAD not in steps(engine)
        assert steps(engine).count("/collective_rpc") == 2


async def test_a_call_that_is_kept_goes_on_with_its_own_adapter_and_says_so(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path, LoraEngine()) as s:
        for version in (1, 2, 3):
            s.engine.script(Turn("one two three", gate=gate))
            running = asyncio.ensure_future(say(s, "chat", stream=True))
            await s.opened(version)
            async with asyncio.timeout(WAIT_S):
                while len(s.engine.served) < version:
                    await asyncio.sleep(0.005)
            await publish(s, version, mode="keep")
            gate.open()
            assert (await running)[0] == 200
            gate.shut()
        assert models(s.engine) == ["policy", ONE, TWO]
    rows = calls(s.data)
    assert [(row.policy_version_start, row.policy_version_end, row.weight_digest) for row in rows] == [
        (0, 0, None), (1, 1, "d1"), (2, 2, "d2"),
    ]  # fmt: skip


@pytest.mark.parametrize("dialect", ["chat", "completions"])
async def test_a_generation_that_is_given_up_goes_on_with_the_new_adapter(tmp_path: Path, dialect: str) -> None:
    """Field case 175: what asks for the rest names the adapter that the rest is labelled with."""
    engine = LoraEngine()
    async with serving(tmp_path, engine) as s:
        engine.script(Turn("one two three four five six"))
        engine.gate = Gate(is_open=False)
        call = asyncio.ensure_future(say(s, dialect, stream=True))
        for version in (1, 2):
            engine.gate.release(2)
            async with asyncio.timeout(WAIT_S):
                while not engine.gate.waiting.is_set():
                    await asyncio.sleep(0.001)
                asked = len(engine.served)
                await publish(s, version, mode="abort")
                while len(engine.served) == asked:
                    await asyncio.sleep(0.001)
        engine.gate.open()
        assert (await call)[0] == 200
        assert [json.loads(served.body)["model"] for served in engine.served] == ["policy", ONE, TWO]
    (row,) = calls(s.data)
    assert [version for version, _, _ in json.loads(row.version_spans or "")] == [0, 1, 2]
    assert (row.status, row.trainable, row.policy_version_start, row.policy_version_end) == ("ok", True, 0, 2)


async def test_a_call_that_is_asked_again_names_what_is_served_by_then(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with serving(tmp_path, engine) as s:
        engine.script(Turn(fault=Fault(status=503, retry_after="1")), Turn("ok"))
        running = asyncio.ensure_future(ask(s))
        async with asyncio.timeout(WAIT_S):
            while not engine.served:
                await asyncio.sleep(0.005)
        await publish(s, 1)
        await running
        assert models(engine) == ["policy", ONE]
    (row,) = calls(s.data)
    assert (row.policy_version_start, row.policy_version_end, row.trainable) == (1, 1, True)
    assert [attempt.get("model") for attempt in json.loads(row.attempts or "[]")] == [None, ONE]


async def test_a_call_that_is_asked_again_without_its_limit_names_it_too(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with serving(tmp_path, engine) as s:
        engine.script(Turn(fault=Fault(status=503, retry_after="1")), refused(TOGETHER), Turn("ok"))
        running = asyncio.ensure_future(say(s, "chat", stream=True, max_tokens=4000))
        async with asyncio.timeout(WAIT_S):
            while not engine.served:
                await asyncio.sleep(0.005)
        await publish(s, 1)
        assert (await running)[0] == 200
        assert models(engine) == ["policy", ONE, ONE]
    (row,) = calls(s.data)
    assert (row.policy_version_start, row.policy_version_end, row.trainable) == (1, 1, True)


async def test_servers_of_both_kinds_in_one_pool_serve_the_same_version(tmp_path: Path) -> None:
    async with LoraEngine(root="/models/elsewhere") as other, serving(tmp_path, LoraEngine()) as s:
        await s.control.add_upstream(other.url)
        other.served.clear()
        await publish(s, 1)
        for _ in range(2):
            await ask(s)
        assert (models(s.engine), models(other)) == ([ONE], ["policy"])
    assert {row.policy_version_start for row in calls(s.data)} == {1}


async def test_an_adapter_alone_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, LoraEngine()) as s:
        with pytest.raises(BadInput, match="need the whole weights"):
            await s.control.publish(version=1, adapter=Adapter(path="/w/1/adapter", base=BASE))


def test_only_names_that_a_publication_gave_are_adapters_of_ours() -> None:
    names = ["base:forge-1-0123456789ab", "base", ONE, "own", f"{ONE}x", TWO, name_of("policy", 1, "later")]
    found = listed({"data": [{"id": name} for name in names]})
    assert (found.base, found.adapters) == (names[0], (ONE, TWO, names[-1]))
    assert (found.of(1), found.of(2), found.of(3), found.of(None)) == (names[-1], TWO, None, None)
    assert listed({}).base is None
