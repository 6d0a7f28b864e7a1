"""The model that is trained: loaded from a plain directory, with or without adapters, scored at chosen places, saved.

fp32 throughout, so that the log probs it computes are comparable to the recorded ones. Reads and writes safetensors
and JSON only. The non-obvious fact: rows of a pack are told apart by positions that start again, which a model must
heed; one that does not, or that changes its logits after the output layer, is refused when it is loaded.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from forge.policy.weights import ADAPTER
from forge.storage.errors import BadInput, Unavailable
from forge.trainer.config import PARTS
from forge.trainer.loss import Scored, score_tokens

TOLERANCE: Final = 1e-4
"""How far our own log probs may lie from those of the model's whole forward pass."""
SMALL: Final = 20_000_000
"""Parameters of a model whose activations are kept, not computed again: a quarter of the time for megabytes."""
NOT_COPIED: Final = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "config.json", ADAPTER)
"""Weights and the config are written anew; tokenizer, chat template and the rest are the base model's."""


class Scorer(torch.nn.Module):
    """A model as the loss sees it: ids in, log probs of some of them out."""

    def __init__(self, directory: Path, lora_rank: int | None = None) -> None:
        super().__init__()
        self.directory = directory
        self.model: Any = _adapted(_load(directory), lora_rank) if lora_rank else _load(directory)
        self.adapted = lora_rank is not None

    def forward(self, ids: Tensor, positions: Tensor | None, places: Tensor, temperatures: Tensor) -> Scored:
        """``ids`` and ``positions`` of a pack, shape [T], the latter None for one row, which needs no mask; ``places``
        of the tokens asked for, shape [K], none the first of its row; logits exist at their places only."""
        at = {} if positions is None else {"position_ids": positions.unsqueeze(0)}
        hidden = self._plain().base_model(input_ids=ids.unsqueeze(0), use_cache=False, **at).last_hidden_state[0]
        return score_tokens(hidden[places - 1], ids[places], temperatures, self._head())

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """The model without what its adapters learned."""
        with self.model.disable_adapter():
            yield

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """By name; of tied weights one."""
        return {name: each for name, each in self.model.named_parameters() if each.requires_grad}

    def check(self, device: torch.device) -> None:
        """Raises ``BadInput`` for a model that this trainer would read wrongly."""
        size = int(self.model.config.vocab_size)
        ids = (torch.arange(1, 17, device=device) * 7) % size
        positions = torch.cat([torch.arange(8, device=device)] * 2)
        places = torch.tensor([*range(1, 8), *range(9, 16)], device=device)
        with torch.no_grad():
            ours = self(ids, positions, places, torch.ones(len(places), device=device)).log_probs
            logits = self.model(input_ids=ids.view(2, 8), use_cache=False).logits[:, :-1].float()
        theirs = logits.log_softmax(-1).gather(2, ids.view(2, 8)[:, 1:].unsqueeze(2)).flatten()
        if not torch.allclose(ours, theirs, atol=TOLERANCE):
            raise BadInput(
                f"{self.directory}: models of type {self.model.config.model_type} change their logits after the output "
                "layer, or do not tell packed rows apart, which this trainer needs",
                "use another model, or another trainer through forge.adapters.trainers",
            )

    def save(self, target: Path) -> None:
        """A whole model directory; where adapters are trained, merged, and they alone in a folder of it."""
        shutil.copytree(self.directory, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        if not self.adapted:
            self.model.save_pretrained(target)
            return
        self._plain().save_pretrained(target, state_dict=self._merged())
        self.model.save_pretrained(target / ADAPTER)

    def _plain(self) -> Any:
        return self.model.get_base_model() if self.adapted else self.model

    def _head(self) -> torch.nn.Module:
        head = self._plain().get_output_embeddings()
        assert isinstance(head, torch.nn.Module)
        return head

    def _merged(self) -> dict[str, Tensor]:
        """The weights with what their adapters add, under the names of the plain model."""
        plain = self._plain()
        adds = {
            f"{name}.weight": module.get_delta_weight("default")
            for name, module in plain.named_modules()
            if hasattr(module, "get_delta_weight")
        }
        weights = {
            name.replace(".base_layer", ""): each for name, each in plain.state_dict().items() if ".lora_" not in name
        }
        return {name: each + adds[name] if name in adds else each for name, each in weights.items()}


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
    if model.supports_gradient_checkpointing and model.num_parameters() > SMALL:
        # transformers 5.24 renames it and warns of the old name, earlier ones know only that.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    model.train()
    assert isinstance(model, PreTrainedModel)
    return model


def _adapted(model: PreTrainedModel, rank: int) -> Any:
    """LoRA, arXiv 2106.09685: ``W + (alpha / rank) B A`` with B zero at first, alpha twice the rank."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise Unavailable(f"adapters need peft: {error}", "pip install peft, or train all weights") from error
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=list(PARTS), bias="none")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a property by its old name
            return get_peft_model(model, config)
    except ValueError as error:
        raise BadInput(
            f"a model of type {model.config.model_type} has no layers that an adapter fits: {error}",
            "train all weights, without --lora-rank",
        ) from error
