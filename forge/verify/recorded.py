"""The checks that need no model: calls by themselves, calls against their sessions, training rows against calls.

Pure but for reading the dataset. What ``forge train`` runs before it learns from a run; linear in its tokens.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from forge.storage.dataset import Dataset
from forge.storage.dataset_calls import BrokenDataset
from forge.storage.recipe import DEFAULT
from forge.storage.records import CallStatus, RewardStatus, Sample, Session, Untrainable
from forge.storage.retries import discarded
from forge.storage.rows import samples
from forge.storage.trajectory import build
from forge.verify.facts import Facts, digest
from forge.verify.report import Finding, Kind, Level, finding

ZEROS_MIN: Final = 16
"""Log probs of exactly 0 in a row that are worth a warning: a confident model has short stretches of them."""
CLOCK_SLACK_US: Final = 5_000_000
"""A wall clock may be set while a session runs."""
LOST: Final = frozenset(
    {
        Untrainable.PROMPT_IDS_MISSING,
        Untrainable.OUTPUT_IDS_MISSING,
        Untrainable.LOG_PROBS_MISSING,
        Untrainable.LENGTH_MISMATCH,
        Untrainable.LOG_PROBS_INVALID,
    }
)


def check_calls(calls: Sequence[Facts]) -> list[Finding]:
    """Each call by itself."""
    trainable = [call for call in calls if call.trainable]
    rows = Counter((call.call_id, call.choice) for call in calls)
    lost = [call for call in calls if call.status == CallStatus.OK and call.untrainable_reason in LOST]
    reasons = ", ".join(f"{n} {why}" for why, n in Counter(str(c.untrainable_reason) for c in lost).most_common())
    return [
        *finding(Kind.TWICE, "a call has several rows for one choice", [i for (i, _), n in rows.items() if n > 1]),
        *finding(
            Kind.LENGTHS,
            "ids, log probs and the engine's own counts disagree",
            [call.call_id for call in trainable if not _lengths_agree(call)],
        ),
        *finding(
            Kind.LOG_PROBS,
            "log probs are missing, not finite or above zero",
            [call.call_id for call in trainable if call.unsound],
        ),
        *finding(
            Kind.PADDED,
            "all log probs are exactly 0: nothing scored these tokens",
            [call.call_id for call in trainable if ZEROS_MIN <= call.zeros == call.output_len],
        ),
        *finding(
            Kind.PADDED,
            f"{ZEROS_MIN} log probs in a row are exactly 0; score them with --policy or --model",
            [call.call_id for call in trainable if ZEROS_MIN <= call.zeros < call.output_len],
            Level.WARN,
        ),
        *finding(
            Kind.LOST,
            f"calls went well and cannot train, {reasons}: see what the policy server gives with forge doctor",
            [call.call_id for call in lost],
            Level.WARN,
        ),
    ]


def _lengths_agree(call: Facts) -> bool:
    # The placeholders of images are expanded after the engine has counted, in some versions.
    prompt = call.prompt_tokens in (None, call.prompt_len) or call.media is not None
    output = call.output_len == call.log_probs_len and call.completion_tokens in (None, call.output_len)
    return prompt and output and call.prompt_len > 0 and call.output_len > 0


def check_homes(calls: Sequence[Facts], sessions: Mapping[str, Session]) -> list[Finding]:
    homeless = dict.fromkeys(call.session_id for call in calls if call.session_id not in sessions)
    return finding(Kind.SESSION, "sessions have calls and no row", list(homeless))


def check_sessions(calls: Sequence[Facts], sessions: Mapping[str, Session]) -> list[Finding]:
    """Calls against the session they stand under."""
    strange = []
    for call in calls:
        session = sessions.get(call.session_id)
        if session is not None and call.status != CallStatus.LATE and not _during(call, session):
            strange.append(call.call_id)
    return finding(Kind.SESSION, "calls stand under a session that was not open when they were made", strange)


def _during(call: Facts, session: Session) -> bool:
    end = session.close_us
    return session.open_us - CLOCK_SLACK_US <= call.start_us and (end is None or call.start_us <= end + CLOCK_SLACK_US)


def check_rows(tables: Iterable[pa.Table], calls: Sequence[Facts]) -> tuple[list[Finding], set[str]]:
    """Training rows against the calls they name: same session, same context, same ids and log probs, trained once.
    Also gives the calls that are in a row."""
    known: dict[str, list[Facts]] = defaultdict(list)
    for call in calls:
        known[call.call_id].append(call)
    swapped: list[str] = []
    wrong: list[str] = []
    trained: Counter[str] = Counter()
    seen: set[str] = set()
    for sample in (sample for table in tables for sample in samples(table)):
        if any(call.session_id != sample.session_id for i in sample.turn_call_ids for call in known[i]):
            swapped.append(sample.sample_id)
        elif not _made_of(sample, known, trained):
            wrong.append(sample.sample_id)
        seen.update(sample.turn_call_ids)
    twice = [i for i, tokens in trained.items() if tokens > sum(call.output_len for call in known[i])]
    findings = [
        *finding(Kind.SESSION, "training rows hold calls of another session", swapped),
        *finding(Kind.ROWS, "training rows are not what their calls recorded: forge decode --rebuild", wrong),
        *finding(Kind.ROWS, "calls are trained by more than one row", twice),
    ]
    return findings, seen


def _made_of(sample: Sample, known: Mapping[str, list[Facts]], trained: Counter[str]) -> bool:
    ids = np.concatenate((sample.prompt_ids, sample.response_ids))
    front = len(sample.prompt_ids)
    context, hashed, masked = hashlib.blake2b(digest_size=16), 0, 0
    for call_id, start, end in zip(sample.turn_call_ids, sample.turn_starts, sample.turn_ends, strict=True):
        mask = sample.response_mask[start:end] == 1
        context.update(np.ascontiguousarray(ids[hashed : front + start], dtype="<i4").tobytes())
        hashed = front + start
        given = sample.rollout_log_probs[start:end]
        if not any(
            call.prompt_hash == context.hexdigest()
            and _output_is(call, sample.response_ids[start:end], given, bool(mask.any()))
            for call in known[call_id]
        ):
            return False
        trained[call_id] += int(mask.sum())
        masked += int(mask.sum())
    sound = np.isfinite(sample.rollout_log_probs[sample.response_mask == 1])
    return masked == int((sample.response_mask == 1).sum()) and bool(sound.all())


def _output_is(call: Facts, ids: np.ndarray, log_probs: np.ndarray, trains: bool) -> bool:
    if len(ids) != call.output_len or not trains:
        return len(ids) <= call.output_len  # cut short, or mere context, whose log probs are left out
    return call.digest == digest(ids, log_probs)


def is_done(session: Session) -> bool:
    """Its training rows are written."""
    return session.close_us is not None and session.reward_status != RewardStatus.PENDING


def check_untrained(dataset: Dataset, run_id: str, calls: Sequence[Facts], seen: set[str]) -> list[Finding]:
    """Calls of sessions that are done and in no row; a retry that the harness dropped is left out on purpose."""
    missing = [c for c in calls if c.trainable and c.kind in DEFAULT.kinds and c.call_id not in seen]
    found: list[str] = []
    for session_id in dict.fromkeys(call.session_id for call in missing):
        dropped: set[str] = set()
        with suppress(BrokenDataset):  # said elsewhere: its prompts cannot be rebuilt
            tree = build(dataset.calls(run_id, session_id))
            dropped = {tree.nodes[index].call.call_id for index in discarded(tree)}
        found += [c.call_id for c in missing if c.session_id == session_id and c.call_id not in dropped]
    text = "trainable calls are in no training row, for no reason that is known"
    return finding(Kind.UNTRAINED, text, found, Level.WARN)
