"""What a training run is told and what one step says back. No torch: commands read it before anything heavy loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from forge.storage.recipe import DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    lr: float = 1e-5
    """AdamW's; its first step moves every weight by about this much, whatever the gradient's size."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    micro_tokens: int | None = None
    """Tokens of one forward pass, padding included; a longer row stands alone. None: as suits the device."""
    max_grad_norm: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What one step saw, before its update."""

    loss: float
    grad_norm: float
    tokens: int
    """Trained tokens."""
    tokens_read: int
    """All tokens of the rows, padding aside."""
    ratio_mean: float
    ratio_max: float
    clip_low_fraction: float
    clip_high_fraction: float
    delta_log_prob_mean: float
    """Mean over tokens of |recorded - the learner's own|: 1e-5 between fp32 programs, 0.03 from a bf16 engine."""
    delta_log_prob_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    data: Path
    runs: tuple[str, ...] = ()
    """Empty: all runs of the data directory."""
    recipe: str = DEFAULT.name
    model: str | None = None
    """Directory or name; None: the published weights, else the default model."""
    steps: int = 1
    hyper: Hyper = field(default_factory=Hyper)
    divide_by_std: bool = True
    max_staleness: int | None = 0
    unverified: bool = False
    """Learn also from runs that fail verification."""
    control: str | None = None
    control_token_file: Path | None = None
    ray: str | None = None
    out: Path | None = None
    """Directory of ``metrics.jsonl``; None: ``DATA/train/<version>``."""
