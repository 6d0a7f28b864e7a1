"""One session of a run: opened, its harness launched and ended, graded, closed.

Owns the order of these steps and the outcome of each. Whatever goes wrong here becomes this session's status and a
null reward with its reason; the run and its other sessions go on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from forge import workspace
from forge.adapters.harnesses.base import HarnessAdapter, Heard
from forge.client import Closed, ControlClient, NoCapacity, Ticket
from forge.graders import Grade, Graders
from forge.launching import Launching
from forge.run_config import RunConfig
from forge.run_report import SessionReport
from forge.runners.base import Folders
from forge.storage.errors import ForgeError
from forge.storage.records import Call, CallStatus, SessionStatus
from forge.tasks import Task
from forge.transcripts import NO_TRANSCRIPT, Comparison, Verdict, compare
from forge.verdict import verdict

log = logging.getLogger(__name__)

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
CLOSE_S: Final = 20.0
"""To close a session while the run is being interrupted."""
ROOM_S: Final = 1.0
"""Between two tries to open a session in a full proxy."""
OUTPUT_READ_MAX: Final = 8 << 20
"""Of a harness's stdout, read back for its last message."""
LINE_MAX: Final = 300
TRANSCRIPT: Final = "transcript"
"""Folder of a session's harness's own records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one launch."""

    status: SessionStatus
    error: str | None = None
    exit_code: int | None = None
    grade: Grade = field(default_factory=Grade)
    calls: Sequence[Call] = ()
    transcript: Comparison = NO_TRANSCRIPT


class Rollouts:
    def __init__(
        self, config: RunConfig, client: ControlClient, graders: Graders, launching: Launching, *, scratch: Path
    ) -> None:
        self._config = config
        self._client = client
        self._graders = graders
        self._launching = launching
        self._scratch = scratch

    async def one(self, task: Task, adapter: HarnessAdapter, index: int) -> SessionReport:
        """Never raises for what a harness, a grader or the policy does; raises when the proxy is gone."""
        return (await self.closed(task, adapter, index))[0]

    async def closed(
        self, task: Task, adapter: HarnessAdapter, index: int, *, group_id: str | None = None
    ) -> tuple[SessionReport, Closed]:
        """The same with the session's samples. ``group_id``: of a trainer that owns the groups."""
        ticket = await self.open(task, adapter, index, group_id or f"{self._config.run_id}/{task.id}/{adapter.name}")
        return await self.within(ticket, task, adapter, index)

    async def within(
        self, ticket: Ticket, task: Task, adapter: HarnessAdapter, index: int
    ) -> tuple[SessionReport, Closed]:
        """The same in a session that somebody opened, by ``open`` or in another process."""
        began = time.monotonic()
        root, kept = self._scratch / ticket.session_id, self._config.kept / ticket.session_id
        try:
            attempt = await self._attempt(task, adapter, ticket, root, kept)
        except asyncio.CancelledError:
            with suppress(TimeoutError, ForgeError):
                async with asyncio.timeout(CLOSE_S):
                    await self._close(
                        ticket, task, Attempt(status=SessionStatus.INTERRUPTED, error="the run was ended")
                    )
            raise
        except Exception as error:
            # A session's boundary: what nobody foresaw ends this one and no other. A full disk tells its story itself.
            full = isinstance(error, OSError) and error.errno in FULL
            if not full:
                log.exception("session failed: session_id=%s", ticket.session_id)
            attempt = Attempt(
                status=SessionStatus.INTERRUPTED, error=str(error) if full else f"{type(error).__name__}: {error}"
            )
        finally:
            await asyncio.to_thread(workspace.remove, root)
        closed = await self._close(ticket, task, attempt)
        return self._report(task, adapter, index, attempt, closed, seconds=time.monotonic() - began), closed

    async def open(self, task: Task, adapter: HarnessAdapter, index: int, group_id: str) -> Ticket:
        """Waits for room where others fill the proxy.

        A group is a task *in one harness*: its mean is the baseline of its sessions, and another harness gives the
        model another prompt and other tools. Across harnesses, sessions are compared by their task id.
        """
        config = self._config
        spec = {
            "run_id": config.run_id,
            "task_id": task.id,
            "group_id": group_id,
            "rollout_index": index,
            "purpose": config.purpose.value,
            "harness": adapter.name,
            "harness_version": adapter.version,
            "harness_config_hash": self._launching.config_hash(adapter),
            "sampling": config.sampling,
            "history": config.history.value,
        }
        while True:
            try:
                return await self._client.open_session(**spec)
            except NoCapacity:
                await asyncio.sleep(ROOM_S)

    async def _attempt(self, task: Task, adapter: HarnessAdapter, ticket: Ticket, root: Path, kept: Path) -> Attempt:
        kept.mkdir(parents=True)
        folders = Folders.make(root)
        task.write_files(folders.workspace)
        ending = await self._config.runner.run(self._launching.job(adapter, task.prompt, ticket, folders, kept))
        await self._keep_transcripts(adapter, folders, kept)
        calls = await self._client.calls(ticket.session_id)
        transcript = await asyncio.to_thread(_compared, adapter, calls, kept, ended=not ending.timed_out)
        status, error = verdict(ending, calls, said=_said(adapter, kept))
        grade = Grade(reason=f"the session ended as {status}")
        if status is SessionStatus.COMPLETED:
            output = adapter.final_text(_read(kept / "stdout"))
            told = [_told(call) for call in calls]
            grade = await self._graders.grade(
                task, folders.workspace, output=output, calls=told, root=root / "grader", kept=kept
            )
        return Attempt(
            status=status, error=error, exit_code=ending.exit_code, grade=grade, calls=calls, transcript=transcript
        )

    async def _keep_transcripts(self, adapter: HarnessAdapter, folders: Folders, kept: Path) -> None:
        try:
            await asyncio.to_thread(workspace.transcripts, folders.home, adapter.transcripts, kept / TRANSCRIPT)
        except OSError as error:  # a harness can make folders that nobody can walk; its session counts all the same
            log.warning("no transcript kept: folder=%s error=%s", kept, error)

    async def _close(self, ticket: Ticket, task: Task, attempt: Attempt) -> Closed:
        grade, judged = attempt.grade, task.grader is not None and attempt.status is SessionStatus.COMPLETED
        why = f"no reward: {grade.reason}" if judged and grade.reward is None else None
        return await self._client.close_session(
            ticket.session_id,
            status=attempt.status.value,
            reward=grade.reward,
            reward_components=dict(grade.components) if grade.components else None,
            reward_author=task.grader.author if task.grader is not None and judged else None,
            exit_code=attempt.exit_code,
            error=attempt.error or why,
        )

    def _report(
        self, task: Task, adapter: HarnessAdapter, index: int, attempt: Attempt, closed: Closed, *, seconds: float
    ) -> SessionReport:
        cannot = ((c.call_id, c.untrainable_reason) for c in attempt.calls if c.status == CallStatus.OK)
        return SessionReport(
            session_id=closed.session.session_id,
            task_id=task.id,
            rollout_index=index,
            harness=adapter.name,
            status=attempt.status,
            error=attempt.error,
            exit_code=attempt.exit_code,
            seconds=seconds,
            calls=closed.calls.calls,
            ok_calls=closed.calls.statuses.get(CallStatus.OK, 0),
            output_tokens=closed.calls.output_tokens,
            rows=len(closed.samples),
            reward=attempt.grade.reward,
            reward_reason=attempt.grade.reason,
            kept=self._config.kept / closed.session.session_id,
            transcript=attempt.transcript,
            untrainable=tuple((call_id, reason) for call_id, reason in cannot if reason is not None),
        )


def _compared(adapter: HarnessAdapter, calls: Sequence[Call], kept: Path, *, ended: bool) -> Comparison:
    """The harness's own record against ours; kept beside it. A difference is a warning: our record is of what the
    engine said, and the harness's may be of what it made of it."""
    folder = kept / TRANSCRIPT
    found = compare(_heard(adapter, folder) if folder.is_dir() else None, calls, ended=ended)
    (kept / "transcript.json").write_bytes(msgspec.json.format(msgspec.json.encode(found.told())))
    if found.verdict is Verdict.DIFFERS:
        log.warning("transcript differs: session=%s: %s", kept.name, "; ".join(map(str, found.differences)))
    return found


def _heard(adapter: HarnessAdapter, folder: Path) -> Sequence[Heard] | None:
    try:
        return adapter.transcript(folder)
    except Exception:
        # A model could write into these files: whatever stands there, its session counts.
        log.exception("transcript cannot be read: harness=%s folder=%s", adapter.name, folder)
        return None


def _told(call: Call) -> dict[str, Any]:
    """A call as a grader sees it."""
    return {
        "call_id": call.call_id,
        "kind": call.kind,
        "status": call.status,
        "finish_reason": call.finish_reason,
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "response": msgspec.json.decode(call.response) if call.response else None,
    }


def _read(path: Path) -> str:
    """The end of what a harness printed."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - OUTPUT_READ_MAX))
        return file.read().decode(errors="replace")


def _said(adapter: HarnessAdapter, kept: Path) -> str:
    """Why a harness failed, in its own words."""
    out, err = (_read(path) if path.exists() else "" for path in (kept / "stdout", kept / "stderr"))
    lines = (adapter.failure(out) or err).strip().splitlines()
    return lines[-1][:LINE_MAX] if lines else ""
