"""A session's record as it changes: opened, closed, rewarded.

Pure but for the clock: a record in, a record out. Making it true by a frame is the registry's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from forge.proxy.recording.recorder import wall_us
from forge.proxy.sessions.spec import Outcome, Policy, SessionSpec
from forge.storage.errors import BadInput
from forge.storage.records import RewardStatus, Session, SessionStatus

ERROR_MAX: Final = 2000
"""Characters of an error that are kept."""


def opened(session_id: str, spec: SessionSpec, policy: Policy, run_id: str) -> Session:
    return Session(
        session_id=session_id,
        run_id=run_id,
        task_id=spec.task_id,
        group_id=spec.group_id,
        rollout_index=spec.rollout_index,
        purpose=spec.purpose,
        harness=spec.harness,
        harness_version=spec.harness_version,
        harness_config_hash=spec.harness_config_hash,
        sampling=_json(spec.sampling),
        history=spec.history,
        budgets=_json(spec.budgets),
        labels=_json(spec.labels),
        open_us=wall_us(),
        policy_version=policy.version,
        policy_lineage=policy.lineage,
        weight_digest=policy.digest,
    )


def closed(state: Session, outcome: Outcome, close_us: int) -> Session:
    if outcome.status == SessionStatus.OPEN:
        raise BadInput("a session cannot be closed with status open", "give completed, failed, timeout, ...")
    error = outcome.error[:ERROR_MAX] if outcome.error else None
    state = replace(
        state, status=outcome.status, close_us=close_us, exit_code=outcome.exit_code, error=error or state.error
    )
    if not isinstance(outcome.reward, msgspec.UnsetType):
        return rewarded(state, outcome.reward, outcome.reward_components, outcome.reward_author)
    if outcome.status != SessionStatus.COMPLETED and state.reward_status == RewardStatus.PENDING:
        return replace(state, reward_status=RewardStatus.NULL)
    return state


def rewarded(state: Session, reward: float | None, components: dict[str, float] | None, author: str | None) -> Session:
    return replace(
        state,
        reward=reward,
        reward_status=RewardStatus.NULL if reward is None else RewardStatus.GRADED,
        reward_components=_json(components),
        reward_author=author,
        reward_us=wall_us(),
    )


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
