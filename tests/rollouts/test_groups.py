"""One group: drawn, chosen from, the rest told; the order of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

from forge.rollouts.balance import Balance, Dropped
from forge.rollouts.groups import Ended, Group, Work, draw, endless
from forge.storage.records import SessionStatus
from forge.tasks import Task
from tests.rollouts.made import Scripted, sample
from tests.run.fake import FakeHarness, OtherHarness

WORK = Work(Task(id="t", prompt="p"), FakeHarness(""), "g")


async def test_it_is_drawn_until_it_can_be_chosen_and_the_rest_is_told() -> None:
    draws = Scripted([0.0, 0.0, None, 0.0, 1.0, 1.0, 0.0, None])
    group = await draw(draws, Balance(), WORK)
    assert (group.chosen, group.balanced, group.dropped) == ((0, 1, 4, 5), True, None)
    assert [each.session_id for each in draws.left] == ["s3", "s6"], "a session without a reward was no choice"
    assert [s.session_id for s in group.samples] == ["s0", "s1", "s4", "s5"]
    assert draws.asked == list(range(8))


async def test_a_group_that_teaches_nothing_leaves_all_its_sessions_out() -> None:
    draws = Scripted([0.0] * 8)
    group = await draw(draws, Balance(), WORK)
    assert (group.chosen, group.dropped, group.samples) == ((), Dropped.NO_POSITIVE, [])
    assert len(draws.left) == 8


async def test_a_session_that_hit_a_length_limit_is_chosen_last() -> None:
    draws = Scripted([1.0, 0.0, 1.0, 1.0, 0.0], truncated={0})
    group = await draw(draws, Balance(size=4, stride=5, maximum=5), WORK)
    assert group.chosen == (1, 2, 3, 4)


async def test_what_would_hit_every_session_ends_the_group() -> None:
    class Gone:
        async def session(self, work: Work, index: int) -> Ended:
            raise OSError("no node is left")

        async def not_selected(self, sessions: Sequence[Ended]) -> None: ...

    with pytest.raises(ExceptionGroup, match="unhandled"):
        await draw(Gone(), Balance(), WORK)


def test_the_age_of_a_group_is_that_of_its_oldest_token() -> None:
    ended = [
        Ended(session_id=str(v), status=SessionStatus.COMPLETED, reward=1.0, samples=[sample(str(v), version=v)])
        for v in (4, 3, None)
    ]
    assert Group(WORK, tuple(ended), (0, 1, 2)).version == 3
    assert Group(WORK, tuple(ended), (2,)).version is None


def test_every_task_comes_once_a_round_in_every_harness() -> None:
    tasks = [Task(id=str(n), prompt="p") for n in range(5)]
    adapters = [FakeHarness(""), OtherHarness("")]
    rounds = [list(islice(endless(tasks, adapters, "r", 3), at, at + 10)) for at in (0, 10)]
    assert [{(w.task.id, w.adapter.name) for w in each} for each in rounds] == [
        {(task.id, adapter.name) for task in tasks for adapter in adapters}
    ] * 2
    first, second = ([(w.task.id, w.adapter.name) for w in each] for each in rounds)
    assert first != second
    everything = [w.group_id for each in rounds for w in each]
    assert len(set(everything)) == 20, "a task that comes again is another group"
    assert [w.group_id for w in islice(endless(tasks, adapters, "r", 3, skip=7), 13)] == everything[7:]
