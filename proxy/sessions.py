"""The sessions of this proxy: opened, called in, rewarded, closed; their budgets; the list of finished ones.

Every change is a frame before it is true. What is in memory can be rebuilt from frames (``restore``), so sessions
live through a restart. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from forge.proxy.agents import Agents
from forge.proxy.history import History
from forge.proxy.ids import IdSource
from forge.proxy.keys import Keys
from forge.proxy.reasoning import Reasoning
from forge.proxy.recorder import RETIRED, Recorder, wall_us
from forge.proxy.session_spec import Budgets, Outcome, Policy, Reward, SessionSpec
from forge.storage.errors import BadInput, Unavailable
from forge.storage.records import RewardStatus, Session, SessionStatus

ERROR_MAX: Final = 2000


@dataclass(slots=True)
class Used:
    """What a session has used of its budgets."""

    calls: int = 0
    output_tokens: int = 0
    context: int = 0
    """Prompt and output of its longest call."""


class Unknown(BadInput):
    """A session that cannot be told from a closed one."""


class Full(Unavailable):
    """No room for another session."""


@dataclass(slots=True, eq=False)
class Live:
    """One session in this process."""

    record: Session
    budgets: Budgets | None = None
    sampling: dict[str, Any] | None = None
    history: History = field(default_factory=History)
    agents: Agents = field(default_factory=Agents)
    reasoning: Reasoning = field(default_factory=Reasoning)
    running: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    """Call id to the task that serves it."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    replica: str | None = None
    """Where its prefix cache is."""
    calls: int = 0
    output_tokens: int = 0
    context: int = 0
    """Prompt and output of its longest call."""
    unfit_limit: int | None = None
    """Output tokens that did not fit beside a prompt of its."""
    opened: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    closing: bool = False
    restored: bool = False
    """An earlier start of the proxy opened it: its first frames may be in the dataset alone."""

    @property
    def id(self) -> str:
        return self.record.session_id

    @property
    def is_open(self) -> bool:
        return self.record.status == SessionStatus.OPEN and not self.closing

    @property
    def counts_tokens(self) -> bool:
        """A budget needs to know what each call's answer holds."""
        return self.budgets is not None and (self.budgets.output_tokens is not None or self.budgets.context is not None)

    def spent(self) -> str | None:
        """The budget that is used up, or None."""
        budgets = self.budgets
        if budgets is None:
            return None
        if budgets.calls is not None and self.calls >= budgets.calls:
            return "calls"
        if budgets.output_tokens is not None and self.output_tokens >= budgets.output_tokens:
            return "output_tokens"
        if budgets.context is not None and self.context >= budgets.context:
            return "context"
        if budgets.seconds is not None and time.monotonic() - self.opened >= budgets.seconds:
            return "seconds"
        return None

    def tokens_left(self) -> int | None:
        """Output tokens that the next call may have; None without such a budget. A prompt is taken to be no shorter
        than the longest exchange so far, so a context budget holds for histories that grow."""
        if self.budgets is None:
            return None
        budgets = ((self.budgets.output_tokens, self.output_tokens), (self.budgets.context, self.context))
        left = [budget - used for budget, used in budgets if budget is not None]
        return max(1, min(left)) if left else None

    def begin(self, call_id: str, task: asyncio.Task[Any]) -> None:
        self.calls += 1
        self.running[call_id] = task
        self.idle.clear()
        self.used = time.monotonic()

    def end(self, call_id: str) -> None:
        self.running.pop(call_id, None)
        self.used = time.monotonic()
        if not self.running:
            self.idle.set()


class Registry:
    """All sessions; ``finished`` in the order in which they were closed."""

    def __init__(self, recorder: Recorder, keys: Keys, ids: IdSource, *, run_id: str, limit: int) -> None:
        self._recorder = recorder
        self._keys = keys
        self._ids = ids
        self._run_id = run_id
        self._limit = limit
        self._sessions: dict[str, Live] = {}
        self._open: dict[str, Live] = {}
        self._external: dict[tuple[str | None, str], str] = {}
        """Implicit sessions by (harness, its own session id)."""
        self._finished: list[tuple[int, str]] = []
        self._complete = True
        self._news = asyncio.Condition()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def limit(self) -> int:
        return self._limit

    def get(self, session_id: str) -> Live | None:
        return self._sessions.get(session_id)

    def open_ones(self) -> list[Live]:
        return list(self._open.values())

    def restore(
        self,
        states: Iterable[Session],
        used: Mapping[str, Used],
        *,
        complete: bool = True,
        doubtful: Collection[str] = (),
    ) -> None:
        """Sessions of earlier starts, any revisions. ``complete``: no part of the record was unreadable; ``doubtful``
        ones take no calls any more."""
        self._complete = complete
        for state in states:
            known = self._sessions.get(state.session_id)
            if known is None or known.record.revision < state.revision:
                live = self._live(state, used.get(state.session_id, Used()))
                live.restored = True
                self._sessions[state.session_id] = live
        for live in self._sessions.values():
            record = live.record
            if not live.is_open:
                self._finished.append((record.close_us or 0, record.session_id))
            elif record.implicit:
                labels = msgspec.json.decode(record.labels or "{}", type=dict[str, Any])
                if labels.get("harness_session"):
                    self._external[record.harness, labels["harness_session"]] = record.session_id
        for session_id in doubtful:
            self._sessions[session_id].closing = True
        self._finished.sort()
        for _, session_id in self._finished[-RETIRED:]:
            self._recorder.track(session_id)
            self._recorder.retire(session_id)

    def _live(self, state: Session, used: Used) -> Live:
        live = Live(
            state,
            budgets=msgspec.json.decode(state.budgets, type=Budgets) if state.budgets else None,
            sampling=msgspec.json.decode(state.sampling, type=dict[str, Any]) if state.sampling else None,
            calls=used.calls,
            output_tokens=used.output_tokens,
            context=used.context,
        )
        live.opened -= max(0.0, (wall_us() - state.open_us) / 1e6)
        live.idle.set()
        if live.is_open:
            self._recorder.track(live.id)
            self._open[live.id] = live
        else:
            self._open.pop(live.id, None)
        return live

    def open(self, spec: SessionSpec, policy: Policy) -> Live:
        """A new session, or the one that the idempotency key already opened. Raises ``Full`` or ``JournalFull``."""
        if spec.idempotency_key is not None:
            session_id = self._keys.session_id_for(spec.idempotency_key)
            known = self._sessions.get(session_id)
            if known is not None:
                return known
        else:
            session_id = self._ids.next()
        return self._new(self._state(session_id, spec, policy))

    def adopt(self, session_id: str, policy: Policy) -> Live:
        """A session whose key is right but whose frames are gone (a new data folder with the old secret). Raises
        ``Unknown`` where they may only be unreadable: it may be closed, and what is closed is never opened again."""
        if not self._complete:
            raise Unknown(
                f"session {session_id} is not known, and a part of the record cannot be read: it may be closed",
                "open a new session",
            )
        return self._new(self._state(session_id, SessionSpec(), policy))

    def implicit(self, external_id: str | None, harness: str | None, version: str | None, policy: Policy) -> Live:
        """The open implicit session of a harness's own id, or a new one."""
        if external_id is not None:
            known = self._sessions.get(self._external.get((harness, external_id), ""))
            if known is not None and known.is_open:
                return known
        labels = {"harness_session": external_id} if external_id is not None else None
        spec = SessionSpec(harness=harness, harness_version=version, labels=labels)
        live = self._new(replace(self._state(self._ids.next(), spec, policy), implicit=True))
        if external_id is not None:
            self._external[harness, external_id] = live.id
        return live

    def _state(self, session_id: str, spec: SessionSpec, policy: Policy) -> Session:
        if len(self) >= self._limit:
            raise Full(f"{self._limit} sessions are open", "close some, or start more proxies")
        return Session(
            session_id=session_id,
            run_id=spec.run_id or self._run_id,
            task_id=spec.task_id,
            group_id=spec.group_id,
            rollout_index=spec.rollout_index,
            purpose=spec.purpose,
            harness=spec.harness,
            harness_version=spec.harness_version,
            sampling=_json(spec.sampling),
            history=spec.history,
            budgets=_json(spec.budgets),
            labels=_json(spec.labels),
            open_us=wall_us(),
            policy_version=policy.version,
            policy_lineage=policy.lineage,
            weight_digest=policy.digest,
        )

    def _new(self, state: Session) -> Live:
        self._recorder.session(state, "open")
        live = self._live(state, Used())
        self._sessions[state.session_id] = live
        return live

    async def close(self, live: Live, outcome: Outcome) -> Session:
        """Refuses new calls, waits for running ones, cuts off those that outlast the grace. Closing twice is once."""
        if not live.is_open and not live.closing:
            return live.record
        live.closing = True
        try:
            async with asyncio.timeout(max(0.0, outcome.grace)):
                await live.idle.wait()
        except TimeoutError:
            for task in list(live.running.values()):
                task.cancel("its session was closed")
            await live.idle.wait()
        if live.record.status == SessionStatus.OPEN:
            self._recorder.retry_pending()
            try:
                self._change(live, _closed(live.record, outcome, self._close_us()), "close")
            except BaseException:
                live.closing = False
                raise
            live.history, live.agents, live.reasoning = History(), Agents(), Reasoning()
            self._open.pop(live.id, None)
            self._recorder.retire(live.id)
            self._finished.append((live.record.close_us or 0, live.id))
            async with self._news:
                self._news.notify_all()
        return live.record

    def _close_us(self) -> int:
        """Later than any close before, also when the wall clock steps back: cursors into ``finished`` rest on it."""
        last = self._finished[-1][0] if self._finished else 0
        return max(wall_us(), last + 1)

    def reward(self, live: Live, reward: Reward) -> Session:
        changed = _rewarded(live.record, reward.reward, reward.reward_components, reward.reward_author)
        self._change(live, changed, "reward")
        return live.record

    def _change(self, live: Live, state: Session, event: str) -> None:
        state = replace(state, revision=live.record.revision + 1)
        self._recorder.session(state, event)
        live.record = state

    async def finished(self, cursor: str, wait_s: float, limit: int) -> tuple[list[Session], str]:
        """Sessions closed after ``cursor`` (empty: from the first), at most ``limit``; waits for one to come."""
        start = _cursor(cursor)
        try:
            async with asyncio.timeout(wait_s), self._news:
                await self._news.wait_for(lambda: bisect_right(self._finished, start) < len(self._finished))
        except TimeoutError:
            pass
        place = bisect_right(self._finished, start)
        found = self._finished[place : place + limit]
        end = f"{found[-1][0]}:{found[-1][1]}" if found else cursor
        return [self._sessions[session_id].record for _, session_id in found], end


def _cursor(text: str) -> tuple[int, str]:
    time_us, _, session_id = text.partition(":")
    if text and not time_us.isdigit():
        raise BadInput(f"not a cursor: {text[:40]!r}", "give the one of the last answer, or none")
    return (int(time_us or -1), session_id)


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _closed(state: Session, outcome: Outcome, close_us: int) -> Session:
    if outcome.status == SessionStatus.OPEN:
        raise BadInput("a session cannot be closed with status open", "give completed, failed, timeout, ...")
    error = outcome.error[:ERROR_MAX] if outcome.error else None
    state = replace(
        state, status=outcome.status, close_us=close_us, exit_code=outcome.exit_code, error=error or state.error
    )
    if not isinstance(outcome.reward, msgspec.UnsetType):
        return _rewarded(state, outcome.reward, outcome.reward_components, outcome.reward_author)
    if outcome.status != SessionStatus.COMPLETED and state.reward_status == RewardStatus.PENDING:
        return replace(state, reward_status=RewardStatus.NULL)
    return state


def _rewarded(state: Session, reward: float | None, components: dict[str, float] | None, author: str | None) -> Session:
    return replace(
        state,
        reward=reward,
        reward_status=RewardStatus.NULL if reward is None else RewardStatus.GRADED,
        reward_components=_json(components),
        reward_author=author,
        reward_us=wall_us(),
    )
