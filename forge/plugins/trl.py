"""Forge in TRL's ``GRPOTrainer``: its ``rollout_func``, and the reward that goes with it.

``GRPOTrainer(rollout_func=rollout_func(settings), reward_funcs=recorded_reward, ...)``. For ``AsyncGRPOTrainer`` see
``trl_worker`` and ``trl_trace``. The non-obvious fact: TRL gives a rollout function prompts and nothing else, each
repeated ``num_generations`` times in a row, so a task is found by its prompt and a group by its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from forge.adapters.trainers import trl as fields
from forge.adapters.trainers.rows import Needs, Row
from forge.plugins.episodes import Asked, Episodes, blocking
from forge.plugins.settings import Settings, prompt_text
from forge.storage.records import Purpose

log = logging.getLogger(__name__)

NEEDS: Final = Needs(group=False)

RolloutFunc = Callable[[list[Any], Any], dict[str, list[Any]]]


def rollout_func(settings: Settings | Mapping[str, Any]) -> RolloutFunc:
    """One session per prompt, in their order."""
    told = settings if isinstance(settings, Settings) else Settings.of(settings)

    def rollouts(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        training = bool(trainer.model.training)
        mine = told if training else replace(told, purpose=Purpose.EVAL.value)
        size = trainer.num_generations if training else trainer.num_generations_eval
        place = f"{told.run_id}/step{trainer.state.global_step}/process{trainer.accelerator.process_index}"
        wanted = [
            Asked(mine.task(None, prompt_text(prompt)), f"{place}/{at // size}", at % size)
            for at, prompt in enumerate(prompts)
        ]
        sessions = blocking(_sessions(mine, wanted, sampling(trainer)))
        made = fields.rollouts(sessions, pad_id=trainer.processing_class.pad_token_id or 0)
        if left := sum(made["rows_left_out"]):
            log.warning("%d rows left out: GRPOTrainer takes one completion per prompt", left)
        return made

    return rollouts


def recorded_reward(completions: Sequence[Any], *, reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """The graders' rewards, as ``rollout_func`` hands them on; None is unscorable: TRL leaves it out of its group."""
    return list(reward)


def sampling(trainer: Any) -> dict[str, Any]:
    """TRL's own, by vLLM's names; what is off is not named."""
    names = ("temperature", "top_p", "min_p", "repetition_penalty")
    found = {name: getattr(trainer, name, None) for name in names}
    top_k = getattr(trainer, "top_k", None)
    return {**found, "top_k": top_k if top_k and top_k > 0 else None}


async def _sessions(settings: Settings, wanted: Sequence[Asked], asked: Mapping[str, Any]) -> list[Sequence[Row]]:
    async with Episodes(settings, NEEDS) as episodes:
        return [episode.rows for episode in await episodes.many(wanted, asked)]
