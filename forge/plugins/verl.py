"""Forge in verl: an agent loop that runs a harness, and a manager that makes verl's servers our pool.

Named in verl's configuration: ``forge.plugins.verl.ForgeAgentLoop`` as ``_target_`` in the file of
``agent.agent_loop_config_path``, ``forge.plugins.verl.ForgeAgentLoopManager`` as ``agent.agent_loop_manager_class``.
For verl's V1 trainers, which take several outputs of one session. The classes are made when first named, so that this
module loads without verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from forge.adapters.trainers import verl as fields
from forge.adapters.trainers.rows import Needs
from forge.client import ControlClient
from forge.plugins.episodes import Asked, Episodes, blocking
from forge.plugins.settings import Settings, prompt_text
from forge.storage.errors import BadInput

NEEDS: Final = Needs(group=False)
STEPS: Final = ("min_global_steps", "max_global_steps")


async def outputs(settings: Settings, sampling: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The session of one dataset row of verl's, as arguments of ``AgentLoopOutput``: one for each of its rows, none if
    it failed. Where the policy server tells no version, verl's own step stands in."""
    info = row.get("extra_info") or {}
    task_id = row.get("task_id", info.get("task_id"))
    task = settings.task(None if task_id is None else str(task_id), prompt_text(row["raw_prompt"]))
    async with Episodes(settings, NEEDS) as episodes:
        episode = await episodes.one(Asked(task, str(row["uid"]), int(row.get("session_id", 0))), sampling)
    made = [fields.output(each) for each in episode.rows]
    for output in made:
        for name in STEPS:
            if output["extra_fields"][name] is None and row.get("global_steps") is not None:
                output["extra_fields"][name] = int(row["global_steps"])
        output["metrics"] = {"generate_sequences": episode.report.seconds if output is made[-1] else 0.0}
    return made


async def announce(settings: Settings, addresses: list[str], version: int | None) -> None:
    """Makes ``addresses`` the pool, and tells the version that they serve: verl loads the weights itself."""
    async with ControlClient.from_token_file(settings.control, Path(settings.control_token_file)) as client:
        wanted = {address if "://" in address else f"http://{address}" for address in addresses}
        known = {upstream["url"] for upstream in await client.upstreams()}
        for url in sorted(wanted - known):
            await client.add_upstream(url)
        for url in sorted(known - wanted):
            await client.remove_upstream(url)
        if version is not None:
            await client.publish(version=version, by_trainer=True)


def load(path: Path | str, *, prompt_length: int, response_length: int, pad_id: int) -> Any:
    """An export as verl's padded ``DataProto``, its rows in order."""
    proto: Any = import_module("verl").DataProto
    torch: Any = import_module("torch")
    tensors, labels = fields.read(
        Path(path), prompt_length=prompt_length, response_length=response_length, pad_id=pad_id
    )
    return proto.from_dict(
        tensors={name: torch.from_numpy(array) for name, array in tensors.items()},
        non_tensors={name: np.array(values, dtype=object) for name, values in labels.items()},
    )


def settings_in(path: str) -> Settings:
    """Those of our agent loop in verl's agent loop file."""
    omegaconf = import_module("omegaconf").OmegaConf
    for entry in omegaconf.to_container(omegaconf.load(path)):
        if str(entry.get("_target_", "")).startswith(f"{__name__}."):
            return Settings.of(entry["settings"])
    raise BadInput(f"{path} names no agent loop of {__name__}", "see docs/trainers.md")


def first_step(batch: Any) -> int | None:
    """``global_steps`` of a batch: a number, or one per row."""
    if "global_steps" not in batch:
        return None
    value = batch["global_steps"]
    return int(np.asarray(getattr(value, "data", value)).reshape(-1)[0])


@cache
def _agent_loop() -> type:
    theirs: Any = import_module("verl.experimental.agent_loop.agent_loop")

    class ForgeAgentLoop(theirs.AgentLoopBase):  # type: ignore[misc]
        def __init__(self, *args: Any, settings: Mapping[str, Any], **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._settings = Settings.of(dict(settings))

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[Any]:
            made = await outputs(self._settings, sampling_params, row)
            return [
                theirs.AgentLoopOutput(**{**output, "metrics": theirs.AgentLoopMetrics(**output["metrics"])})
                for output in made
            ]

    return _named(ForgeAgentLoop)


@cache
def _manager() -> type:
    theirs: Any = import_module("verl.trainer.ppo.v1.agent_loop_tq")
    ray: Any = import_module("ray")

    class ForgeAgentLoopManager(theirs.AgentLoopManagerTQ):  # type: ignore[misc]
        def generate_sequences(self, prompts: Any) -> Any:
            """verl has loaded the step's weights when it calls this."""
            settings = settings_in(self.rollout_config.agent.agent_loop_config_path)
            addresses = ray.get(self.llm_client._load_balancer.get_all_servers.remote())
            blocking(announce(settings, addresses, first_step(prompts)))
            return super().generate_sequences(prompts)

    return _named(ForgeAgentLoopManager)


def _named(made: type) -> type:
    """Found again by its dotted path, as pickling by Ray does."""
    made.__qualname__ = made.__name__
    return made


def __getattr__(name: str) -> Any:
    if name == "ForgeAgentLoop":
        return _agent_loop()
    if name == "ForgeAgentLoopManager":
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
