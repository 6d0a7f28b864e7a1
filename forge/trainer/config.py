"""What a training run is told and what one step says back. No torch: commands read it before anything heavy loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from forge.storage.errors import BadInput
from forge.storage.recipe import DEFAULT

PARTS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that get an adapter: all linear ones of a block."""


class Objective(StrEnum):
    GRPO = "grpo"
    """Clipped policy gradient on advantages within groups."""
    SFT = "sft"
    """Likelihood of every trained token, whatever its reward."""


class Baseline(StrEnum):
    """What a session's reward is measured against: see ``advantage.group_advantages``."""

    STD = "std"
    MEAN = "mean"
    LEAVE_ONE_OUT = "leave-one-out"


class Mean(StrEnum):
    """What every token's loss is averaged over: see ``batch.rows_of``."""

    SESSION = "session"
    TOKEN = "token"


class Correction(StrEnum):
    """For the gap between the recorded log probs and the trainer's own: see ``correction.correct``."""

    TRUNCATED = "truncated"
    ICEPOP = "icepop"
    NONE = "none"
    """The recorded log probs are the old ones of the ratio, which then holds the gap too."""


class Overlong(StrEnum):
    """For rows that a length limit ended."""

    KEEP = "keep"
    MASK = "mask"
    """They count in their group's mean and are not learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """What the learner's process is told."""

    objective: Objective = Objective.GRPO
    lr: float = 1e-5
    """AdamW's; its first step moves every weight by about this much, whatever the gradient's size."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    correction: Correction = Correction.TRUNCATED
    cap: float = 2.0
    """Truncated: the largest weight of a token."""
    pop_low: float = 0.5
    pop_high: float = 5.0
    """IcePop: tokens whose weight lies outside are not learned from."""
    kl: float = 0.0
    """Of the penalty that holds the policy near the model it started from; 0: none, and no second model."""
    lora_rank: int | None = None
    """Train low-rank adapters of this rank beside frozen weights; None: all weights."""
    micro_tokens: int | None = None
    """Tokens of one forward pass; a longer row stands alone. None: as suits the device."""
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.pop_low < 1.0 < self.pop_high:
            raise BadInput(f"IcePop's bounds are {self.pop_low} and {self.pop_high}", "give one below and one above 1")
        if self.cap < 1.0:
            raise BadInput(f"the cap of the correction is {self.cap}", "give at least 1: on-policy tokens weigh 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What one step saw, before its update. Means are over its trained tokens."""

    loss: float
    grad_norm: float
    tokens: int
    """Trained tokens."""
    tokens_read: int
    """All tokens of the rows."""
    seconds: float
    entropy: float
    """Nats, of the whole distribution at the sampling temperature."""
    ratio_mean: float
    ratio_max: float
    clip_low_fraction: float
    clip_high_fraction: float
    delta_log_prob_mean: float
    """Mean over tokens of |recorded - the learner's own|: 1e-5 between fp32 programs, 0.03 from a bf16 engine."""
    delta_log_prob_max: float
    kl_rollout_k1: float
    """Estimates of KL(rollout || trainer) from the recorded tokens: see ``correction.Gap``."""
    kl_rollout_k3: float
    perplexity_ratio: float
    """The learner's perplexity on the tokens by that of the policy that sampled them."""
    effective_share: float
    """Effective sample size of the importance weights, as a share of the tokens: 1 on policy."""
    corrected_fraction: float
    """Tokens whose weight was capped, or that were left out by it."""
    kl_base: float
    """Of the penalty; 0 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    data: Path
    runs: tuple[str, ...] = ()
    """Empty: all runs of the data directory."""
    recipe: str = DEFAULT.name
    model: str | None = None
    """Directory or name; None: the published weights, else the default model."""
    steps: int = 1
    """Optimisation steps on every batch that the source gives."""
    step_sessions: int | None = None
    """Sessions of one step, drawn without repeating until all were seen; None: all."""
    hyper: Hyper = field(default_factory=Hyper)
    baseline: Baseline = Baseline.STD
    mean: Mean = Mean.SESSION
    overlong: Overlong = Overlong.KEEP
    max_staleness: int | None = 0
    unverified: bool = False
    """Learn also from runs that fail verification."""
    control: str | None = None
    control_token_file: Path | None = None
    ray: str | None = None
    workers: int = 1
    """Learner processes, each with its own copy of the model."""
    gpu: bool | None = None
    """One GPU for each of them; None: where the cluster has one for each."""
    out: Path | None = None
    """Directory of metrics and checkpoints; None: ``DATA/train/<version>``."""
    checkpoint_every: int | None = None
    """Optimisation steps between two checkpoints; None: none."""
    drawn_anew: bool = False
    """The source has no batch twice: there are checkpoints between batches only, for no run can go on within one."""
    resume: bool = False
    """Go on from the checkpoint in ``out``."""
