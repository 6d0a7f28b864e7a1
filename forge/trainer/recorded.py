"""The rows of runs that were recorded: the source of offline training."""

from __future__ import annotations

from dataclasses import replace

from forge.storage.dataset import Dataset, existing
from forge.storage.errors import BadInput, Untrainable
from forge.storage.records import Sample
from forge.trainer.config import TrainConfig
from forge.trainer.gate import require_sound, why_no_samples


def read_samples(config: TrainConfig) -> list[Sample]:
    """The runs' rows, each with its session's latest reward: a grader may have changed it after they were written."""
    data = Dataset(existing(config.data))
    known = data.runs()
    if missing := sorted(set(config.runs) - set(known)):
        raise BadInput(f"{config.data} has no run {missing[0]!r}", f"it has: {', '.join(known) or 'none'}")
    samples: list[Sample] = []
    for run in config.runs or known:
        latest = {session.session_id: session for session in data.sessions(run)}
        for sample in data.samples(run, config.recipe):
            session = latest.get(sample.session_id)
            if session is not None:
                sample = replace(sample, reward=session.reward, reward_status=session.reward_status)
            samples.append(sample)
    if data.damaged:
        raise BadInput(
            f"{data.damaged[0].path} cannot be read: {data.damaged[0].reason} ({len(data.damaged)} damaged)",
            "repair it with: forge decode --rebuild, or leave its run out with --run",
        )
    runs = config.runs or known
    if not samples:
        raise Untrainable(
            f"{config.data} has no samples in the runs asked for ({', '.join(runs) or 'none'}); "
            f"their calls: {why_no_samples(data, runs)}",
            "calls need token ids and log probs, and closed sessions: forge run --help",
        )
    if not config.unverified:
        require_sound(data, runs, config.recipe)
    return samples
