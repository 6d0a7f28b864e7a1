"""The sessions of this proxy: opened, called in, rewarded, closed; their budgets; the list of finished ones.

Every change is a frame before it is true. What is in memory can be rebuilt from frames (``restore``), so sessions
live through a restart. Open sessions are in memory, and those that closed last; older ones are read back when someone
asks for them (``archive``). Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from forge.proxy.door.keys import Keys
from forge.proxy.ids import IdSource
from forge.proxy.recording.recorder import RETIRED, Recorder, wall_us
from forge.proxy.sessions.agents import Agents
from forge.proxy.sessions.archive import Archive, Forgotten
from forge.proxy.sessions.history import History
from forge.proxy.sessions.live import Live, Used
from forge.proxy.sessions.reasoning import Reasoning
from forge.proxy.sessions.record import closed, opened, rewarded
from forge.proxy.sessions.spec import Budgets, Outcome, Policy, Reward, SessionSpec
from forge.storage.errors import BadInput, Unavailable
from forge.storage.records import Selection, Session, SessionStatus

log = logging.getLogger(__name__)


class Unknown(BadInput):
    """A session that cannot be told from a closed one."""


class Full(Unavailable):
    """No room for another session."""


class Registry:
    """All sessions; ``finished`` in the order in which they were closed."""

    def __init__(
        self, recorder: Recorder, keys: Keys, ids: IdSource, archive: Archive, *, run_id: str, limit: int, kept: int
    ) -> None:
        """``limit``: of open sessions; ``kept``: of closed ones in memory, and of older ones that were read back."""
        self._recorder = recorder
        self._keys = keys
        self._ids = ids
        self._archive = archive
        self._run_id = run_id
        self._limit = limit
        self._kept = kept
        self._sessions: dict[str, Live] = {}
        self._open: dict[str, Live] = {}
        self._external: dict[tuple[str | None, str], str] = {}
        """Implicit sessions by (harness, its own session id)."""
        self._finished: list[tuple[int, str]] = []
        """When and which, of those in memory."""
        self._floor = (-1, "")
        """The last one before them."""
        self._forgotten = Forgotten()
        self._read_back: OrderedDict[str, None] = OrderedDict()
        self._reading = asyncio.Lock()
        self._complete = True
        self.refuses = ""
        """Why no new sessions are taken, whatever their number."""
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

    async def find(self, session_id: str) -> Live | None:
        """The session, read back if it closed a while ago. Raises ``Unknown`` where it may only be unreadable."""
        live = self._sessions.get(session_id)
        if live is None and session_id in self._forgotten:
            async with self._reading:
                live = self._sessions.get(session_id) or await self._recall(session_id)
        return live

    async def _recall(self, session_id: str) -> Live | None:
        found = await asyncio.to_thread(self._archive.session, session_id)
        state = found.session
        if state is None and found.complete:
            return None
        if state is None or state.status == SessionStatus.OPEN:
            raise _unreadable(session_id)
        live = self._sessions[session_id] = self._live(state, Used(calls=found.calls))
        live.restored = True
        self._read_back[session_id] = None
        if len(self._read_back) > self._kept:
            del self._sessions[self._read_back.popitem(last=False)[0]]
        return live

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
        latest: dict[str, Session] = {}
        for state in states:
            known = latest.get(state.session_id)
            if known is None or known.revision < state.revision:
                latest[state.session_id] = state
        ended: list[tuple[int, str]] = []
        for session_id, state in latest.items():
            if state.status == SessionStatus.OPEN:
                self._reopen(state, used.get(session_id, Used()), doubtful=session_id in doubtful)
            else:
                self._forgotten.add(session_id)
                ended.append((state.close_us or 0, session_id))
        ended.sort()
        self._floor = ended[-1] if ended else self._floor
        for _, session_id in ended[-RETIRED:]:
            self._recorder.track(session_id)
            self._recorder.retire(session_id)

    def _reopen(self, state: Session, used: Used, *, doubtful: bool) -> None:
        live = self._sessions[state.session_id] = self._live(state, used)
        live.restored, live.closing = True, doubtful
        labels = msgspec.json.decode(state.labels or "{}", type=dict[str, Any])
        if state.implicit and labels.get("harness_session"):
            live.external = (state.harness, labels["harness_session"])
            self._external[live.external] = live.id

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

    async def open(self, spec: SessionSpec, policy: Policy) -> Live:
        """A new session, or the one that the idempotency key already opened. Raises ``Full`` or ``JournalFull``."""
        if spec.idempotency_key is not None:
            session_id = self._keys.session_id_for(spec.idempotency_key)
            known = await self.find(session_id)
            if known is not None:
                return known
        else:
            session_id = self._ids.next()
        return self._new(self._state(session_id, spec, policy))

    async def adopt(self, session_id: str, policy: Policy) -> Live:
        """A session whose key is right but whose frames are gone (a new data folder with the old secret). Raises
        ``Unknown`` where they may only be unreadable, for what is closed is never opened again, and where they are in
        another journal, for a session has one."""
        if not self._complete:
            raise _unreadable(session_id)
        if await asyncio.to_thread(self._archive.is_elsewhere, session_id):
            raise Unknown(
                f"session {session_id} is in a journal that this process does not write",
                "call the proxy that opened it; one with --workers needs as many as before",
            )
        known = self._sessions.get(session_id)  # two calls may come at once
        return known if known is not None else self._new(self._state(session_id, SessionSpec(), policy))

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
            live.external = (harness, external_id)
            self._external[live.external] = live.id
        return live

    def _state(self, session_id: str, spec: SessionSpec, policy: Policy) -> Session:
        if self.refuses:
            raise Full(self.refuses, "forge delete makes room; open sessions go on")
        if len(self) >= self._limit:
            raise Full(f"{self._limit} sessions are open", "close some, or start more proxies")
        return opened(session_id, spec, policy, spec.run_id or self._run_id)

    def _new(self, state: Session) -> Live:
        self._recorder.session(state, "open")
        live = self._live(state, Used())
        self._sessions[state.session_id] = live
        log.info("session opened: session_id=%s run_id=%s harness=%s", live.id, state.run_id, state.harness)
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
                self._change(live, closed(live.record, outcome, self._close_us()), "close")
            except BaseException:
                live.closing = False
                raise
            self._shelve(live)
            log.info(
                "session closed: session_id=%s status=%s reward=%s calls=%d",
                *(live.id, live.record.status, live.record.reward_status, live.calls),
            )
            async with self._news:
                self._news.notify_all()
        return live.record

    def _shelve(self, live: Live) -> None:
        """It is closed: only its record is kept, as long as there is room."""
        live.history, live.agents, live.reasoning = History(), Agents(), Reasoning()
        self._open.pop(live.id, None)
        if live.external is not None and self._external.get(live.external) == live.id:
            del self._external[live.external]
        self._recorder.retire(live.id)
        self._finished.append((live.record.close_us or 0, live.id))
        if len(self._finished) > self._kept:
            self._floor = self._finished.pop(0)
            self._forgotten.add(self._floor[1])
            del self._sessions[self._floor[1]]

    def _close_us(self) -> int:
        """Later than any close before, also when the wall clock steps back: cursors into ``finished`` rest on it."""
        last = self._finished[-1][0] if self._finished else self._floor[0]
        return max(wall_us(), last + 1)

    def reward(self, live: Live, reward: Reward) -> Session:
        changed = rewarded(live.record, reward.reward, reward.reward_components, reward.reward_author)
        self._change(live, changed, "reward")
        return live.record

    def select(self, live: Live, selection: Selection | None) -> Session:
        """Of a session that is closed: before, nobody can choose. Saying the same twice changes nothing."""
        if live.is_open:
            raise BadInput(f"session {live.id} is open: nobody can choose among sessions before they end", "close it")
        if live.record.selection != selection:
            self._change(live, replace(live.record, selection=selection), "selection")
        return live.record

    def _change(self, live: Live, state: Session, event: str) -> None:
        state = replace(state, revision=live.record.revision + 1)
        self._recorder.session(state, event)
        live.record = state

    async def finished(self, cursor: str, wait_s: float, limit: int) -> tuple[list[Session], str]:
        """Sessions closed after ``cursor`` (empty: from the first), at most ``limit``; waits for one to come."""
        start = _cursor(cursor)
        if start < self._floor:
            older = await asyncio.to_thread(self._archive.closed, start, self._floor, limit)
            if older:
                return older, f"{older[-1].close_us or 0}:{older[-1].session_id}"
        try:
            async with asyncio.timeout(wait_s), self._news:
                await self._news.wait_for(lambda: bisect_right(self._finished, start) < len(self._finished))
        except TimeoutError:
            pass
        place = bisect_right(self._finished, start)
        found = self._finished[place : place + limit]
        end = f"{found[-1][0]}:{found[-1][1]}" if found else cursor
        return [self._sessions[session_id].record for _, session_id in found], end


def _unreadable(session_id: str) -> Unknown:
    return Unknown(
        f"session {session_id} is not known, and a part of the record cannot be read: it may be closed",
        "open a new session",
    )


def _cursor(text: str) -> tuple[int, str]:
    time_us, _, session_id = text.partition(":")
    if text and not time_us.isdigit():
        raise BadInput(f"not a cursor: {text[:40]!r}", "give the one of the last answer, or none")
    return (int(time_us or -1), session_id)
