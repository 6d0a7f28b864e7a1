"""One session of a run: opened, its harness launched and ended, graded, closed.

The verdict comes from what was recorded, not from the harness's exit code alone: one that exits 0 after no served call
has not completed. Whatever goes wrong here becomes this session's status and a null reward with its reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from forge import workspace
from forge.adapters.harnesses.base import LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.client import Closed, ControlClient, NoCapacity, Ticket
from forge.graders import Grade, Graders
from forge.run_config import RunConfig
from forge.run_report import SessionReport
from forge.runners.base import Ending, Folders, Job, Mount
from forge.storage.errors import ForgeError
from forge.storage.records import Call, CallStatus, SessionStatus
from forge.tasks import Task

log = logging.getLogger(__name__)

MODEL: Final = "policy"
"""What harnesses call the model: in no harness's catalogue. The proxy puts the policy server's own name there."""
CONTEXT_TOKENS: Final = 32768
"""Assumed when no policy server says how much it takes."""
OUTPUT_TOKENS: Final = 4096
OUTPUT_SHARE: Final = 4
"""A harness that must name a limit asks for a quarter of the context at most."""
CLOSE_S: Final = 20.0
"""To close a session while the run is being interrupted."""
ROOM_S: Final = 1.0
"""Between two tries to open a session in a full proxy."""
OUTPUT_READ_MAX: Final = 8 << 20
"""Of a harness's stdout, read back for its last message."""
LINE_MAX: Final = 300
UNREACHED_HTTP: Final = (502, 503, 504)
"""What the proxy answers when no policy server could serve a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one launch."""

    status: SessionStatus
    error: str | None = None
    exit_code: int | None = None
    grade: Grade = field(default_factory=Grade)
    calls: Sequence[Call] = ()


class Rollouts:
    def __init__(
        self, config: RunConfig, client: ControlClient, graders: Graders, *, context_tokens: int | None, scratch: Path
    ) -> None:
        self._config = config
        self._client = client
        self._graders = graders
        self._context_tokens = context_tokens or CONTEXT_TOKENS
        self._scratch = scratch

    async def one(self, task: Task, index: int) -> SessionReport:
        """Never raises for what a harness, a grader or the policy does; raises when the proxy is gone."""
        began = time.monotonic()
        ticket = await self._open(task, index)
        root, kept = self._scratch / ticket.session_id, self._config.kept / ticket.session_id
        try:
            attempt = await self._attempt(task, ticket, root, kept)
        except asyncio.CancelledError:
            with suppress(TimeoutError, ForgeError):
                async with asyncio.timeout(CLOSE_S):
                    await self._close(
                        ticket, task, Attempt(status=SessionStatus.INTERRUPTED, error="the run was ended")
                    )
            raise
        except Exception as error:
            # A session's boundary: what nobody foresaw (a full disk, a bug) ends this one and no other.
            log.exception("session failed: session_id=%s", ticket.session_id)
            attempt = Attempt(status=SessionStatus.INTERRUPTED, error=f"{type(error).__name__}: {error}")
        finally:
            await asyncio.to_thread(workspace.remove, root)
        closed = await self._close(ticket, task, attempt)
        return self._report(task, index, attempt, closed, seconds=time.monotonic() - began)

    async def _open(self, task: Task, index: int) -> Ticket:
        """Waits for room where others fill the proxy."""
        config = self._config
        spec = {
            "run_id": config.run_id,
            "task_id": task.id,
            "group_id": f"{config.run_id}/{task.id}",
            "rollout_index": index,
            "purpose": config.purpose.value,
            "harness": config.adapter.name,
            "harness_version": config.adapter.version,
            "sampling": config.sampling,
        }
        while True:
            try:
                return await self._client.open_session(**spec)
            except NoCapacity:
                await asyncio.sleep(ROOM_S)

    async def _attempt(self, task: Task, ticket: Ticket, root: Path, kept: Path) -> Attempt:
        config = self._config
        kept.mkdir(parents=True)
        folders = Folders.make(root)
        task.write_files(folders.workspace)
        ending = await config.runner.run(self._job(task, ticket, folders, kept))
        await self._keep_transcripts(folders, kept)
        calls = await self._client.calls(ticket.session_id)
        status, error = verdict(ending, calls, said=_last_line(kept / "stderr"))
        grade = Grade(reason=f"the session ended as {status}")
        if status is SessionStatus.COMPLETED:
            output = config.adapter.final_text(_read(kept / "stdout"))
            told = [_told(call) for call in calls]
            grade = await self._graders.grade(
                task, folders.workspace, output=output, calls=told, root=root / "grader", kept=kept
            )
        return Attempt(status=status, error=error, exit_code=ending.exit_code, grade=grade, calls=calls)

    async def _keep_transcripts(self, folders: Folders, kept: Path) -> None:
        globs = self._config.adapter.transcripts
        try:
            await asyncio.to_thread(workspace.transcripts, folders.home, globs, kept / "transcript")
        except OSError as error:  # a harness can make folders that nobody can walk; its session counts all the same
            log.warning("no transcript kept: folder=%s error=%s", kept, error)

    def _job(self, task: Task, ticket: Ticket, folders: Folders, kept: Path) -> Job:
        config = self._config
        cache = cache_folder()
        places = config.runner.places(folders, cache)
        launch = config.adapter.launch(
            LaunchRequest(
                base_url=ticket.base_url,
                api_key=ticket.api_key,
                model=MODEL,
                prompt=task.prompt,
                workspace=places.workspace,
                home=places.home,
                installs=places.installs,
                context_tokens=self._context_tokens,
                output_tokens=self._output_tokens(),
                seconds=config.seconds,
            )
        )
        for name, text in launch.files.items():
            path = folders.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        packages = (package.folder for package in config.adapter.packages)
        return Job(
            argv=launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            seconds=launch.limits.seconds,
            folders=folders,
            stdout=kept / "stdout",
            stderr=kept / "stderr",
            path=launch.path,
            mounts=tuple(Mount(cache / folder, f"{places.installs}/{folder}") for folder in packages),
        )

    def _output_tokens(self) -> int:
        """The run's own limit where it has one; the proxy puts it into every call anyway."""
        asked = self._config.sampling.get("max_tokens")
        return asked if isinstance(asked, int) else min(OUTPUT_TOKENS, self._context_tokens // OUTPUT_SHARE)

    async def _close(self, ticket: Ticket, task: Task, attempt: Attempt) -> Closed:
        grade = attempt.grade
        return await self._client.close_session(
            ticket.session_id,
            status=attempt.status.value,
            reward=grade.reward,
            reward_components=dict(grade.components) if grade.components else None,
            reward_author=task.grader.author if task.grader is not None and grade.reward is not None else None,
            exit_code=attempt.exit_code,
            error=attempt.error,
        )

    def _report(self, task: Task, index: int, attempt: Attempt, closed: Closed, *, seconds: float) -> SessionReport:
        cannot = ((c.call_id, c.untrainable_reason) for c in attempt.calls if c.status == CallStatus.OK)
        return SessionReport(
            session_id=closed.session.session_id,
            task_id=task.id,
            rollout_index=index,
            harness=self._config.adapter.name,
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
            untrainable=tuple((call_id, reason) for call_id, reason in cannot if reason is not None),
        )


def verdict(ending: Ending, calls: Sequence[Call], *, said: str) -> tuple[SessionStatus, str | None]:
    """How a session ended and why; ``said``: the harness's last line of stderr."""
    served = any(call.status == CallStatus.OK for call in calls)
    last_error = next((call.error for call in reversed(calls) if call.error), None)
    if ending.not_started is not None:
        return SessionStatus.LAUNCH_FAILED, ending.not_started
    if not served and any(call.http_status in UNREACHED_HTTP for call in calls):
        return SessionStatus.POLICY_DOWN, last_error
    if ending.timed_out:
        return SessionStatus.TIMEOUT, f"it had not ended after {ending.seconds:.0f} s"
    how = f"exit code {ending.exit_code}" + (f", {said}" if said else "")
    if not calls:
        return SessionStatus.NO_CALLS, f"it made no call: {how}"
    if not served:
        return SessionStatus.FAILED, f"none of its {len(calls)} calls was served: {last_error}; {how}"
    if ending.exit_code != 0:
        return SessionStatus.FAILED, how
    return SessionStatus.COMPLETED, None


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


def _last_line(path: Path) -> str:
    lines = _read(path).strip().splitlines() if path.exists() else []
    return lines[-1][:LINE_MAX] if lines else ""
