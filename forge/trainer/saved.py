"""A learner's state on disk: trained weights and the optimiser's two moments, in safetensors.

Nothing random is in it, because nothing in a step is: no dropout, and the order of the batches is told by seed and
number. The non-obvious fact: of a model whose embeddings are tied, one name stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from forge.storage.errors import BadInput, Unavailable

WEIGHTS: Final = "weights.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
MOMENTS: Final = ("exp_avg", "exp_avg_sq", "step")
"""Of AdamW, for each parameter."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises ``Unavailable`` where the disk takes no more: safetensors has an error of its own for it, with no path."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Unavailable(
            f"{folder} cannot be written: {error}",
            "make room; then train again, with --resume if there is a checkpoint",
        ) from error


def write(folder: Path, parameters: Mapping[str, Tensor], optimizer: torch.optim.AdamW) -> None:
    save_file({name: each.detach().contiguous() for name, each in parameters.items()}, folder / WEIGHTS)
    moments = {
        f"{moment}:{name}": state[moment].contiguous()
        for name, each in parameters.items()
        if (state := optimizer.state.get(each))
        for moment in MOMENTS
    }
    save_file(moments, folder / OPTIMIZER)


def read(folder: Path, parameters: Mapping[str, Tensor], optimizer: torch.optim.AdamW) -> None:
    """Raises ``BadInput`` if these are the tensors of another model."""
    weights, moments = _tensors(folder / WEIGHTS), _tensors(folder / OPTIMIZER)
    found = {name: tuple(each.shape) for name, each in weights.items()}
    wanted = {name: tuple(each.shape) for name, each in parameters.items()}
    if found != wanted:
        odd = min(name for name in {**found, **wanted} if found.get(name) != wanted.get(name))
        raise BadInput(
            f"{folder} is a checkpoint of another model: {odd} has shape {found.get(odd)}, not {wanted.get(odd)}",
            "give the --model and --lora-rank that it was made with, or start anew with another --out",
        )
    with torch.no_grad():
        for name, each in parameters.items():
            each.copy_(weights[name])
            if f"step:{name}" in moments:
                device = {"step": torch.device("cpu")}
                optimizer.state[each] = {
                    moment: moments[f"{moment}:{name}"].to(device.get(moment, each.device)) for moment in MOMENTS
                }


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}", "remove that checkpoint; an older one may be whole"
        ) from error
    return found
