"""Forge in slime and miles: a generate function, a reward post-process, and a rollout function that replays an export.

``--custom-generate-function-path forge.plugins.slime.generate`` with ``--custom-reward-post-process-path
forge.plugins.slime.rewards``, or ``--rollout-function-path forge.plugins.slime.replay``. Settings are the names of
``Settings`` with ``forge_`` before them, in the file of ``--custom-config-path``; ``forge_export`` is the file to
replay. slime is on no registry: written against the fields of its ``Sample`` by name, which the tests hold.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.adapters.trainers import slime as fields
from forge.adapters.trainers.rows import Needs
from forge.plugins.episodes import Asked, Episodes
from forge.plugins.settings import Settings, prompt_text
from forge.storage.errors import BadInput

NEEDS: Final = Needs(group=False)
PREFIX: Final = "forge_"
EXPORT: Final = "export"
RENAMED: Final = {"max_new_tokens": "max_tokens"}
"""SGLang's word for it."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> list[Any]:
    """One session; a sample for each of its rows, which share ``rollout_id``. A session that failed is one sample,
    aborted and taken out of the loss."""
    settings = settings_of(args, evaluation=evaluation)
    task_id = (sample.metadata or {}).get("task_id")
    task = settings.task(None if task_id is None else str(task_id), prompt_text(sample.prompt))
    asked = {RENAMED.get(name, name): value for name, value in sampling_params.items()}
    per_group = max(1, int(getattr(args, "n_samples_per_prompt", 1) or 1))
    group = f"{settings.run_id}/{sample.group_index if sample.group_index is not None else task.id}"
    async with Episodes(settings, NEEDS) as episodes:
        episode = await episodes.one(Asked(task, group, int(sample.index or 0) % per_group), asked)
    made = [_filled(sample, fields.sample(row)) for row in episode.rows]
    return made or [_failed(sample, episode.report.status.value)]


def rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, for the log, and advantages: sessions are compared, not samples. A missing reward is NaN in the log
    and 0 in the advantages; it is in no group's mean."""
    found = [None if sample.remove_sample else sample.get_reward_value(args) for sample in samples]
    groups = [sample.group_index for sample in samples]
    rollouts = [_rollout(sample) for sample in samples]
    return [math.nan if value is None else value for value in found], fields.advantages(found, groups, rollouts)


def replay(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's rollout function on an export of ours: its groups, ``rollout_batch_size`` of them a step."""
    path = getattr(args, PREFIX + EXPORT, None)
    if path is None:
        raise BadInput("there is nothing to replay", f"name the export in {PREFIX}{EXPORT} of --custom-config-path")
    types: Any = import_module("slime.utils.types")
    outputs: Any = import_module("slime.rollout.base_types")
    groups: dict[int, list[Any]] = defaultdict(list)
    with Path(path).open("rb") as file:
        for line in file:
            row = fields.with_experts(msgspec.json.decode(line, type=dict[str, Any]))
            groups[row["group_index"]].append(types.Sample.from_dict(row))
    size = int(args.rollout_batch_size)
    first = rollout_id * size
    chosen = list(groups.values())[first : first + size]
    if not chosen:
        raise BadInput(
            f"{path} has {len(groups)} groups; step {rollout_id} begins at group {first}",
            "end the training earlier, or export more sessions",
        )
    return outputs.RolloutFnTrainOutput(samples=chosen)


def settings_of(args: Any, *, evaluation: bool) -> Settings:
    told = {name[len(PREFIX) :]: value for name, value in vars(args).items() if name.startswith(PREFIX)}
    told.pop(EXPORT, None)
    return Settings.of({**told, **({"purpose": "eval"} if evaluation else {})})


def _filled(sample: Any, values: dict[str, Any]) -> Any:
    """A copy with our fields; slime's own of a sample (group, index, label) stay."""
    made = copy.deepcopy(sample)
    metadata = {**(sample.metadata or {}), **values.pop("metadata")}
    values.pop("prompt")
    status = type(sample).Status(values.pop("status"))
    for name, value in {**values, "metadata": metadata, "status": status, "rollout_id": _rollout(sample)}.items():
        setattr(made, name, value)
    return made


def _failed(sample: Any, why: str) -> Any:
    """Two ids that nothing trains: slime wants a sequence."""
    made = copy.deepcopy(sample)
    values: dict[str, Any] = {
        "tokens": [0, 0], "response": "", "response_length": 1, "loss_mask": [0], "rollout_log_probs": [0.0],
        "reward": None, "remove_sample": True, "status": type(sample).Status("aborted"),
        "metadata": {**(sample.metadata or {}), "forge_status": why}, "rollout_id": _rollout(sample),
    }  # fmt: skip
    for name, value in values.items():
        setattr(made, name, value)
    return made


def _rollout(sample: Any) -> Any:
    """slime counts out ``index`` over all it asks for; a sample of an export has a number of its own."""
    told = getattr(sample, "rollout_id", None)
    return sample.index if told is None else told
