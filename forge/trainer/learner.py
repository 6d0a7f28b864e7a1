"""The learner: one model, one optimiser, one step at a time. Becomes a Ray actor in ``loop.py``.

fp32 throughout, so that the log probs it computes are comparable to the recorded ones. Loads and saves safetensors
only. It must not know Parquet, sessions or groups: a row carries its advantage and its weight.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from forge.storage.errors import BadInput, Unavailable
from forge.trainer.batch import Row, micro_batches, padded
from forge.trainer.cluster import cpus
from forge.trainer.config import Hyper, StepStats
from forge.trainer.loss import clipped_policy_loss, token_log_probs

HEAD_TOLERANCE: Final = 1e-4
"""How far our own log probs may lie from those of the model's whole forward pass."""
MICRO_TOKENS: Final = {"cpu": 1, "cuda": 16_384}
"""By device. On a CPU one row at a time takes a third of the wall time and two thirds of the CPU time of four rows at
once (measured: SmolLM2-135M, 4 x 300 tokens, 2 cores)."""
NOT_COPIED: Final = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "config.json")
"""Weights and the config are written anew; tokenizer, chat template and the rest are the base model's."""


class Learner:
    """``load`` comes first: an error in it then reaches a Ray caller as itself, where one in a constructor does not."""

    model: PreTrainedModel
    _optimizer: torch.optim.Optimizer

    def __init__(self, model_dir: str, hyper: Hyper) -> None:
        self._base = Path(model_dir)
        self._hyper = hyper
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._rows_done = 0

    def load(self) -> str:
        """Loads the model; gives the device it is on."""
        # Ray gives a worker as many threads as the CPUs it asked for; the learner has its machine to itself.
        torch.set_num_threads(cpus())
        torch.manual_seed(self._hyper.seed)
        self.model = _load(self._base).to(self._device)
        self._check_head()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=self._hyper.lr, weight_decay=0.0)
        return str(self._device)

    def step(self, rows: Sequence[Row]) -> StepStats:
        """One optimisation step over the whole batch."""
        self._optimizer.zero_grad(set_to_none=True)
        try:
            loss, seen = self.backward(rows)
        except torch.OutOfMemoryError as error:
            raise Unavailable(f"the learner ran out of memory: {error}", "lower --micro-tokens") from error
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._hyper.max_grad_norm)
        if not torch.isfinite(norm):
            raise Unavailable("the gradient is not finite, no step was made", "lower --lr, or look at the metrics")
        self._optimizer.step()
        return _stats(loss, float(norm), rows, seen)

    def backward(self, rows: Sequence[Row]) -> tuple[float, _Seen]:
        """Adds the batch loss's gradient to the parameters, micro-batch by micro-batch."""
        total, seen, self._rows_done = 0.0, _Seen(), 0
        for batch in micro_batches(rows, self._hyper.micro_tokens or MICRO_TOKENS[self._device.type]):
            log_probs, old = self.log_probs(batch), self._spread(batch, "old_log_probs")
            advantages, weights = self._each(batch, "advantage"), self._each(batch, "weight")
            out = clipped_policy_loss(
                log_probs, old, advantages, clip_low=self._hyper.clip_low, clip_high=self._hyper.clip_high
            )
            loss = (out.per_token * weights).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            self._rows_done += len(batch)
            seen.add(out.ratio, out.clipped_low, out.clipped_high, (log_probs.detach() - old).abs())
        return total, seen

    def log_probs(self, batch: Sequence[Row]) -> Tensor:
        """The model's log probs of the batch's trained tokens, row after row, shape [K]."""
        ids, attention = (torch.from_numpy(a).to(self._device) for a in padded(batch))
        hidden = self.model.base_model(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        at = [torch.from_numpy(row.places).to(self._device) for row in batch]
        before = torch.cat([hidden[i, places - 1] for i, places in enumerate(at)])
        targets = torch.cat([ids[i, places] for i, places in enumerate(at)])
        return token_log_probs(before, targets, self._each(batch, "temperature"), self._head())

    def rows_done(self) -> int:
        """Rows that the running step has seen; asked from another thread."""
        return self._rows_done

    def save(self, path: str) -> None:
        """The weights and everything else of the model's directory."""
        target = Path(path)
        shutil.copytree(self._base, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        self.model.save_pretrained(target)

    def _head(self) -> torch.nn.Module:
        head = self.model.get_output_embeddings()
        assert isinstance(head, torch.nn.Module)
        return head

    def _each(self, batch: Sequence[Row], name: str) -> Tensor:
        """A row's number, once for each of its trained tokens."""
        values = np.concatenate([np.full(len(row.places), getattr(row, name), dtype=np.float32) for row in batch])
        return torch.from_numpy(values).to(self._device)

    def _spread(self, batch: Sequence[Row], name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(row, name) for row in batch])).to(self._device)

    def _check_head(self) -> None:
        """Some models scale or cap their logits after the output layer, which our chunks would miss."""
        ids = np.arange(1, 9, dtype=np.int32) % int(self.model.config.vocab_size)
        row = Row("probe", ids, np.arange(1, 8), np.zeros(7, np.float32), 1.0, 0.0, 1.0)
        whole = torch.from_numpy(ids.astype(np.int64)).to(self._device).unsqueeze(0)
        with torch.no_grad():
            ours = self.log_probs([row])
            logits = self.model(input_ids=whole, use_cache=False).logits[0, :-1].float()
        theirs = logits.log_softmax(-1).gather(1, whole[0, 1:].unsqueeze(1)).squeeze(1)
        if not torch.allclose(ours, theirs, atol=HEAD_TOLERANCE):
            raise BadInput(
                f"{self._base}: models of type {self.model.config.model_type} change their logits after the output "
                "layer, which this trainer does not do",
                "use another model, or another trainer through forge.adapters.trainers",
            )


class _Seen:
    """Sums over the micro-batches of a step."""

    def __init__(self) -> None:
        self.ratio = self.low = self.high = self.delta = 0.0
        self.ratio_max = self.delta_max = 0.0
        self.tokens = 0

    def add(self, ratio: Tensor, low: Tensor, high: Tensor, delta: Tensor) -> None:
        self.tokens += ratio.numel()
        self.ratio += float(ratio.sum())
        self.low += float(low.sum())
        self.high += float(high.sum())
        self.delta += float(delta.sum())
        self.ratio_max = max(self.ratio_max, float(ratio.max()))
        self.delta_max = max(self.delta_max, float(delta.max()))


def _stats(loss: float, grad_norm: float, rows: Sequence[Row], seen: _Seen) -> StepStats:
    return StepStats(
        loss=loss,
        grad_norm=grad_norm,
        tokens=seen.tokens,
        tokens_read=sum(len(row.ids) for row in rows),
        ratio_mean=seen.ratio / seen.tokens,
        ratio_max=seen.ratio_max,
        clip_low_fraction=seen.low / seen.tokens,
        clip_high_fraction=seen.high / seen.tokens,
        delta_log_prob_mean=seen.delta / seen.tokens,
        delta_log_prob_max=seen.delta_max,
    )


def _load(path: Path) -> PreTrainedModel:
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} holds no model that can be trained: {error}", "give --model DIR with a config.json and safetensors"
        ) from error
    # Training mode is what turns checkpointing on; dropout in it would move the ratio from 1 for no reason.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    if model.supports_gradient_checkpointing:
        # transformers 5.24 renames it and warns of the old name, earlier ones know only that.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    model.train()
    assert isinstance(model, PreTrainedModel)
    return model
