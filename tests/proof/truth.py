"""What must hold of any session, found by brute force from its calls alone, and held against tree and rows."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from forge.storage.records import Call, Sample, Session, Untrainable
from forge.storage.samples import Derivation, derive
from forge.storage.trajectory import EXACT, Trajectory, build
from tests.proof.adversary import Adversary

SESSION = Session(session_id="s", run_id="r", reward=1.0, reward_status="graded")


def whole(call: Call) -> NDArray[np.int32]:
    return np.concatenate((call.prompt_ids, call.output_ids))


def check(played: Adversary) -> Counter[str]:
    """Raises ``AssertionError``; gives counts of what was seen."""
    calls = played.calls
    tree, done = build(calls), derive(SESSION, calls)
    seen = Counter(node.placement.join_cause or EXACT for node in tree.nodes)
    _tree_is_true(tree)
    _causes_are_true(tree, played)
    _rows_are_true(calls, done)
    _uses_are_true(played, done)
    shuffled = calls[:]
    played.rng.shuffle(shuffled)
    again = derive(SESSION, shuffled)
    assert repr(again.samples) == repr(done.samples), "another order of calls gives other rows"
    assert again.excluded == done.excluded
    seen["calls"], seen["rows"] = len(calls), len(done.samples)
    seen["trained tokens"] = sum(int(row.response_mask.sum()) for row in done.samples)
    seen["excluded tokens"] = sum(each.tokens for each in done.excluded)
    return seen


def _tree_is_true(tree: Trajectory) -> None:
    """Each call's exact parent is the longest earlier call that its prompt extends, ids, media and model alike."""
    earlier: list[tuple[bytes, Call]] = []
    for node in tree.nodes:
        prompt = node.call.prompt_ids.tobytes()
        lengths = [len(ids) // 4 for ids, call in earlier if prompt.startswith(ids) and _alike(call, node.call)]
        if lengths:
            assert node.placement.join == EXACT, f"{node.call.call_id} extends an earlier call, and is not said to"
            assert node.placement.prefix_len == max(lengths)
            parent = next(
                call
                for ids, call in earlier
                if (call.call_id, call.choice) == (node.placement.parent_call_id, node.placement.parent_choice)
            )
            assert prompt.startswith(whole(parent).tobytes())
            assert _alike(parent, node.call)
        else:
            assert node.placement.join != EXACT, f"{node.call.call_id} extends nothing, and is said to"
        if len(node.call.prompt_ids) and len(node.call.output_ids):
            earlier.append((whole(node.call).tobytes(), node.call))


def _alike(parent: Call, child: Call) -> bool:
    before, now = ([m["sha256"] for m in json.loads(call.media or "[]")] for call in (parent, child))
    return parent.model_served == child.model_served and now[: len(before)] == before


def _causes_are_true(tree: Trajectory, played: Adversary) -> None:
    for node in tree.nodes:
        right = played.truth.causes.get(node.call.call_id)
        if right is not None and node.call.choice == 0:
            cause = node.placement.join_cause
            assert cause in right, f"{node.call.call_id}: {cause} is said of what can only be {sorted(map(str, right))}"


def _rows_are_true(calls: list[Call], done: Derivation) -> None:
    by_id: dict[str, list[Call]] = {}
    for call in calls:
        by_id.setdefault(call.call_id, []).append(call)
    trained: Counter[tuple[str, int]] = Counter()
    for row in done.samples:
        _row_is_true(row, by_id, trained)
    full = {(call.call_id, call.choice): len(call.output_ids) for call in calls}
    for key, tokens in trained.items():
        assert tokens == full[key], "a reply is trained twice, or in part"
    excluded = sum(each.tokens for each in done.excluded)
    sampled = sum(full.values())
    assert sum(trained.values()) + excluded == sampled, "tokens are lost, or counted twice"
    assert {row.session_trainable_tokens for row in done.samples} <= {sum(trained.values())}


def _row_is_true(row: Sample, by_id: dict[str, list[Call]], trained: Counter[tuple[str, int]]) -> None:
    ids = np.concatenate((row.prompt_ids, row.response_ids))
    unmasked = row.response_mask.astype(bool).copy()
    assert len(row.response_ids) == len(row.response_mask) == len(row.rollout_log_probs)
    for start, end, call_id in zip(row.turn_starts, row.turn_ends, row.turn_call_ids, strict=True):
        at, until = len(row.prompt_ids) + start, len(row.prompt_ids) + end
        sources = [
            call for call in by_id[call_id] if len(call.prompt_ids) == at and np.array_equal(whole(call), ids[:until])
        ]
        assert sources, f"{call_id}: sampled ids stand under a context that the model did not see"
        mask = row.response_mask[start:end]
        assert mask.all() or not mask.any()
        if mask.any():
            # Two choices of a call may have the same ids: the row's is the one with its log probabilities.
            given = row.rollout_log_probs[start:end]
            source = next((call for call in sources if np.array_equal(given, call.output_log_probs)), None)
            assert source is not None, f"{call_id}: log probabilities of no such reply"
            assert source.trainable
            trained[source.call_id, source.choice] += end - start
        unmasked[start:end] = False
    assert not unmasked.any(), "a token that nobody sampled is trained"
    assert np.isnan(row.rollout_log_probs[row.response_mask == 0]).all(), "a log probability was invented"


def _uses_are_true(played: Adversary, done: Derivation) -> None:
    """No reply that the harness built on is taken for a discarded retry, but where the template wrote another reply to
    the same prompt into the next one, id for id: two that differ in what it leaves out, or not at all."""
    used = {(played.calls[n].call_id, played.calls[n].choice): n for n in played.truth.used}
    prompts = [call.prompt_ids.tobytes() for call in played.calls]
    for each in done.excluded:
        number = used.get((each.call_id, each.choice))
        if number is None or each.reason != Untrainable.DISCARDED_RETRY:
            continue
        siblings = [call for n, call in enumerate(played.calls) if n != number and prompts[n] == prompts[number]]
        written = [s for s in siblings if any(later.startswith(whole(s).tobytes()) for later in prompts)]
        assert written, f"{each.call_id} was used, and is thrown away"
