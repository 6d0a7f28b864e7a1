"""Forge behind TRL's own harness worker: sessions that hand out the calls of a harness as TRL's trace.

``harness_session_factory=functools.partial(HarnessSessions, settings)``. By TRL 1.16's names, with the method that 1.10
called (``fetch_proxy_trace``) beside the one it calls now (``fetch_training_trace``). Ids are the recorded ones, so
TRL's joining by common prefix has nothing left to mend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from forge.adapters.trainers.trl import Turn, turns
from forge.plugins.episodes import Asked, Episode, Episodes, blocking
from forge.plugins.settings import Settings, prompt_text
from forge.plugins.trl import NEEDS
from forge.storage.records import SessionStatus


@dataclass(frozen=True, slots=True)
class Trace:
    turns: Sequence[Turn]

    def to_trace_entries(self) -> list[Turn]:
        return list(self.turns)


@dataclass(frozen=True, slots=True)
class Verdict:
    env_reward: float | None
    done: bool = True
    metrics: dict[str, Any] = field(default_factory=dict)


class HarnessSessions:
    """TRL's ``ResourceSessionFactory``."""

    def __init__(self, settings: Settings | Mapping[str, Any], sampling: Mapping[str, Any] | None = None) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.of(settings)
        self._sampling = dict(sampling or {})
        self._pool = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="forge-session")
        self._seen: Counter[str] = Counter()
        self._lock = Lock()

    def create(self, prompt: Any, seed: int | None = None, episode_id: str | None = None) -> HarnessSession:
        """Begins the session. ``seed``: TRL's group."""
        task = self._settings.task(None, prompt_text(prompt))
        group = f"{self._settings.run_id}/{seed if seed is not None else episode_id}"
        with self._lock:
            index = self._seen[group]
            self._seen[group] += 1
        return HarnessSession(self._pool.submit(blocking, self._run(Asked(task, group, index))))

    async def _run(self, asked: Asked) -> tuple[Episode, list[Turn]]:
        async with Episodes(self._settings, NEEDS) as episodes:
            episode = await episodes.one(asked, self._sampling)
            return episode, turns(await episodes.calls(episode))


class HarnessSession:
    """TRL's ``TrainableSession``."""

    def __init__(self, running: Future[tuple[Episode, list[Turn]]]) -> None:
        self._running = running

    def wait_for_completion(self, timeout_s: float | None = None) -> None:
        """Raises ``TimeoutError`` for a harness that its time limit ended; its calls count all the same."""
        episode, _ = self._running.result(timeout_s)
        if episode.report.status is SessionStatus.TIMEOUT:
            raise TimeoutError(f"session {episode.report.session_id} took more than its time")

    def fetch_training_trace(self) -> Trace:
        return Trace(self._running.result()[1])

    def fetch_proxy_trace(self) -> list[Turn]:
        return self._running.result()[1]

    def verify(self, transcript: Any = None, final_state: Any = None) -> Verdict:
        return Verdict(self._running.result()[0].report.reward)

    def initial_messages(self) -> list[Any]:
        return []

    def list_tools(self) -> list[Any]:
        """The harness has its own."""
        return []

    def close(self) -> None:
        """The session is closed when its harness ends; one that never began does not."""
        self._running.cancel()
