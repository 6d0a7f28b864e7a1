"""The pool: a session stays where its prefix cache is, leaves a crowded server, and caches hardly notice the proxy."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from forge.proxy.engines import ENGINES
from forge.proxy.upstreams.pool import SPILL, Pool, Replica, State
from tests.engine import ScriptedEngine
from tests.proxy.serving import serving
from tests.script import Json

SERVERS = 4
SESSIONS = 24
TURNS = 6
BLOCK = 8
"""Words that are cached together."""
BLOCKS = 200
"""Blocks that a server holds: its share of the sessions and not much more."""


class PrefixCache:
    """A server's, as engines keep it: whole blocks, each known by all that stands before it, the oldest let go."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, None] = OrderedDict()
        self.hits = self.asked = 0

    def take(self, words: list[str]) -> None:
        place, known = 0, True
        for start in range(0, len(words) - BLOCK + 1, BLOCK):
            place = hash((place, *words[start : start + BLOCK]))
            known = known and place in self._held
            self.hits += known
            self.asked += 1
            self._held[place] = None
            self._held.move_to_end(place)
            if len(self._held) > BLOCKS:
                self._held.popitem(last=False)


def words(request: Json) -> list[str]:
    return [word for message in request["messages"] for word in (message["role"], *str(message["content"]).split())]


def hit_rate(servers: Iterable[list[list[str]]]) -> float:
    caches = []
    for prompts in servers:
        cache = PrefixCache()
        for prompt in prompts:
            cache.take(prompt)
        caches.append(cache)
    return sum(cache.hits for cache in caches) / sum(cache.asked for cache in caches)


async def test_four_servers_behind_the_proxy_hit_their_prefix_caches_as_often_as_asked_directly(tmp_path: Path) -> None:
    """The bar is 0.98 of a client that sends each session to one server of its own choice."""
    said = {n: [{"role": "system", "content": f"session {n} " + "of a long task " * 10}] for n in range(SESSIONS)}
    asked: list[tuple[int, list[str]]] = []

    async def turn(http: aiohttp.ClientSession, url: str, number: int, round_: int) -> None:
        said[number].append({"role": "user", "content": f"question {round_} of {number} " + "and more words " * 8})
        body = {"model": "policy", "messages": said[number]}
        headers = {"x-session-id": f"agent-{number}"}
        async with http.post(url + "/chat/completions", json=body, headers=headers) as answer:
            message: dict[str, Any] = (await answer.json())["choices"][0]["message"]
        asked.append((number, words(body)))
        said[number].append({"role": "assistant", "content": message["content"]})

    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(SERVERS)]
        there = [engine.url for engine in engines]
        s = await stack.enter_async_context(serving(tmp_path, upstreams=there))
        for engine in engines:
            engine.served.clear()
        for round_ in range(TURNS):
            await asyncio.gather(*(turn(s.http, s.proxy.base_url, n, round_) for n in range(SESSIONS)))
        through = hit_rate([words(served.json) for served in engine.served] for engine in engines)
        sessions = [{words(served.json)[2] for served in engine.served} for engine in engines]
    direct = hit_rate([prompt for n, prompt in asked if n % SERVERS == place] for place in range(SERVERS))
    assert direct > 0.5
    assert through / direct >= 0.98
    assert [len(one) for one in sessions] == [SESSIONS // SERVERS] * SERVERS


def pool_of(*busy: int) -> tuple[Pool, list[Replica]]:
    pool = Pool()
    replicas = [Replica(f"http://{n}", ENGINES["vllm"]) for n in range(len(busy))]
    for replica, calls in zip(replicas, busy, strict=True):
        pool.add(replica)
        for _ in range(calls):
            pool.begin(replica)
    return pool, replicas


def test_a_session_leaves_its_server_only_when_that_one_is_far_busier() -> None:
    pool, (mine, _) = pool_of(SPILL - 1, 0)
    assert pool.pick(mine.url) is mine
    pool.begin(mine)
    assert pool.pick(mine.url) is not mine


def test_a_session_goes_elsewhere_while_its_server_drains_or_is_down() -> None:
    for state in (State.DRAINING, State.DOWN, State.LOADING):
        pool, (mine, other, third) = pool_of(0, 1, 2)
        mine.state = state
        assert pool.pick(mine.url) is other
        other.state = state
        assert pool.pick(mine.url) is third
        third.state = state
        assert pool.pick(mine.url) is None


def test_sessions_that_come_one_after_another_are_spread() -> None:
    pool, replicas = pool_of(0, 0, 0)
    chosen = []
    for _ in range(9):
        replica = pool.pick(None)
        assert replica is not None
        chosen.append(replica)
        pool.begin(replica)
        pool.end(replica)
    assert [chosen.count(replica) for replica in replicas] == [3, 3, 3]
