"""Checkpoints of a run: a folder that appears by rename, whole, with a manifest of where the run stands.

``OUT/step-<n>-<batch>/``: ``manifest.json``, the learner's tensors (``saved``), and the learner's log probs from before
the batch's first update. The newest is the one to go on from; it is removed only when a newer one has appeared.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from forge.policy.weights import sync_tree
from forge.storage.errors import BadInput
from forge.storage.records import LogProbs

MANIFEST: Final = "manifest.json"
ANCHORS: Final = "anchors.safetensors"
PREFIX: Final = "step-"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands, and what it must be given to go on."""

    step: int
    """Optimisation steps made."""
    batch: int
    """Of the source; all before it are done."""
    batch_step: int
    """Steps made on that batch."""
    version: int
    """Of the weights that the batch was chosen for."""
    lineage: str
    base: str
    """Directory of the model that the run started from."""
    base_version: int
    base_digest: str
    told: dict[str, Any]
    """What decides the numbers of the run: its options."""
    batch_digest: str | None = None
    """Of the rows that the batch was made of; None between two batches."""


def write(out: Path, manifest: Manifest, keep: Callable[[Path], None], anchors: Mapping[str, LogProbs] | None) -> Path:
    """``keep`` writes the learner's tensors into the folder it is given."""
    final = out / f"{PREFIX}{manifest.step:08d}-{manifest.batch:06d}"
    building = out / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    keep(building)
    if anchors is not None:
        save_file(dict(anchors), building / ANCHORS)
    (building / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    sync_tree(building)
    shutil.rmtree(final, ignore_errors=True)  # of a run that was resumed from before it
    building.rename(final)
    for older in folders(out):
        if older.name < final.name:
            shutil.rmtree(older)
    return final


def newest(out: Path) -> tuple[Path, Manifest]:
    """Raises ``BadInput`` where there is none."""
    found = folders(out)
    if not found:
        raise BadInput(f"{out} holds no checkpoint", "name the run's folder with --out, or start anew without --resume")
    path = found[-1] / MANIFEST
    try:
        return found[-1], msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path} is no manifest of a checkpoint: {error}", "start anew with another --out") from error


def folders(out: Path) -> list[Path]:
    """Oldest first; what was not finished does not count."""
    return sorted(out.glob(f"{PREFIX}*"))


def anchors_of(folder: Path) -> dict[str, LogProbs] | None:
    path = folder / ANCHORS
    if not path.exists():
        return None
    try:
        return {name: values.astype(np.float32) for name, values in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{path} cannot be read: {error}", "start anew with another --out") from error


def same(manifest: Manifest, *, base_digest: str, told: Mapping[str, Any]) -> None:
    """Raises ``BadInput`` unless the run that goes on is the run that was."""
    if manifest.base_digest != base_digest:
        raise BadInput(
            f"the checkpoint is of another model: it began from {manifest.base}, whose digest was "
            f"{manifest.base_digest[:12]}, not {base_digest[:12]}",
            "give the --model that the run began with, or start anew with another --out",
        )
    odd = sorted(name for name in {**manifest.told, **told} if manifest.told.get(name) != told.get(name))
    if odd:
        said = ", ".join(f"{name} was {manifest.told.get(name)} and is {told.get(name)}" for name in odd)
        raise BadInput(f"the checkpoint was made with other options: {said}", "give the options of the run that was")
