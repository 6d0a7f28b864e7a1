"""The audit of one run: the checks that need no model, and those that do, in one report.

Owns their order and what each may read. ``recorded`` alone reads no prompt and no journal: it is what ``forge train``
asks before it learns. Not obvious: the whole calls are read once, one after the other, whatever is made of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forge.run_stats import run_stats
from forge.storage.dataset import Dataset
from forge.storage.dataset_calls import BrokenDataset
from forge.storage.recipe import DEFAULT
from forge.storage.records import Call, CallStatus, Session, empty_log_probs
from forge.verify import text
from forge.verify.accepted import accepted, check_accepted
from forge.verify.drift import examine
from forge.verify.facts import Facts, facts_of
from forge.verify.heard import check_heard
from forge.verify.media import check_media
from forge.verify.recorded import check_calls, check_homes, check_rows, check_sessions, check_untrained, is_done
from forge.verify.report import Finding, Kind, Report, Thresholds, finding
from forge.verify.scores import Scored, Scorer, choose, temperature_of
from forge.verify.server_scorer import Refused


def recorded(dataset: Dataset, run_id: str, recipe: str = DEFAULT.name) -> Report:
    """Without a model, a prompt or the journal: linear in what is sampled and trained. Raises ``BadInput`` if there is
    no such run."""
    report, calls, sessions, _ = _begin(dataset, run_id, recipe, Thresholds())
    findings, report.transcripts = check_heard(dataset.data, run_id, sessions, None)
    report.findings += findings
    return _end(report, dataset, calls)


async def audit(dataset: Dataset, run_id: str, scorer: Scorer | None, *, size: int, limits: Thresholds) -> Report:
    """Everything. ``size``: calls to score."""
    journal = accepted(dataset.data, run_id)
    report, facts, sessions, seen = _begin(dataset, run_id, DEFAULT.name, limits)
    done = {i for i, row in sessions.items() if is_done(journal.states.get(i, row))}
    settled = [call for call in facts if journal.settled(call)]
    report.findings += check_homes(settled, sessions)
    report.findings += check_untrained(dataset, run_id, [c for c in settled if c.session_id in done], seen)
    report.findings += check_accepted(journal, facts, sessions)
    report.findings += check_media(dataset, run_id)
    report.opens = len(journal.sessions)
    report.notes += journal.notes
    if journal.pending:
        report.notes.append(f"{len(journal.pending)} accepted calls are not decoded yet: they are not in this report")
    if not journal.whole and not journal.notes:
        report.notes.append("the journal's first segments are gone: gaps before them cannot be told")
    chosen, left_out = choose(facts, scorer.serves, size) if scorer is not None else (set(), {})
    reading = await _read(dataset, run_id, chosen, scorer)
    report.findings += reading.findings
    findings, report.transcripts = check_heard(dataset.data, run_id, sessions, reading.by_session)
    report.findings += findings
    if scorer is None:
        report.notes.append("nothing was scored again: name a scorer with --policy URL or --model DIRECTORY")
    else:
        await _score(report, scorer, reading.chosen, dict(left_out))
    return _end(report, dataset, facts)


def _begin(
    dataset: Dataset, run_id: str, recipe: str, limits: Thresholds
) -> tuple[Report, list[Facts], dict[str, Session], set[str]]:
    """Also the calls that are in a training row. The run may be growing: rows are listed before the calls that they
    are made of, and calls before their sessions."""
    report = Report(run_id, run_stats(dataset, run_id), limits)
    rows = dataset.sample_tables(run_id, recipe)
    calls = list(facts_of(dataset, run_id))
    sessions = {session.session_id: session for session in dataset.sessions(run_id)}
    report.findings += check_calls(calls)
    report.findings += check_sessions(calls, sessions)
    findings, seen = check_rows(rows, calls)
    report.findings += findings
    return report, calls, sessions, seen


def _end(report: Report, dataset: Dataset, calls: Sequence[Facts]) -> Report:
    damaged = list(dict.fromkeys(each.told() for each in dataset.damaged))
    said = "files cannot be read, and what they hold is not looked at: forge decode --rebuild; move foreign files out"
    report.findings = [
        *finding(Kind.UNREADABLE, said, damaged),
        *report.findings,
    ]
    if report.stats.rows and not calls:
        report.findings.append(Finding(Kind.GAP, "the run has no calls: there is nothing to prove its rows by"))
    return report


@dataclass(slots=True)
class _Reading:
    """What one pass over the whole calls leaves."""

    findings: list[Finding] = field(default_factory=list)
    chosen: list[Call] = field(default_factory=list)
    by_session: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """Every call, with as many ids as it had, all 0: what is counted of it."""


async def _read(dataset: Dataset, run_id: str, chosen: set[tuple[str, int]], scorer: Scorer | None) -> _Reading:
    reading = _Reading()
    unsaid: list[str] = []
    try:
        for call in dataset.calls(run_id):
            if (call.call_id, call.choice) in chosen:
                reading.chosen.append(call)
            if scorer is not None and call.status == CallStatus.OK and len(call.output_ids) and call.response:
                decoded = await scorer.text(call.output_ids.tolist())
                lost = text.missing(call, decoded) if decoded is not None else None
                unsaid += [f"{call.call_id} ({lost})"] if lost else []
            reading.by_session[call.session_id].append(_counted(call))
    except BrokenDataset as error:
        reading.findings.append(Finding(Kind.PROMPT, f"{error.message}; {error.hint}"))
    reading.findings += finding(Kind.TEXT, "answers say what is not among their ids", unsaid)
    return reading


def _counted(call: Call) -> Call:
    nothing: dict[str, Any] = {"messages": "[]", "tools": None, "response": None, "request_raw": None}
    return replace(
        call,
        prompt_ids=np.broadcast_to(np.int32(0), len(call.prompt_ids)),
        output_ids=np.broadcast_to(np.int32(0), len(call.output_ids)),
        output_log_probs=empty_log_probs(),
        **nothing,
    )


async def _score(report: Report, scorer: Scorer, calls: Sequence[Call], left_out: dict[str, int]) -> None:
    scored = []
    for call in calls:
        temperature = temperature_of(call)
        try:
            scored.append(Scored(call, temperature, await scorer.score(call, temperature)))
        except Refused:
            left_out["refused by the server"] = left_out.get("refused by the server", 0) + 1
    if scorer.serves.version is None and scorer.serves.digest is None:
        report.notes.append(f"{scorer.serves.name} names no version: it is taken to serve the run's last one")
    report.drift, findings = examine(scored, report.thresholds, scorer.serves.name, left_out)
    report.findings += findings
    if not report.drift.tokens:
        report.notes.append(f"no token could be scored by {scorer.serves.name}")
