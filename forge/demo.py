"""The main job, once, small: sessions in a real harness, one optimisation step, sessions on the new weights.

Owns the demonstration's tasks, sizes and summary; each part is the one that ``forge run`` and ``forge train`` use. One
policy server and one proxy serve both rounds, so that the new weights reach a running server by publication.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.table import Table

from forge.overview import count
from forge.run import Watch, run
from forge.run_config import TRAINING_SAMPLING, RunConfig
from forge.run_report import RunReport
from forge.scratch import scratch as temporary
from forge.stack import serving
from forge.storage.dataset import Dataset
from forge.storage.errors import ForgeError, Untrainable
from forge.storage.records import Call, CallStatus
from forge.tasks import Grader, Task
from forge.trainer.config import Hyper, TrainConfig

PROMPT: Final = "Say in one plain sentence what the weather is like on a sunny day."
GRADER: Final = Grader(python="forge.demo_grader:plain_words")
MAX_TOKENS: Final = 40
LEARNING_RATE: Final = 2e-6
DECODER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """One round of sessions and what the dataset holds of it."""

    title: str
    report: RunReport
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class Outcome:
    rounds: list[Round]
    version: int
    digest: str


async def run_demo(config: RunConfig, watch: Watch) -> Outcome:
    """Raises ``ForgeError`` where a part fails; ``config`` names the harness, the data directory and the sizes."""
    from forge.trainer.loop import train

    task = Task(id="weather", prompt=PROMPT, grader=GRADER, row={"id": "weather"})
    config = replace(config, tasks=(task,), sampling={**TRAINING_SAMPLING, "max_tokens": MAX_TOKENS})
    with temporary("demo") as scratch:
        async with serving(config, scratch, watch.say) as control:
            token = config.data / "control.token"
            there = replace(config, policy=None, control=control.url, control_token_file=token)
            watch.say("1 of 3: sessions on the model as it comes")
            before = await _round("before", replace(there, run_id="before"), watch)
            watch.say("2 of 3: one optimisation step, new weights published to the running server")
            learning = TrainConfig(
                data=config.data,
                runs=("before",),
                hyper=Hyper(lr=LEARNING_RATE),
                control=control.url,
                control_token_file=token,
            )
            trained = await asyncio.to_thread(train, learning, watch.say)
            watch.say("3 of 3: sessions on the new weights")
            after = await _round("after", replace(there, run_id="after"), watch)
    return Outcome([before, after], trained.version, trained.digest)


async def _round(title: str, config: RunConfig, watch: Watch) -> Round:
    report = await run(config, watch)
    if report.exit_code:
        failed = next((s for s in report.sessions if s.error), report.sessions[0])
        raise ForgeError(
            f"round {title!r}: session {failed.session_id} ended as {failed.status}: {failed.error}",
            f"its output is in {failed.kept}",
        )
    await _decoded(report)
    return Round(title, report, list(Dataset(report.data).calls(report.run_id)))


async def _decoded(report: RunReport) -> None:
    """Until the decoder has written what the sessions' closing gave back."""
    expected = sum(s.rows for s in report.sessions)
    async with asyncio.timeout(DECODER_S):
        while sum(c.rows for c in count(Dataset(report.data), report.run_id).values()) < expected:
            await asyncio.sleep(0.2)  # another process writes; its files are the signal


def check(outcome: Outcome) -> None:
    """What the demonstration promises, counted in the dataset. Raises ``Untrainable`` where it does not hold."""
    for number, each in enumerate(outcome.rounds):
        expected = outcome.version - 1 + number
        for call in each.calls:
            if call.status == CallStatus.OK and call.policy_version_start != expected:
                raise Untrainable(f"call {call.call_id} has version {call.policy_version_start}, not {expected}")
    served = {c.weight_digest for c in outcome.rounds[1].calls if c.status == CallStatus.OK}
    if served != {outcome.digest}:
        raise Untrainable(f"calls of the second round carry digests {served}, not {outcome.digest}")


def table(outcome: Outcome) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("round", "version", "sessions", "calls", "sampled tokens", "mean reward", "rewards"):
        shown.add_column(name, justify="left" if name in ("round", "rewards") else "right")
    for each in outcome.rounds:
        rewards = [s.reward for s in each.report.sessions if s.reward is not None]
        versions = sorted({c.policy_version_start for c in each.calls if c.policy_version_start is not None})
        shown.add_row(
            *(each.title, ",".join(map(str, versions)), str(len(each.report.sessions)), str(len(each.calls))),
            str(sum(len(c.output_ids) for c in each.calls)),
            f"{statistics.fmean(rewards):.3f}" if rewards else "-",
            " ".join(f"{r:.2f}" for r in rewards),
        )
    return shown


def summary(outcome: Outcome, harness: str, data: Path) -> str:
    first, second = outcome.rounds
    tokens = sum(int(s.response_mask.sum()) for s in Dataset(data).samples("before"))
    return (
        f"{harness} ran {len(first.report.sessions)} sessions on the model as it comes. Each call was recorded with "
        "its token ids, log probabilities and policy version. "
        f"A trainer on Ray took one step from {tokens} sampled tokens and published version {outcome.version} "
        f"(digest {outcome.digest[:12]}) to the running server; {harness} ran {len(second.report.sessions)} sessions "
        "on it. One step on a 135M model shows that the line is closed, not that anything was learned.\n\n"
        f"The dataset is in {data}. Look at it: forge sessions --data {data}"
    )
