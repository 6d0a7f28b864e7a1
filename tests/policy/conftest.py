"""Models for the tests that need one: a tiny random Llama with the real tokenizer, and SmolLM2 itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Score = Callable[[Path, list[int], float], list[list[float]]]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    from forge.policy.model import ensure_model

    return ensure_model()


@pytest.fixture(scope="session")
def tiny(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Makes the tiny model of a seed; untied, with long enough a context to show prefix reuse."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    made: dict[int, Path] = {}

    def make(seed: int) -> Path:
        if seed not in made:
            torch.manual_seed(seed)
            config = LlamaConfig(
                vocab_size=49152,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=2048,
                initializer_range=0.2,
                eos_token_id=2,
                bos_token_id=1,
                tie_word_embeddings=seed % 2 == 0,
            )
            directory = tmp_path_factory.mktemp(f"tiny{seed}")
            LlamaForCausalLM(config).save_pretrained(directory)
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(smollm2 / name, directory / name)
            made[seed] = directory
        return made[seed]

    return make


@pytest.fixture(scope="session")
def score() -> Callable[..., list[float]]:
    """Log probs of ``output`` after ``prompt`` by a fresh fp32 forward pass of transformers."""
    import torch
    from transformers import LlamaForCausalLM

    models: dict[Path, Any] = {}

    def run(directory: Path, prompt: list[int], output: list[int], temperature: float = 1.0) -> list[float]:
        if directory not in models:
            models[directory] = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        with torch.inference_mode():
            logits = models[directory](torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        found = torch.log_softmax(logits / temperature, -1)
        return [float(found[at, index]) for at, index in enumerate(output)]

    return run
