"""What a person sees while a run goes on: a line for each ended session, and on a terminal a bar below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console
from rich.markup import escape

from forge.run_report import SessionReport
from forge.tasks import Task
from forge.terminal import Terminal


class Progress:
    """The ``Watch`` of the command line."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._running = 0
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def begun(self, task: Task, rollout_index: int) -> None:
        self._running += 1
        self._show()

    def done(self, report: SessionReport) -> None:
        self._running -= 1
        self._done += 1
        line = f"[{self._done}/{self._total}] {one_line(report)}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._show()

    def _show(self) -> None:
        self._bar.update(self._all, completed=self._done, description=escape(f"{self._running} sessions run"))


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner with the time that one long step takes, on a terminal; on stderr, so that stdout can be JSON. Gives a
    function that says a line."""
    console = Terminal(stderr=True)
    columns = (progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(escape(what), total=None)
        yield lambda text: console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def one_line(report: SessionReport) -> str:
    reward = "-" if report.reward is None else f"{report.reward:g}"
    line = f"{report.session_id} {report.task_id}#{report.rollout_index} {report.harness} {report.status}"
    line += f" calls={report.calls} tokens={report.output_tokens} reward={reward} {report.seconds:.1f}s"
    return f"{line}: {report.error}" if report.error else line
