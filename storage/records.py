"""The records that travel along the straight line: ``Call``, ``Session``, ``Sample``.

Owns the field names and the enumerations of states and reasons; knows no file format (``columns.py`` does)
and no HTTP. Token arrays are numpy ``int32``, log probabilities numpy ``float32``. In memory a missing log
probability is NaN; in Parquet and JSON it is null. It is never 0.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
"""Token ids, shape [T]."""
LogProbs = NDArray[np.float32]
"""Natural-log probabilities of the sampled tokens, shape [T]; NaN where the engine gave none."""


def empty_ids() -> Ids:
    return np.empty(0, dtype=np.int32)


def empty_log_probs() -> LogProbs:
    return np.empty(0, dtype=np.float32)


class CallStatus(StrEnum):
    """How a call ended. Every accepted call ends in exactly one of these."""

    OK = "ok"
    """The engine ended the generation and said so."""
    ERROR = "error"
    """The engine refused or failed; nothing was generated that a harness could act on."""
    TRUNCATED = "truncated"
    """The engine's answer broke off without its end mark."""
    ABORTED = "aborted"
    """The client left, or the engine aborted the generation (a weight update)."""
    INTERRUPTED = "interrupted"
    """The proxy died while the call ran; written at the next start."""
    LATE = "late"
    """It came after its session was closed; refused with 409."""


class SessionStatus(StrEnum):
    """How a session ended. An exit code of 0 is no verdict, so only the runner's findings are here."""

    OPEN = "open"
    COMPLETED = "completed"
    """The harness ended by itself and made at least one ok call."""
    FAILED = "failed"
    """The harness ended by itself with a non-zero exit code."""
    TIMEOUT = "timeout"
    """Its time limit ended it."""
    POLICY_DOWN = "policy_down"
    """No call could be served: the policy could not be reached."""
    NO_CALLS = "no_calls"
    """The harness ended without one recorded call."""
    LAUNCH_FAILED = "launch_failed"
    """The harness could not be started."""
    INTERRUPTED = "interrupted"
    """The run or the proxy ended before the session did."""


class RewardStatus(StrEnum):
    GRADED = "graded"
    NULL = "null"
    """No reward, for a stated reason (infrastructure, crash, timeout): the session leaves its group."""
    PENDING = "pending"


class Selection(StrEnum):
    """What became of a session that was drawn for a group."""

    NOT_SELECTED = "not_selected"
    """Others make its group: its reward counts in the task's pass rate, its tokens are not trained."""


class Purpose(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class CallKind(StrEnum):
    MAIN = "main"
    SUBAGENT = "subagent"
    COMPACTION = "compaction"
    TITLE = "title"
    MEMORY = "memory"


class JoinCause(StrEnum):
    """Why a call is not the exact continuation of an earlier one."""

    ROOT = "root"
    RETOKENIZED = "retokenized"
    """The history has the same text but other ids."""
    THINKING_STRIPPED = "thinking_stripped"
    EDITED = "edited"
    COMPACTED = "compacted"


class VersionSource(StrEnum):
    """Where a call's policy version comes from, strongest first."""

    ENGINE_SPANS = "engine_spans"
    ENGINE_ANSWER = "engine_answer"
    REPLICA_STATE = "replica_state"
    UNKNOWN = "unknown"


class Untrainable(StrEnum):
    """Why the tokens of a call, or a sample made of them, may not reach a gradient."""

    STATUS = "status"
    """The call did not end ``ok``."""
    PROMPT_IDS_MISSING = "prompt_ids_missing"
    OUTPUT_IDS_MISSING = "output_ids_missing"
    LOG_PROBS_MISSING = "log_probs_missing"
    LENGTH_MISMATCH = "length_mismatch"
    """Ids, log probs and the engine's own usage count disagree."""
    LOG_PROBS_INVALID = "log_probs_invalid"
    """A log prob is not finite or above zero."""
    TEXT_MISMATCH = "text_mismatch"
    """The texts of the sampled tokens are not the text that the engine gave."""
    CONSTRAINED = "constrained"
    """Truncation (top_p, top_k, min_p), a grammar, a bias or penalties shaped the distribution."""
    VERSION_UNKNOWN = "version_unknown"
    KIND = "kind"
    """The recipe does not train this kind of call."""
    EVAL = "eval"
    NOT_SELECTED = "not_selected"
    """Its session was drawn for a group and not chosen."""
    DISCARDED_RETRY = "discarded_retry"
    NO_TOKENS = "no_tokens"
    TOO_LONG = "too_long"
    """Beyond the longest row that the recipe allows."""
    TRUNCATED = "truncated"
    """The recipe does not train turns that a length limit ended."""
    STRADDLING = "straddling"
    """The recipe does not train turns that were sampled while the weights changed."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One model exchange and one of its choices, with its whole prompt. See ``columns.CALLS`` for every field. Nobody
    changes one; it is not frozen because that doubles the time of making one, and the decoder makes each twice."""

    call_id: str
    run_id: str
    session_id: str
    seq: int
    choice: int = 0
    retry_of: str | None = None

    parent_call_id: str | None = None
    parent_choice: int | None = None
    join: str = "none"
    join_cause: str | None = JoinCause.ROOT

    harness: str | None = None
    harness_version: str | None = None
    dialect: str = "chat"
    engine: str = "vllm"
    replica: str = ""
    agent_id: str | None = None
    kind: str = CallKind.MAIN
    kind_rule: str = "default"

    messages: str = "[]"
    """JSON array of the chat messages the engine was given, with references to media (``MediaStore.whole``)."""
    tools: str | None = None
    """JSON array of the tools the engine was given."""
    response: str | None = None
    """JSON object: the assistant message the engine gave, chat form."""
    request_raw: bytes | None = None
    """The harness's own request body where its dialect is not chat, with references too."""
    finish_reason: str | None = None
    model_requested: str | None = None
    model_served: str | None = None

    prompt_ids: Ids = field(default_factory=empty_ids)
    output_ids: Ids = field(default_factory=empty_ids)
    output_log_probs: LogProbs = field(default_factory=empty_log_probs)
    prompt_log_probs: LogProbs = field(default_factory=empty_log_probs)
    """Of the whole prompt's ids, NaN where the engine gave none; empty where nobody asked."""
    top_logprobs: str | None = None
    routed_experts: bytes | None = None
    """A ``.npy`` file: [ids of prompt and output less one, layers, experts]."""
    sampling_mask: bytes | None = None
    """JSON array: for each output id the ids that a truncation kept."""
    media: str | None = None
    """JSON array of the prompt's media, in order (``media_list.Medium``)."""
    prompt_tokens: int | None = None
    """The engine's own count (usage)."""
    completion_tokens: int | None = None
    """The engine's own count (usage)."""

    sampling_asked: str | None = None
    """JSON object: the sampling keys as the harness sent them."""
    sampling_sent: str | None = None
    """JSON object: the sampling keys as the engine got them."""
    sampling_defaults: str | None = None
    """JSON object: what the policy server takes for the keys that it is not sent, as the probe found."""
    edits: str | None = None
    """JSON array: the recorded edits made to the request (sampling, max_tokens, model, dropped tools...)."""
    logprobs_mode: str | None = None
    template_hash: str | None = None
    tokenizer_hash: str | None = None

    start_us: int = 0
    """Wall clock at open, microseconds since the epoch."""
    first_byte_us: int | None = None
    """Microseconds from open to the engine's first body byte (monotonic clock)."""
    end_us: int | None = None
    """Microseconds from open to close (monotonic clock)."""

    status: str = CallStatus.OK
    http_status: int | None = None
    error: str | None = None
    delivered: int = 0
    """Body bytes handed to the client's socket."""
    delivered_sha256: str | None = None
    attempts: str | None = None
    """JSON array of the attempts at engines, when there was more than one."""

    policy_version_start: int | None = None
    policy_version_end: int | None = None
    version_spans: str | None = None
    version_source: str = VersionSource.UNKNOWN
    weight_digest: str | None = None
    policy_lineage: str | None = None

    trainable: bool = False
    untrainable_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One attempt of one harness at one task; one row per revision. See ``columns.SESSIONS``."""

    session_id: str
    run_id: str
    revision: int = 0
    task_id: str | None = None
    group_id: str | None = None
    rollout_index: int | None = None
    purpose: str = Purpose.TRAIN
    implicit: bool = False
    """True when nobody opened it: a client without a key of ours began to call."""
    harness: str | None = None
    harness_version: str | None = None
    harness_config_hash: str | None = None
    """Of the configuration it was started with, less what differs by session."""
    status: str = SessionStatus.OPEN
    error: str | None = None
    exit_code: int | None = None
    reward: float | None = None
    reward_status: str = RewardStatus.PENDING
    reward_components: str | None = None
    """JSON object: component name to number."""
    reward_author: str | None = None
    reward_us: int | None = None
    """When the reward was set, microseconds since the epoch."""
    selection: str | None = None
    """``not_selected``, or None: nobody chose among the sessions of its group, or it is one of the chosen."""
    sampling: str | None = None
    history: str | None = None
    """``as-sent`` or ``keep-reasoning``, where its opener said so."""
    budgets: str | None = None
    labels: str | None = None
    open_us: int = 0
    close_us: int | None = None
    policy_version: int | None = None
    """The policy version when it was opened."""
    policy_lineage: str | None = None
    weight_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training row: a maximal exact sequence of a session. See ``columns.SAMPLES``.

    ``response_ids``, ``response_mask`` and ``rollout_log_probs`` are aligned, shape [R]. Mask is 1 exactly where
    the policy sampled the token and its turn is trained by this row; log probs are NaN where mask is 0.
    """

    sample_id: str
    run_id: str
    session_id: str
    task_id: str | None
    group_id: str | None
    rollout_index: int | None
    row_index: int
    row_count: int
    prompt_ids: Ids
    response_ids: Ids
    response_mask: NDArray[np.int8]
    rollout_log_probs: LogProbs
    turn_starts: list[int]
    """Offsets into ``response_ids`` where each sampled turn begins."""
    turn_ends: list[int]
    turn_call_ids: list[str]
    policy_version_min: int | None
    policy_version_max: int | None
    token_versions: list[int] = field(default_factory=list)
    """Run-length pairs (version, count, version, count, ...) over the tokens with mask 1."""
    routed_experts: bytes | None = None
    sampling_mask: bytes | None = None
    temperature: float | None = None
    logprobs_mode: str | None = None
    media: str | None = None
    session_trainable_tokens: int = 0
    """Masked tokens of all kept rows of the session: the denominator of its loss."""
    reward: float | None = None
    reward_components: str | None = None
    reward_status: str = RewardStatus.PENDING
    finish_reason: str | None = None
    truncated: bool = False
    kinds: list[str] = field(default_factory=list)
    join_cause: str = JoinCause.ROOT
    """Why this row is not the continuation of another one."""
    trainable: bool = True
    untrainable_reason: str | None = None
    messages: str | None = None
    tools: str | None = None
