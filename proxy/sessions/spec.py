"""What others say of a session: its opening, its budgets, its end, its reward. The bodies of the control routes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from forge.storage.records import Purpose, Selection, SessionStatus

Label = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00]*$")]
"""What fits a column of the catalog."""
Short = Annotated[str, Meta(max_length=64, pattern=r"^[^\x00]*$")]
Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""What fits a column of the dataset: a larger number would be in the journal, and stop the decoder there."""


class HistoryMode(StrEnum):
    """What a session's engine gets of a history."""

    AS_SENT = "as-sent"
    """What the harness sent."""
    KEEP_REASONING = "keep-reasoning"
    """The thinking that the harness dropped too, and a template that keeps it."""


class Budgets(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of one session; reached, its harness gets a clean stop."""

    calls: int | None = None
    output_tokens: int | None = None
    context: int | None = None
    """Prompt and output of one call, in tokens."""
    seconds: float | None = None


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an opener says of a session."""

    run_id: str | None = None
    task_id: Label | None = None
    group_id: Label | None = None
    rollout_index: Int32 | None = None
    purpose: Purpose = Purpose.TRAIN
    harness: Short | None = None
    harness_version: Label | None = None
    harness_config_hash: str | None = None
    sampling: dict[str, Any] | None = None
    history: HistoryMode | None = None
    """None: the proxy's own."""
    budgets: Budgets | None = None
    labels: dict[str, Any] | None = None
    idempotency_key: str | None = None
    """The same key gives the same session, also after a restart."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a session ended. Without ``reward`` it stays pending for a completed session, and is null for any other;
    ``reward: null`` declares that there is none."""

    status: SessionStatus = SessionStatus.COMPLETED
    reward: float | msgspec.UnsetType | None = msgspec.UNSET
    reward_components: dict[str, float] | None = None
    reward_author: str | None = None
    exit_code: Int32 | None = None
    error: str | None = None
    grace: float = 5.0
    """Seconds that running calls may still take."""


class Reward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reward: float | None
    reward_components: dict[str, float] | None = None
    reward_author: str | None = None


class Select(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a closed session was chosen for its group; ``null`` takes a ``not_selected`` back."""

    selection: Selection | None


class Policy(NamedTuple):
    """The policy as a session finds it."""

    version: int | None = None
    lineage: str | None = None
    digest: str | None = None
    adapter: str | None = None
    """The model that calls name, where it is an adapter beside the base weights."""
