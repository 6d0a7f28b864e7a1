"""A report as people read it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from forge.run_stats import stats_table
from forge.verify.report import Finding, Level, Report


def print_report(report: Report, console: Console) -> None:
    console.print(stats_table(report.stats))
    console.print()
    for line in _lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def _lines(report: Report) -> Iterator[str]:
    if report.opens is not None:
        yield f"journal: {report.opens} accepted calls that must have rows"
    if report.transcripts:
        said = ", ".join(f"{name} {count}" for name, count in sorted(report.transcripts.items()))
        yield f"harnesses' own records: {said}"
    if (drift := report.drift) is not None:
        yield escape(
            f"scored by {drift.by}: {drift.calls} calls, {drift.tokens:,} tokens; off by {drift.mean:.2g} nats on "
            f"average, {drift.p99:.2g} at the 99th percentile, {drift.max:.2g} at most"
        )
        left = ", ".join(f"{count} {reason}" for reason, count in sorted(drift.left_out.items()))
        yield from [f"not scored: {left}"] if left else []
        yield from [f"not told at their temperature: {drift.unscored_tokens:,} tokens"] * bool(drift.unscored_tokens)
    yield from (escape(f"note: {note}") for note in report.notes)
    yield from (_finding(each) for each in sorted(report.findings, key=lambda each: each.level))
    yield "[red]verdict: fail[/red]" if report.failed else "[green]verdict: ok[/green]"


def _finding(each: Finding) -> str:
    colour = "red" if each.level is Level.FAIL else "yellow"
    more = f" and {each.count - len(each.where)} more" if each.count > len(each.where) else ""
    where = f": {', '.join(each.where)}{more}" if each.where else ""
    return f"[{colour}]{each.level} {each.kind}[/{colour}]: {escape(each.text + where)}"
