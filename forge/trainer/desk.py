"""Where the driver leaves orders for the learners and finds their answers: an actor between it and Ray Train's workers.

Ray Train's workers run one function to its end, while a trainer that waits for rollouts gives one order at a time; so
the function takes orders from here until it is told that there are no more. Small values only: rows go as references.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple


class Order(NamedTuple):
    method: str
    """Of ``Learner``."""
    args: tuple[Any, ...]
    """References to the arguments' values."""


class Desk:
    """An asyncio actor: it waits without holding a thread."""

    def __init__(self, learners: int) -> None:
        self._learners = learners
        self._orders: list[Order | None] = []
        self._answers: list[dict[int, Any]] = []
        self._rows_done = 0
        self._changed = asyncio.Condition()

    async def give(self, order: Order | None) -> int:
        """The order's number; None: there are no more."""
        async with self._changed:
            self._rows_done = 0
            self._orders.append(order)
            self._answers.append({})
            self._changed.notify_all()
            return len(self._orders) - 1

    async def take(self, number: int) -> Order | None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._orders) > number)
            return self._orders[number]

    async def answer(self, number: int, rank: int, value: Any) -> None:
        async with self._changed:
            self._answers[number][rank] = value
            self._changed.notify_all()

    async def answers(self, number: int) -> list[Any]:
        """Of all learners, by rank."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._answers[number]) == self._learners)
            found, self._answers[number] = self._answers[number], {}
            return [found[rank] for rank in sorted(found)]

    async def progress(self, rows_done: int) -> None:
        self._rows_done = rows_done

    async def rows_done(self) -> int:
        """Rows that the first learner has seen of the running step."""
        return self._rows_done
