"""Every column of the dataset, declared once.

The Arrow schemas, the Parquet encodings and the table in ``docs/dataset.md`` are made from these lists; a test
fails when a record and its columns disagree. The same schema, with the same nullability, is written in every
file; there is no null-typed column, no map, and no struct around a token list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 4
"""Written in every file's metadata as ``forge.schema_version``; readers refuse a newer one and lift an older one
(``migrations.py``). A column that came after version 1 is nullable, so that a reader that knows no versions gets nulls
where an older file lacks it."""

TEXT = pa.string()
IDS = pa.large_list(pa.field("element", pa.int32(), nullable=False))
LOG_PROBS = pa.large_list(pa.field("element", pa.float32(), nullable=True))
INTS = pa.large_list(pa.field("element", pa.int64(), nullable=False))
MASK = pa.large_list(pa.field("element", pa.int8(), nullable=False))
TEXTS = pa.large_list(pa.field("element", pa.string(), nullable=False))
TIME = pa.timestamp("us", tz="UTC")
NAME = pa.dictionary(pa.int32(), pa.string())
"""Of ``run_id``: it also stands in the path, where Arrow infers this very type; another one would make
``pyarrow.parquet.read_table(folder)`` fail."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    doc: str
    nullable: bool = True


def _key(name: str, doc: str, type: pa.DataType = TEXT) -> Column:
    return Column(name, type, doc, nullable=False)


CALLS: Final[tuple[Column, ...]] = (
    # identity
    _key("call_id", "unique; every id minted for a client derives from it"),
    _key("run_id", "the run that owns it", NAME),
    _key("session_id", "the session it belongs to"),
    _key("seq", "order of calls within a session: boot, monotonic clock at open, writer", pa.int64()),
    _key("choice", "index among the engine's choices", pa.int32()),
    Column("retry_of", TEXT, "call_id of the call this one repeats"),
    # place
    Column("parent_call_id", TEXT, "call of the session with the longest common prefix"),
    Column("parent_choice", pa.int32(), "choice of the parent"),
    _key("join", "`exact` if the parent's prompt + output is a prefix of this prompt, else `none`"),
    Column("join_cause", TEXT, "root, retokenized, thinking_stripped, edited, compacted: where its history parts"),
    # who
    Column("harness", TEXT, "harness name"),
    Column("harness_version", TEXT, "harness version"),
    _key("dialect", "wire format the harness spoke"),
    _key("engine", "kind of policy server"),
    _key("replica", "the policy server that served it"),
    Column("agent_id", TEXT, "the harness's own id of a sub-agent"),
    _key("kind", "main, subagent, compaction, title, memory"),
    _key("kind_rule", "the rule that named the kind"),
    # what
    _key("messages_prefix_len", "messages taken from the parent's messages + response", pa.int32()),
    _key("messages", "JSON array: the chat messages after that prefix, as the engine got them; media by reference"),
    Column("tools_hash", TEXT, "hash of the tools; null when there are none"),
    Column("tools", TEXT, "JSON array: the tools; null when they are the parent's"),
    Column("response", TEXT, "JSON object: the assistant message the engine gave"),
    Column(
        "request_raw", pa.large_binary(), "the harness's own body, where its dialect is not chat; media by reference"
    ),
    Column("finish_reason", TEXT, "the engine's finish reason"),
    Column("model_requested", TEXT, "model name the harness sent"),
    Column("model_served", TEXT, "model name the engine answered with"),
    # tokens
    _key("prompt_prefix_len", "ids taken from the parent's prompt + output", pa.int32()),
    _key("prompt_suffix_ids", "the prompt's ids after that prefix", IDS),
    _key("prompt_len", "ids in the whole prompt", pa.int32()),
    Column("prompt_hash", TEXT, "blake2b-128 of the prompt's little-endian int32 ids; null when there are none"),
    _key("chain_len", "links since the last whole prompt; 0 for a whole one", pa.int32()),
    _key("output_ids", "the sampled ids, end token included if the engine gives it", IDS),
    _key("output_log_probs", "their log probabilities; null where the engine gave none", LOG_PROBS),
    Column(
        "prompt_log_probs", LOG_PROBS, "log probabilities of the whole prompt's ids; null where nobody asked for them"
    ),
    Column("top_logprobs", TEXT, "JSON: alternatives per token, where the harness or run asked for them"),
    Column("routed_experts", pa.large_binary(), "`.npy`: experts of all ids but the last, where the engine gives them"),
    Column("sampling_mask", pa.large_binary(), "JSON: ids that a truncation kept for each token, where they are given"),
    Column("media", TEXT, "JSON array: each of the prompt's media: sha256, mime, message and part it is, tokens"),
    Column("prompt_tokens", pa.int32(), "the engine's own count"),
    Column("completion_tokens", pa.int32(), "the engine's own count"),
    # how
    Column("sampling_asked", TEXT, "JSON object: sampling keys as the harness sent them"),
    Column("sampling_sent", TEXT, "JSON object: sampling keys as the engine got them"),
    Column("sampling_defaults", TEXT, "JSON object: what the policy server takes for keys that it is not sent"),
    Column("edits", TEXT, "JSON array: recorded edits of the request"),
    Column("logprobs_mode", TEXT, "raw or processed"),
    Column("template_hash", TEXT, "hash of the chat template"),
    Column("tokenizer_hash", TEXT, "hash of the tokenizer"),
    # when
    _key("start_time", "wall clock when it was accepted", TIME),
    Column("first_byte_us", pa.int64(), "microseconds to the engine's first byte (monotonic)"),
    Column("end_us", pa.int64(), "microseconds to its close (monotonic)"),
    # outcome
    _key("status", "ok, error, truncated, aborted, interrupted, late"),
    Column("http_status", pa.int32(), "status the client got"),
    Column("error", TEXT, "what went wrong, redacted"),
    _key("delivered", "body bytes handed to the client", pa.int64()),
    Column("delivered_sha256", TEXT, "sha256 of those bytes"),
    Column("attempts", TEXT, "JSON array: attempts at engines, where there was more than one"),
    # version
    Column("policy_version_start", pa.int64(), "policy version at its start"),
    Column("policy_version_end", pa.int64(), "policy version at its end"),
    Column("version_spans", TEXT, "JSON array of [version, start, end) over output_ids"),
    _key("version_source", "engine_spans, engine_answer, replica_state, unknown"),
    Column("weight_digest", TEXT, "digest of the weights, as the publisher gave it"),
    Column("policy_lineage", TEXT, "the line of versions it belongs to"),
    # worth
    _key("trainable", "may its tokens reach a gradient", pa.bool_()),
    Column("untrainable_reason", TEXT, "why not"),
)

SESSIONS: Final[tuple[Column, ...]] = (
    _key("session_id", "unique"),
    _key("run_id", "the run that owns it", NAME),
    _key("revision", "higher wins; a late reward appends a row", pa.int32()),
    Column("task_id", TEXT, "the task it attempts"),
    Column("group_id", TEXT, "the sessions it is compared with; explicit, never guessed"),
    Column("rollout_index", pa.int32(), "0..n-1 within the group"),
    _key("purpose", "train or eval"),
    _key("implicit", "true when nobody opened it", pa.bool_()),
    Column("harness", TEXT, "harness name"),
    Column("harness_version", TEXT, "harness version"),
    Column(
        "harness_config_hash",
        TEXT,
        "hash of its arguments, environment and files, less what differs by session",
    ),
    _key("status", "open, completed, failed, timeout, policy_down, no_calls, launch_failed, interrupted"),
    Column("error", TEXT, "what went wrong"),
    Column("exit_code", pa.int32(), "the harness's exit code; no verdict"),
    Column("reward", pa.float64(), "the grader's number; null is not 0"),
    _key("reward_status", "graded, null, pending"),
    Column("reward_components", TEXT, "JSON object: component to number"),
    Column("reward_author", TEXT, "who set the reward"),
    Column("reward_time", TIME, "when the reward was set"),
    Column("selection", TEXT, "not_selected: drawn for its group, and others were chosen; else null"),
    Column("sampling", TEXT, "JSON object: the run's sampling"),
    Column("history", TEXT, "as-sent or keep-reasoning, where its opener said so"),
    Column("budgets", TEXT, "JSON object: calls, output_tokens, context, seconds"),
    Column("labels", TEXT, "JSON object: the opener's labels"),
    _key("open_time", "when it was opened", TIME),
    Column("close_time", TIME, "when it was closed"),
    Column("policy_version", pa.int64(), "policy version when it was opened"),
    Column("policy_lineage", TEXT, "the line of versions it belongs to"),
    Column("weight_digest", TEXT, "digest of the weights when it was opened"),
)

SAMPLES: Final[tuple[Column, ...]] = (
    _key("sample_id", "unique: session and row"),
    _key("run_id", "the run that owns it", NAME),
    _key("session_id", "the session it is made from"),
    Column("task_id", TEXT, "the task"),
    Column("group_id", TEXT, "the sessions it is compared with"),
    Column("rollout_index", pa.int32(), "0..n-1 within the group"),
    _key("row_index", "place among the session's rows", pa.int32()),
    _key("row_count", "rows of the session", pa.int32()),
    _key("prompt_ids", "ids before the first sampled token", IDS),
    _key("response_ids", "sampled ids and the tool and template ids between them", IDS),
    _key("response_mask", "1 where the policy sampled the token and this row trains it", MASK),
    _key("rollout_log_probs", "log probabilities when sampled; null where mask is 0", LOG_PROBS),
    _key("turn_starts", "offset of each sampled turn in response_ids", INTS),
    _key("turn_ends", "its end, exclusive", INTS),
    _key("turn_call_ids", "its call_id", TEXTS),
    Column("policy_version_min", pa.int64(), "lowest version among masked tokens"),
    Column("policy_version_max", pa.int64(), "highest version among masked tokens"),
    _key("token_versions", "runs over masked tokens: version (-1: unknown), count, version, count, ...", INTS),
    Column("routed_experts", pa.large_binary(), "`.npy`: experts of all ids but the last, where the engine gives them"),
    Column("sampling_mask", pa.large_binary(), "JSON: ids kept for each of response_ids, none where mask is 0"),
    Column("temperature", pa.float64(), "sampling temperature; null when turns differ"),
    Column("logprobs_mode", TEXT, "raw or processed"),
    Column("media", TEXT, "JSON array: each of the sequence's media: sha256, mime, message and part it is, tokens"),
    _key("session_trainable_tokens", "masked tokens of all kept rows of the session", pa.int64()),
    Column("reward", pa.float64(), "the session's reward"),
    Column("reward_components", TEXT, "JSON object"),
    _key("reward_status", "graded, null, pending"),
    Column("finish_reason", TEXT, "finish reason of the last turn"),
    _key("truncated", "a turn ended by length, or the row was cut", pa.bool_()),
    _key("kinds", "kinds of the calls in it", TEXTS),
    _key("join_cause", "why this row does not continue another"),
    _key("trainable", "may it reach a gradient", pa.bool_()),
    Column("untrainable_reason", TEXT, "why not; of a trainable row, why some of its turns have mask 0"),
    Column("messages", TEXT, "JSON array: the last turn's messages and response"),
    Column("tools", TEXT, "JSON array"),
)

TABLES: Final[dict[str, tuple[Column, ...]]] = {"calls": CALLS, "sessions": SESSIONS, "samples": SAMPLES}


def schema(table: str) -> pa.Schema:
    """The Arrow schema of ``calls``, ``sessions`` or ``samples``."""
    fields = [pa.field(c.name, c.type, nullable=c.nullable) for c in TABLES[table]]
    return pa.schema(fields, metadata={"forge.schema_version": str(SCHEMA_VERSION), "forge.table": table})
