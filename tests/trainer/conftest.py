"""Samples by hand, and a model small enough to differentiate by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.storage.records import Sample

VOCAB = 64
MakeSample = Callable[..., Sample]


def sample(session: str = "s0", row: int = 0, *, mask: list[int] | None = None, **changes: Any) -> Sample:
    """A row of four prompt and ``len(mask)`` response tokens, its ids told by its name."""
    seed = np.random.default_rng([ord(c) for c in session] + [row])
    response_mask = np.array([1, 1, 1] if mask is None else mask, np.int8)
    size = len(response_mask)
    log_probs = np.where(response_mask == 1, -np.log(VOCAB), np.nan).astype(np.float32)
    fields: dict[str, Any] = {
        "sample_id": f"{session}-{row}", "run_id": "r", "session_id": session, "task_id": "t", "group_id": "g",
        "rollout_index": 0, "row_index": row, "row_count": row + 1,
        "prompt_ids": seed.integers(0, VOCAB, 4).astype(np.int32),
        "response_ids": seed.integers(0, VOCAB, size).astype(np.int32),
        "response_mask": response_mask, "rollout_log_probs": log_probs, "turn_starts": [0], "turn_ends": [size],
        "turn_call_ids": ["c"], "policy_version_min": 0, "policy_version_max": 0,
        "token_versions": [0, int(response_mask.sum())], "temperature": 1.0, "logprobs_mode": "processed",
        "session_trainable_tokens": int(response_mask.sum()), "reward": 1.0, "reward_status": "graded",
    }  # fmt: skip
    return Sample(**(fields | changes))


@pytest.fixture
def make_sample() -> MakeSample:
    return sample


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers, saved as a model directory with a tokenizer file and a chat template beside it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.4,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("tiny")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path
