"""Where a run of the trainer begins: at a model, or where a checkpoint left it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.policy import weights
from forge.policy.model import ensure_model
from forge.storage.errors import BadInput
from forge.storage.records import Sample
from forge.trainer import checkpoint
from forge.trainer.config import TrainConfig

DEFAULT_LINEAGE: Final = "main"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Base:
    """Where training starts from."""

    path: Path
    version: int
    lineage: str


@dataclass(frozen=True, slots=True)
class Start:
    """Where the loop begins: at the beginning, or where a checkpoint left it."""

    base: Base
    base_digest: str
    out: Path
    batch: int = 0
    batch_step: int = 0
    step: int = 0
    version: int | None = None
    """Of the weights that learn; None: the base's."""
    folder: Path | None = None
    """The checkpoint to go on from."""
    batch_digest: str | None = None


def start_of(config: TrainConfig, first: Sequence[Sample], say: Say) -> Start:
    if config.resume:
        return _resumed(config)
    base = _base(config, first, say)
    out = config.out or config.data / "train" / str(next_version(config.data, base.version))
    if checkpoint.folders(out):
        raise BadInput(f"{out} holds the checkpoint of a run", "go on with it: --resume; or name another --out")
    return Start(base, weights.weight_digest(base.path), out)


def _resumed(config: TrainConfig) -> Start:
    if config.out is None:
        raise BadInput("a run to go on with must be named", "give --out, the folder that holds its checkpoint")
    folder, manifest = checkpoint.newest(config.out)
    base = Base(
        ensure_model(config.model).absolute() if config.model else Path(manifest.base),
        manifest.base_version,
        manifest.lineage,
    )
    checkpoint.same(manifest, base_digest=weights.weight_digest(base.path), told=told(config))
    return Start(
        base, manifest.base_digest, config.out, batch=manifest.batch, batch_step=manifest.batch_step,
        step=manifest.step, version=manifest.version, folder=folder, batch_digest=manifest.batch_digest,
    )  # fmt: skip


def _base(config: TrainConfig, samples: Sequence[Sample], say: Say) -> Base:
    """Published weights carry their version. A model that is named is taken to be what was sampled from."""
    current = weights.current(config.data)
    lineage = current.lineage if current else DEFAULT_LINEAGE
    served = current.version if current else 0
    if config.model is not None:
        sampled = max((s.policy_version_max for s in samples if s.policy_version_max is not None), default=0)
        return Base(ensure_model(config.model, tell=say).absolute(), max(served, sampled), lineage)
    return Base(current.path if current else ensure_model(tell=say), served, lineage)


def told(config: TrainConfig) -> dict[str, Any]:
    """What decides the numbers of a run: where its pieces lie and how many steps it makes do not."""
    names = ("recipe", "step_sessions", "hyper", "baseline", "mean", "overlong", "max_staleness")
    found: dict[str, Any] = msgspec.to_builtins({name: getattr(config, name) for name in names})
    hyper: dict[str, Any] = found.pop("hyper")
    return found | hyper


def next_version(data: Path, version: int) -> int:
    """Above every directory there is: a run that died before it moved CURRENT leaves one that nobody may reuse."""
    taken = [int(path.name) for path in (data / "policy").glob("*") if path.name.isdecimal()]
    return 1 + max(version, *taken, 0)
