"""A session has one home, the same for every process, whatever number of workers its data directory has seen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from forge.proxy.config import ProxyConfig, Record
from forge.proxy.engines.base import Abilities
from forge.proxy.ids import IdSource
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.pool import State
from forge.proxy.workers.home import Homes, OwnIds
from forge.proxy.workers.messages import LENGTH_BYTES, Begin, Follow, ReplicaState, config_of, decode, encode, plain
from forge.storage.errors import BadInput


def test_ids_are_minted_where_they_live_and_spread_evenly() -> None:
    homes, other = Homes(4), Homes(4)
    for number in range(4):
        ids = OwnIds(homes, number)
        assert {other.of(ids.next()) for _ in range(50)} == {number}
    spread = Counter(homes.of(IdSource().next()) for _ in range(4000))
    assert min(spread.values()) > 800


def test_sessions_of_another_number_of_workers_stay_where_they_were() -> None:
    old = {number: [OwnIds(Homes(2), number).next() for _ in range(200)] for number in range(2)}
    homes = Homes(3)
    strays = [homes.strays(number, old.get(number, ())) for number in range(3)]
    assert strays[2] == b""
    homes.learn(strays)
    for number, session_ids in old.items():
        assert {homes.of(session_id) for session_id in session_ids} == {number}
    fresh = [OwnIds(homes, number).next() for number in range(3)]
    assert [homes.of(session_id) for session_id in fresh] == [0, 1, 2]


def test_a_directory_that_always_had_these_workers_has_no_strays() -> None:
    homes = Homes(2)
    assert homes.strays(1, [OwnIds(homes, 1).next() for _ in range(50)]) == b""


def test_messages_arrive_as_they_were_said() -> None:
    config = ProxyConfig(
        data=Path("/data"), run_id="r", record=Record.BEST_EFFORT, sampling={"temperature": 0.5}, writer=3, workers=2
    )
    begin = Begin(config=plain(config), number=1, workers=2, token="t", base_url="", folder="/f", ports=(1, 2))
    said = decode(encode(begin)[LENGTH_BYTES:])
    assert isinstance(said, Begin)
    assert config_of(said.config) == config
    replica = ReplicaState(
        url="http://e",
        engine="vllm",
        abilities=Abilities(ids=True, sampling_defaults={"top_k": 20}),
        state=State.LOADING,
        reason="",
        policy=Policy(3, "main", "d"),
    )
    follow = Follow(number=7, replicas=[replica], shut_for=["paused"], published={"http://e": Policy(3)}, refuses="")
    assert decode(encode(follow)[LENGTH_BYTES:]) == follow


@pytest.mark.parametrize(("writer", "workers"), [(0, 0), (0, 65), (60, 5)])
def test_a_number_of_workers_that_cannot_be_is_refused(tmp_path: Path, writer: int, workers: int) -> None:
    with pytest.raises(BadInput, match=f"there cannot be {workers} workers"):
        ProxyConfig(data=tmp_path, run_id="run", writer=writer, workers=workers)
