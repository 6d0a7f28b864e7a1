"""The learner: one model, one optimiser, one step at a time, alone or as one of several that share every batch.

It must not know Parquet, sessions or groups: a row carries its advantage and its weight. The non-obvious fact: DDP
takes the mean of the learners' gradients where the batch loss is a sum, so each learner's loss is multiplied by how
many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from forge.storage.errors import Unavailable
from forge.storage.records import LogProbs
from forge.trainer import saved
from forge.trainer.batch import Row, joined, packs, shares
from forge.trainer.cluster import cpus
from forge.trainer.config import Correction, Hyper, Objective, StepStats
from forge.trainer.correction import correct
from forge.trainer.loss import Scored, base_penalty, clipped_policy_loss
from forge.trainer.model import Scorer
from forge.trainer.seen import Seen

MICRO_TOKENS: Final = {"cpu": 1, "cuda": 16_384}
"""By device. On a CPU one row at a time takes a third of the wall time and two thirds of the CPU time of four rows at
once (measured: SmolLM2-135M, 4 x 300 tokens, 2 cores)."""


Tell = Callable[[int], object]
"""Hears how many rows of a step were seen."""


class Pack(NamedTuple):
    """Rows of one forward pass, as tensors: [T] the first two, [K] the others."""

    ids: Tensor
    positions: Tensor | None
    places: Tensor
    temperatures: Tensor
    rollout: Tensor
    advantages: Tensor
    weights: Tensor
    anchor: Tensor | None


class Learner:
    """``load`` comes first: an error in it then reaches a Ray caller as itself, where one in a constructor does not."""

    scorer: Scorer
    _optimizer: torch.optim.AdamW
    _forward: Callable[..., Any]

    def __init__(self, model: Path, hyper: Hyper, device: str = "cpu") -> None:
        self._base_dir = model
        self._hyper = hyper
        self._device = torch.device(device)
        self._base: Scorer | None = None
        self.rank, self.count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    def load(self) -> str:
        """Loads the model; gives the device it is on."""
        # Ray gives a worker as many threads as the CPUs it asked for; the learners have their machine to themselves.
        torch.set_num_threads(max(1, cpus() // self.count))
        torch.manual_seed(self._hyper.seed)
        hyper = self._hyper
        self.scorer = Scorer(self._base_dir, hyper.lora_rank).to(self._device)
        self.scorer.check(self._device)
        if hyper.kl and hyper.lora_rank is None:
            self._base = Scorer(self._base_dir).to(self._device).requires_grad_(False)
        self._forward = torch.nn.parallel.DistributedDataParallel(self.scorer) if self.count > 1 else self.scorer
        self._optimizer = torch.optim.AdamW(self.scorer.trained().values(), lr=hyper.lr, weight_decay=0.0)
        return str(self._device)

    def step(self, rows: Sequence[Row], tell: Tell = lambda rows_seen: None) -> StepStats:
        """One optimisation step over the whole batch, of which this learner takes its share."""
        began = time.monotonic()
        self._optimizer.zero_grad(set_to_none=True)
        try:
            seen = self.backward(rows, tell)
        except torch.OutOfMemoryError as error:
            raise Unavailable(f"the learner ran out of memory: {error}", "lower --micro-tokens") from error
        norm = torch.nn.utils.clip_grad_norm_(self.scorer.trained().values(), self._hyper.max_grad_norm)
        if not torch.isfinite(norm):
            raise Unavailable("the gradient is not finite, no step was made", "lower --lr, or look at the metrics")
        self._optimizer.step()
        read = sum(len(row.ids) for row in rows)
        return seen.stats(grad_norm=float(norm), tokens_read=read, seconds=time.monotonic() - began)

    def backward(self, rows: Sequence[Row], tell: Tell = lambda rows_seen: None) -> Seen:
        """Adds the batch loss's gradient to the parameters, pack by pack."""
        seen, done = Seen(self._device), 0
        batches = packs(self._share(rows), self._pack_tokens())
        for number, batch in enumerate(batches, 1):
            with self._alone() if number < len(batches) else nullcontext():
                pack = self._pack(batch)
                loss = self._loss(pack, seen)
                (loss * self.count).backward()  # type: ignore[no-untyped-call]
            done += len(batch)
            tell(done)
        seen.gather()
        return seen

    def _loss(self, pack: Pack, seen: Seen) -> Tensor:
        hyper = self._hyper
        scored: Scored = self._forward(pack.ids, pack.positions, pack.places, pack.temperatures)
        log_probs, entropy = scored
        now = log_probs.detach()
        if hyper.objective is Objective.SFT:
            per_token = -log_probs
            seen.add(pack.weights, per_token, entropy, now, pack.rollout)
            total: Tensor = (per_token * pack.weights).sum()
            return total
        own = now if pack.anchor is None else pack.anchor
        old = pack.rollout if hyper.correction is Correction.NONE else own
        corrected = correct(own, pack.rollout, hyper)
        out = clipped_policy_loss(log_probs, old, pack.advantages, clip_low=hyper.clip_low, clip_high=hyper.clip_high)
        per_token = out.per_token * corrected.weight
        penalty = base_penalty(log_probs, self._base_log_probs(pack)) if hyper.kl else None
        if penalty is not None:
            per_token = per_token + hyper.kl * penalty
        seen.add(pack.weights, per_token, entropy, own, pack.rollout, out, corrected, penalty)
        return (per_token * pack.weights).sum()

    def log_probs(self, rows: Sequence[Row]) -> list[LogProbs]:
        """The model's log probs of every row's trained tokens as it is now; whatever the learners, of all rows."""
        found: dict[str, LogProbs] = {}
        with torch.no_grad():
            for batch in packs(rows, self._pack_tokens()):
                pack = self._pack(batch)
                scored = self.scorer(pack.ids, pack.positions, pack.places, pack.temperatures)
                parts = scored.log_probs.float().cpu().split([len(row.places) for row in batch])
                found |= {row.sample_id: part.numpy() for row, part in zip(batch, parts, strict=True)}
        return [found[row.sample_id] for row in rows]

    def save(self, path: Path) -> None:
        """The weights and everything else of the model's directory."""
        if self.rank == 0:
            with saved.writing(path):
                self.scorer.save(path)

    def keep(self, path: Path) -> None:
        """What a later learner needs to go on as if nothing had happened."""
        if self.rank == 0:
            with saved.writing(path):
                saved.write(path, self.scorer.trained(), self._optimizer)

    def go_on(self, path: Path) -> None:
        saved.read(path, self.scorer.trained(), self._optimizer)

    def _share(self, rows: Sequence[Row]) -> list[Row]:
        # A learner without a row would leave the others waiting: it takes one that weighs nothing.
        return shares(rows, self.count)[self.rank] or [replace(rows[0], weight=0.0)]

    def _alone(self) -> AbstractContextManager[Any]:
        """Gradients stay here: they are exchanged once, with the last pack."""
        forward = self._forward
        return forward.no_sync() if isinstance(forward, torch.nn.parallel.DistributedDataParallel) else nullcontext()

    def _pack_tokens(self) -> int:
        return self._hyper.micro_tokens or MICRO_TOKENS[self._device.type]

    def _base_log_probs(self, pack: Pack) -> Tensor:
        with torch.no_grad(), nullcontext() if self._base else self.scorer.as_base():
            scorer = self._base or self.scorer
            scored: Tensor = scorer(pack.ids, pack.positions, pack.places, pack.temperatures).log_probs
            return scored

    def _pack(self, rows: Sequence[Row]) -> Pack:
        ids, positions = joined(rows)
        starts = np.cumsum([0, *(len(row.ids) for row in rows[:-1])])
        places = np.concatenate([row.places + start for row, start in zip(rows, starts, strict=True)])
        sizes = [len(row.places) for row in rows]

        def each(values: list[float]) -> Tensor:
            """A row's number, once for each of its trained tokens."""
            return self._tensor(np.repeat(np.asarray(values, dtype=np.float32), sizes))

        anchors = [row.anchor for row in rows if row.anchor is not None]
        return Pack(
            ids=self._tensor(ids),
            positions=self._tensor(positions) if len(rows) > 1 else None,
            places=self._tensor(places),
            temperatures=each([row.temperature for row in rows]),
            rollout=self._tensor(np.concatenate([row.rollout_log_probs for row in rows])),
            advantages=each([row.advantage for row in rows]),
            weights=each([row.weight for row in rows]),
            anchor=self._tensor(np.concatenate(anchors)) if anchors else None,
        )

    def _tensor(self, values: Any) -> Tensor:
        return torch.from_numpy(values).to(self._device)
