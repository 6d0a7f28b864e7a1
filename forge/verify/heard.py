"""The harness's own record against the dataset, session by session.

Owns which of the two to trust where: the transcript that ``forge run`` kept is read again if its harness is known,
because rows may have changed since; else the verdict of that day counts.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.adapters.harnesses import HARNESSES
from forge.storage.records import Call, Session, SessionStatus
from forge.transcripts import Kind as Differs
from forge.transcripts import Verdict, compare
from forge.verify.report import Finding, Kind, Level, finding

log = logging.getLogger(__name__)

VERDICT: Final = "transcript.json"
RECORDS: Final = "transcript"
TEXTS: Final[Mapping[str, str]] = {
    Differs.UNRECORDED: "harnesses tell of calls that have no row",
    Differs.TOKENS: "harnesses count other tokens than their rows hold",
    Differs.UNHEARD: "harnesses do not tell of calls that have a row",
}


class _Difference(msgspec.Struct):
    kind: str
    text: str


class _Kept(msgspec.Struct):
    verdict: str
    differences: list[_Difference] = []


def check_heard(
    data: Path, run_id: str, sessions: Mapping[str, Session], calls: Mapping[str, list[Call]] | None
) -> tuple[list[Finding], dict[str, int]]:
    """Findings, and sessions by verdict. ``calls``: by session; None takes the verdicts as they were kept."""
    told: Counter[str] = Counter()
    where: dict[str, list[str]] = defaultdict(list)
    for session in sessions.values():
        kept = _kept(
            data / "harness" / run_id / session.session_id,
            session,
            None if calls is None else calls.get(session.session_id, []),
        )
        if kept is None:
            continue
        told[kept.verdict] += 1
        if kept.verdict == Verdict.DIFFERS:
            for kind in dict.fromkeys(each.kind for each in kept.differences):
                first = next(each.text for each in kept.differences if each.kind == kind)
                where[kind].append(f"{session.session_id} ({first})")
    findings = [
        each
        for kind, text in TEXTS.items()
        for each in finding(Kind.TRANSCRIPT, text, where[kind], Level.WARN if kind == Differs.UNHEARD else Level.FAIL)
    ]
    return findings, dict(told)


def _kept(folder: Path, session: Session, calls: Iterable[Call] | None) -> _Kept | None:
    adapter = HARNESSES.get(session.harness or "")
    if calls is not None and adapter is not None and (folder / RECORDS).is_dir():
        try:
            ended = session.status in (SessionStatus.COMPLETED, SessionStatus.FAILED)
            found: Mapping[str, Any] = compare(adapter.transcript(folder / RECORDS), list(calls), ended=ended).told()
        except Exception:  # noqa: BLE001 - a model could write into these files
            log.warning("transcript cannot be read: %s", folder / RECORDS)
        else:
            return msgspec.convert(found, _Kept)
    try:
        return msgspec.json.decode((folder / VERDICT).read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
