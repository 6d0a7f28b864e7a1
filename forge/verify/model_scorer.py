"""Scores by a fresh fp32 forward pass of transformers: another program than any that sampled.

Owns the model; loads torch. It sees all logits, so it can also say which temperature explains what was recorded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from forge.policy.weights import weight_digest
from forge.storage.errors import BadInput
from forge.storage.records import Call
from forge.verify.scores import Fit, Scores, Serves

FIT_ABOVE: Final = 0.02
"""Nats: below, the temperature is not in doubt."""
COLDEST, HOTTEST = 0.05, 5.0
FIT_STEPS: Final = 24
GREEDY_BELOW: Final = 1e-5


class ModelScorer:
    def __init__(self, directory: Path) -> None:
        disable_progress_bar()  # standard error is for what went wrong
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{directory}: no model that transformers can load ({str(error).splitlines()[0]})",
                "give a Hugging Face directory with its tokenizer",
            ) from error
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(self._device)
        self.serves = Serves(f"the model {directory}", None, weight_digest(directory))

    async def score(self, call: Call, temperature: float) -> Scores:
        return await asyncio.to_thread(self._score, call, temperature)

    async def text(self, ids: list[int]) -> str | None:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    @torch.inference_mode()
    def _score(self, call: Call, temperature: float) -> Scores:
        output = torch.from_numpy(call.output_ids.astype(np.int64)).to(self._device)
        ids = torch.cat((torch.from_numpy(call.prompt_ids.astype(np.int64)).to(self._device), output))
        logits = self._model(input_ids=ids[None], logits_to_keep=len(output) + 1).logits[0, :-1]
        recorded = torch.from_numpy(call.output_log_probs.copy()).to(self._device)
        raw = _at(logits, output, 1.0)
        tempered = raw if temperature < GREEDY_BELOW else _at(logits, output, temperature)
        off = float((recorded - tempered).abs().mean())
        fit = _fit(logits, output, recorded) if off > FIT_ABOVE else None
        return Scores(raw.cpu().numpy(), tempered.cpu().numpy(), fit)


def _at(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(logits / temperature, -1).gather(1, ids[:, None])[:, 0]


def _fit(logits: Tensor, ids: Tensor, recorded: Tensor) -> Fit:
    """The temperature with the least mean difference, by golden section on its logarithm."""

    def off(log_t: float) -> float:
        return float((recorded - _at(logits, ids, float(np.exp(log_t)))).abs().mean())

    low, high = float(np.log(COLDEST)), float(np.log(HOTTEST))
    golden = (5**0.5 - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = off(a), off(b)
    for _ in range(FIT_STEPS):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = off(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = off(b)
    return Fit(float(np.exp((low + high) / 2)), min(at_a, at_b))
