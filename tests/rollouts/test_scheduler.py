"""Groups in the making: how many there may be, which make the batch, what is dropped and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.rollouts.balance import Dropped
from forge.rollouts.groups import Ended, Group, Work
from forge.rollouts.scheduler import TRIES, Scheduler, room, scheduling
from forge.storage.errors import Unavailable, Untrainable
from forge.storage.records import SessionStatus
from forge.tasks import Task
from tests.rollouts.made import sample
from tests.run.fake import FakeHarness

WAIT_S = 10.0


def order() -> Iterator[Work]:
    return (Work(Task(id=str(number), prompt="p"), FakeHarness(""), f"g{number}") for number in count())


def finished(work: Work, version: int = 0, dropped: Dropped | None = None) -> Group:
    ended = [
        Ended(
            session_id=f"{work.group_id}-{reward:g}",
            status=SessionStatus.COMPLETED,
            reward=reward,
            samples=[sample(f"{work.group_id}-{reward:g}", version=version)],
        )
        for reward in (0.0, 1.0)
    ]
    return Group(work, tuple(ended), () if dropped else (0, 1), dropped=dropped)


class Making:
    """Groups that a test finishes one by one."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[Group]] = {}
        self.begun: list[Work] = []

    async def __call__(self, work: Work) -> Group:
        self.begun.append(work)
        self.waiting[work.group_id] = asyncio.get_running_loop().create_future()
        return await self.waiting[work.group_id]

    async def finish(self, group_id: str, version: int = 0, dropped: Dropped | None = None) -> None:
        async with asyncio.timeout(WAIT_S):
            while group_id not in self.waiting:
                await asyncio.sleep(0)
        work = next(each for each in self.begun if each.group_id == group_id)
        self.waiting.pop(group_id).set_result(finished(work, version, dropped))
        await settled()

    @property
    def names(self) -> list[str]:
        return [work.group_id for work in self.begun]


async def settled() -> None:
    """Every task has gone as far as it can: nothing here waits for anything but the test."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.booleans(), max_size=60))
def test_no_group_is_begun_that_must_be_too_old_when_it_is_learned_from(
    size: int, max_staleness: int, moves: list[bool]
) -> None:
    """Groups are taken in the order they were begun; each batch makes a new version, and groups are of the version
    that served when they were begun."""
    batch, begun, versions = 0, 0, list[int]()
    for take in moves:
        if take and len(versions) >= size:
            assert all(batch - version <= max_staleness for version in versions[:size])
            versions = versions[size:]
            batch += 1
        else:
            free = room(batch=batch, begun=begun, size=size, max_staleness=max_staleness)
            begun += free
            versions += [batch] * free
            assert len(versions) <= (max_staleness + 1) * size, "what waits is bounded"


async def test_synchronous_all_of_a_batch_is_begun_on_its_own_weights() -> None:
    making = Making()
    async with asyncio.timeout(WAIT_S), scheduling(making, order(), size=2, max_staleness=0, batches=9) as scheduler:
        wanted = asyncio.ensure_future(scheduler.batch(0, 7))
        await settled()
        assert making.names == ["g0", "g1"]
        await making.finish("g1", version=7)
        await making.finish("g0", version=7)
        batch = await wanted
        assert [group.work.group_id for group in batch.groups] == ["g1", "g0"], "in the order they finished"
        await settled()
        assert making.names == ["g0", "g1"], "nothing runs while the trainer works"
        wanted = asyncio.ensure_future(scheduler.batch(1, 8))
        await settled()
        assert making.names == ["g0", "g1", "g2", "g3"]
        wanted.cancel()


async def test_asynchronous_sessions_go_on_and_the_first_finished_make_the_batch() -> None:
    making = Making()
    async with asyncio.timeout(WAIT_S), scheduling(making, order(), size=2, max_staleness=1, batches=9) as scheduler:
        wanted = asyncio.ensure_future(scheduler.batch(0, 0))
        await settled()
        assert making.names == ["g0", "g1", "g2", "g3"]
        await making.finish("g3")
        await making.finish("g1")
        assert [group.work.group_id for group in (await wanted).groups] == ["g3", "g1"]
        await making.finish("g0")
        wanted = asyncio.ensure_future(scheduler.batch(1, 1))
        await settled()
        assert making.names == [f"g{n}" for n in range(6)], "room for one batch more"
        await making.finish("g2")
        batch = await wanted
        assert [group.work.group_id for group in batch.groups] == ["g0", "g2"]
        assert batch.stale == []


async def test_what_is_too_old_when_it_is_taken_is_dropped_counted_and_replaced() -> None:
    making = Making()
    async with asyncio.timeout(WAIT_S), scheduling(making, order(), size=1, max_staleness=1, batches=9) as scheduler:
        wanted = asyncio.ensure_future(scheduler.batch(0, 0))
        await settled()
        await making.finish("g1")
        await wanted
        wanted = asyncio.ensure_future(scheduler.batch(1, 2))
        await making.finish("g0", version=0)
        await making.finish("g2", version=1)
        batch = await wanted
        assert [group.work.group_id for group in batch.groups] == ["g2"]
        assert [group.work.group_id for group in batch.stale] == ["g0"]
        assert batch.counts()["groups_dropped"] == {"stale": 1}
        await settled()
        assert "g3" in making.names


async def test_a_group_that_is_given_up_makes_room_for_another_and_is_counted() -> None:
    making = Making()
    async with asyncio.timeout(WAIT_S), scheduling(making, order(), size=1, max_staleness=0, batches=9) as scheduler:
        wanted = asyncio.ensure_future(scheduler.batch(0, 0))
        await making.finish("g0", dropped=Dropped.NO_SPREAD)
        await making.finish("g1")
        found = (await wanted).counts()
    assert found["groups_dropped"] == {"no_spread": 1}
    assert (found["sessions"], found["sessions_chosen"], found["sessions_not_selected"]) == (4, 2, 2)
    assert (found["pass_rate"], found["reward_mean_chosen"]) == (0.5, 0.5)
    assert found["sessions_by_status"] == {"completed": 4}


async def test_tasks_that_never_teach_end_the_run_and_say_why() -> None:
    async def hopeless(work: Work) -> Group:
        return finished(work, dropped=Dropped.NO_POSITIVE)

    async with asyncio.timeout(WAIT_S), scheduling(hopeless, order(), size=2, max_staleness=0, batches=9) as scheduler:
        with pytest.raises(Untrainable) as caught:
            await scheduler.batch(0, 0)
    assert "and 0 of 2 can be learned from" in caught.value.message
    assert int(caught.value.message.split()[0]) >= 2 * TRIES
    assert "no_positive" in caught.value.message


async def test_a_policy_that_is_gone_is_told_from_tasks_that_are_too_hard() -> None:
    async def unserved(work: Work) -> Group:
        lost = Ended(session_id="s", status=SessionStatus.POLICY_DOWN)
        return Group(work, (lost,) * 8, dropped=Dropped.FEWER_THAN_TWO)

    async with (
        asyncio.timeout(WAIT_S),
        scheduling(unserved, order(), size=1, max_staleness=0, batches=9) as scheduler,
    ):
        with pytest.raises(Unavailable, match="policy_down"):
            await scheduler.batch(0, 0)


async def test_what_hits_every_session_ends_the_run() -> None:
    async def gone(work: Work) -> Group:
        raise Unavailable("no node is left", "")

    waiting: list[asyncio.Task[object]] = []

    async def learn(scheduler: Scheduler) -> None:
        waiting.append(asyncio.ensure_future(scheduler.batch(0, 0)))  # as from another thread
        await asyncio.Event().wait()

    with pytest.raises(Unavailable, match="no node is left"):
        async with asyncio.timeout(WAIT_S), scheduling(gone, order(), size=2, max_staleness=0, batches=9) as scheduler:
            await learn(scheduler)
    with pytest.raises(Unavailable, match="no node is left"):
        await waiting[0]


async def test_leaving_ends_what_runs_and_who_waits() -> None:
    making = Making()
    async with asyncio.timeout(WAIT_S), scheduling(making, order(), size=1, max_staleness=0, batches=9) as scheduler:
        wanted = asyncio.ensure_future(scheduler.batch(0, 0))
        await settled()
    assert making.waiting["g0"].cancelled()
    with pytest.raises(asyncio.CancelledError):
        await wanted


async def test_a_run_that_goes_on_begins_at_its_batch() -> None:
    making = Making()
    async with (
        asyncio.timeout(WAIT_S),
        scheduling(making, order(), size=2, max_staleness=0, batches=9, first=3) as scheduler,
    ):
        wanted = asyncio.ensure_future(scheduler.batch(3, 3))
        await settled()
        assert len(making.begun) == 2
        wanted.cancel()


async def test_no_group_is_begun_for_a_batch_that_will_not_be() -> None:
    making = Making()
    async with (
        asyncio.timeout(WAIT_S),
        scheduling(making, order(), size=2, max_staleness=5, batches=2) as scheduler,
    ):
        wanted = asyncio.ensure_future(scheduler.batch(0, 0))
        await settled()
        assert len(making.begun) == 4
        wanted.cancel()
