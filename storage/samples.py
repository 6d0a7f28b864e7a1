"""Training rows from a session's calls: one per branch that ends in a trained reply.

A row is one sequence of ids that the policy saw, in which every later prompt extends what came before exactly. Mask
is 1 where the policy sampled the token *and* this row trains it: a reply shared by several branches is trained in
the first of them and is mere context in the others. Replies that may not train stand with mask 0 where a trained one
builds on them, and nowhere else. Pure; knows no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from forge.storage.recipe import DEFAULT, Recipe
from forge.storage.records import Call, CallStatus, Ids, LogProbs, Purpose, Sample, Selection, Session, Untrainable
from forge.storage.retries import discarded
from forge.storage.sample_extras import routed_experts, sampling_mask
from forge.storage.trajectory import Node, Trajectory, build

V = TypeVar("V", float, str)

UNKNOWN_VERSION: Final = -1
"""Stands in ``token_versions`` for tokens whose policy version is not known."""
LOG_PROB_SLACK: Final = 1e-4
"""How far above zero rounding may leave a log probability."""


class Excluded(NamedTuple):
    """Sampled tokens that no row trains, and why."""

    call_id: str
    choice: int
    reason: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Derivation:
    samples: list[Sample]
    excluded: list[Excluded]
    """With the rows' masks these account for every sampled token of the session."""


@dataclass(slots=True)
class _Row:
    """One branch, cut to the recipe's length."""

    turns: list[Node]
    fresh: list[Node]
    """The turns that this row trains."""
    ids: Ids
    mask: NDArray[np.int8]
    log_probs: LogProbs
    versions: NDArray[np.int64]
    """Of the masked tokens."""
    cut: bool


def samples_of(session: Session, calls: Iterable[Call], recipe: Recipe = DEFAULT) -> list[Sample]:
    """The rows of one session; the same calls in any order give the same rows."""
    return derive(session, calls, recipe).samples


def derive(session: Session, calls: Iterable[Call], recipe: Recipe = DEFAULT) -> Derivation:
    """The rows of one session, and what they leave out."""
    tree = build(calls)
    dropped = discarded(tree)
    reasons = [untrained(node.call, recipe, index in dropped) for index, node in enumerate(tree.nodes)]
    excluded = [
        Excluded(node.call.call_id, node.call.choice, reason, len(node.call.output_ids))
        for node, reason in zip(tree.nodes, reasons, strict=True)
        if reason is not None
    ]
    rows: list[_Row] = []
    trained: set[int] = set()
    for path in tree.branches(index for index, reason in enumerate(reasons) if reason is None):
        fresh = [i for i in path if reasons[i] is None and i not in trained]
        trained.update(fresh)
        row = _row(tree, path, fresh, recipe.max_tokens)
        excluded += _beyond(row, [tree.nodes[i] for i in fresh])
        if row.mask.any():
            rows.append(row)
    why = {(n.call.call_id, n.call.choice): r for n, r in zip(tree.nodes, reasons, strict=True) if r is not None}
    return Derivation(_samples(session, rows, why), excluded)


def untrained(call: Call, recipe: Recipe, dropped: bool) -> str | None:
    """Why a call's tokens get mask 0; None if they are trained. The last gate before a gradient, so it checks
    again what the decoder has said."""
    if not call.trainable:
        return call.untrainable_reason or Untrainable.STATUS
    if call.status != CallStatus.OK:
        return Untrainable.STATUS
    if call.kind not in recipe.kinds:
        return Untrainable.KIND
    if call.finish_reason == "length" and not recipe.truncated:
        return Untrainable.TRUNCATED
    if call.policy_version_start != call.policy_version_end and not recipe.straddling:
        return Untrainable.STRADDLING
    if dropped:
        return Untrainable.DISCARDED_RETRY
    if not len(call.prompt_ids):
        return Untrainable.PROMPT_IDS_MISSING
    if not len(call.output_ids):
        return Untrainable.NO_TOKENS
    if len(call.output_log_probs) != len(call.output_ids):
        return Untrainable.LENGTH_MISMATCH
    if not (np.isfinite(call.output_log_probs) & (call.output_log_probs <= LOG_PROB_SLACK)).all():
        return Untrainable.LOG_PROBS_INVALID
    return None


def _row(tree: Trajectory, path: Sequence[int], fresh: Sequence[int], max_tokens: int | None) -> _Row:
    nodes = [tree.nodes[i] for i in path]
    last = nodes[-1].call
    total = len(last.prompt_ids) + len(last.output_ids)
    limit = total if max_tokens is None else min(total, max_tokens)
    turns = [node for node in nodes if len(node.call.prompt_ids) < limit]
    # What follows the last turn's end has no token to train, only media of which we could not say if they are in.
    end = min(limit, _span(turns[-1])[1]) if turns else 0
    ids = np.concatenate((last.prompt_ids, last.output_ids))[:end]
    mask = np.zeros(total, dtype=np.int8)
    log_probs = np.full(total, np.nan, dtype=np.float32)
    versions = np.full(total, UNKNOWN_VERSION, dtype=np.int64)
    for node in (tree.nodes[i] for i in fresh):
        span = slice(*_span(node))
        mask[span] = 1
        log_probs[span] = node.call.output_log_probs
        versions[span] = _versions(node.call)
    kept = [tree.nodes[i] for i in fresh if len(tree.nodes[i].call.prompt_ids) < end]
    return _Row(turns, kept, ids, mask[:end], log_probs[:end], versions[:end][mask[:end] == 1], limit < total)


def _span(node: Node) -> tuple[int, int]:
    """Where a turn's sampled ids lie in its branch."""
    start = len(node.call.prompt_ids)
    return start, start + len(node.call.output_ids)


def _versions(call: Call) -> NDArray[np.int64]:
    """The policy version of every output token; the lower end where only a range is known."""
    first = UNKNOWN_VERSION if call.policy_version_start is None else call.policy_version_start
    versions = np.full(len(call.output_ids), first, dtype=np.int64)
    for version, start, end in msgspec.json.decode(call.version_spans or b"[]", type=list[tuple[int, int, int]]):
        versions[start:end] = version
    return versions


def _beyond(row: _Row, fresh: Sequence[Node]) -> list[Excluded]:
    """Tokens to train that the cut took away."""
    lost = [(node, _span(node)[1] - max(len(row.ids), _span(node)[0])) for node in fresh]
    return [Excluded(n.call.call_id, n.call.choice, Untrainable.TOO_LONG, count) for n, count in lost if count > 0]


def _samples(session: Session, rows: list[_Row], why: dict[tuple[str, int], str]) -> list[Sample]:
    left_out = _left_out(session)
    total = 0 if left_out else sum(int(row.mask.sum()) for row in rows)
    samples = []
    for index, row in enumerate(rows):
        sample = _sample(session, row, index, len(rows), total)
        masked = dict.fromkeys(why[key] for node in row.turns if (key := (node.call.call_id, node.call.choice)) in why)
        reason = left_out or ",".join(masked) or None
        samples.append(replace(sample, trainable=left_out is None, untrainable_reason=reason))
    return samples


def _left_out(session: Session) -> Untrainable | None:
    """Why no row of the session trains, whatever it holds."""
    if session.purpose == Purpose.EVAL:
        return Untrainable.EVAL
    return Untrainable.NOT_SELECTED if session.selection == Selection.NOT_SELECTED else None


def _sample(session: Session, row: _Row, index: int, count: int, total: int) -> Sample:
    start = len(row.turns[0].call.prompt_ids)
    last = row.turns[-1].call
    spans = [_span(node) for node in row.turns]
    known = [v for v in _bounds(row) if v is not None]
    cause = next((n.placement.join_cause for n in [*row.fresh, row.turns[0]] if n.placement.join_cause), None)
    assert cause is not None, "the first turn of a row has a prompt and no exact parent"
    return Sample(
        sample_id=f"{session.session_id}-{index}",
        run_id=session.run_id,
        session_id=session.session_id,
        task_id=session.task_id,
        group_id=session.group_id,
        rollout_index=session.rollout_index,
        row_index=index,
        row_count=count,
        prompt_ids=row.ids[:start],
        response_ids=row.ids[start:],
        response_mask=row.mask[start:],
        rollout_log_probs=row.log_probs[start:],
        turn_starts=[s - start for s, _ in spans],
        turn_ends=[min(e, len(row.ids)) - start for _, e in spans],
        turn_call_ids=[node.call.call_id for node in row.turns],
        policy_version_min=min(known, default=None),
        policy_version_max=max(known, default=None),
        token_versions=_runs(row.versions),
        routed_experts=routed_experts(last, len(row.ids)),
        sampling_mask=sampling_mask([(_span(node)[0] - start, node.call) for node in row.fresh], len(row.ids) - start),
        temperature=_common([_temperature(node.call) for node in row.fresh]),
        logprobs_mode=_common([node.call.logprobs_mode for node in row.fresh]),
        media=last.media,
        session_trainable_tokens=total,
        reward=session.reward,
        reward_components=session.reward_components,
        reward_status=session.reward_status,
        finish_reason=last.finish_reason,
        truncated=row.cut or any(node.call.finish_reason == "length" for node in row.turns),
        kinds=list(dict.fromkeys(node.call.kind for node in row.turns)),
        join_cause=cause,
        messages=_with_reply(last),
        tools=last.tools,
    )


def _bounds(row: _Row) -> list[int | None]:
    """The versions a row's trained tokens may have: a call that straddled an update without spans counts both."""
    bounds: list[int | None] = [int(v) for v in np.unique(row.versions) if v != UNKNOWN_VERSION]
    return bounds + [node.call.policy_version_end for node in row.fresh if not node.call.version_spans]


def _runs(versions: NDArray[np.int64]) -> list[int]:
    edges = np.flatnonzero(np.diff(versions)) + 1
    return [n for run in np.split(versions, edges) for n in (int(run[0]), len(run))]


def _temperature(call: Call) -> float | None:
    """None also for what no float holds: an engine may take ``1e999``, and a call must not stop the decoder."""
    sampling = msgspec.json.decode(call.sampling_sent or b"{}", type=dict[str, msgspec.Raw])
    try:
        return msgspec.json.decode(sampling["temperature"], type=float | None)
    except (KeyError, msgspec.DecodeError):
        return None


def _common(values: Sequence[V | None]) -> V | None:
    return values[0] if len(set(values)) == 1 else None


def _with_reply(call: Call) -> str:
    """By text: a harness that cuts an emoji in half sends messages that no decoder of ours takes apart."""
    if not call.response:
        return call.messages
    before = call.messages.rstrip().removesuffix("]").rstrip()
    return f"{before}{'' if before == '[' else ','}{call.response}]"
