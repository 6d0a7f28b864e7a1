"""Who is measured, in which order, and how all of them are started; who cannot be here is a missing row.

The one non-obvious fact: every round visits every target, and each round in the reverse order of the one before, so
that a machine that warms up or is disturbed favours none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.burst import Burst, Failed
from bench.figures import Figures
from bench.setting import Missing, Setting
from bench.targets.base import Running, Start
from bench.targets.direct import direct
from bench.targets.nginx import nginx
from bench.targets.ours import ours
from bench.targets.peers import litellm, rllm_gateway, sglang_router, vllm_router

TARGETS: Final[Mapping[str, Start]] = {
    "direct": direct,
    "nginx": nginx,
    "ours": ours,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "rllm": rllm_gateway,
    "litellm": litellm,
}


@contextmanager
def lineup(set_: Setting, port: int, figures: Figures, names: tuple[str, ...]) -> Iterator[list[Running]]:
    """The targets of ``names`` that are wanted and can be had, before the policy server on ``port``."""
    with ExitStack() as stack:
        running: list[Running] = []
        for name in names:
            if not set_.wants(name):
                continue
            try:
                running.append(stack.enter_context(TARGETS[name](set_, port)))
            except (Missing, TimeoutError) as error:
                figures.note(f"no row for {name}: {error}")
        yield running


def bursts(
    set_: Setting, running: list[Running], figures: Figures, what: str, measure: Callable[[Running], list[Burst]]
) -> dict[str, list[list[Burst]]]:
    """For each target, what ``measure`` finds in each round. A target that fails once has no row."""
    found: dict[str, list[list[Burst]]] = {target.name: [] for target in running}
    for number in range(set_.rounds):
        set_.say(f"{what}, round {number + 1} of {set_.rounds}")
        for target in running[:: 1 if number % 2 else -1]:
            if target.name in found:
                try:
                    found[target.name].append(measure(target))
                except Failed as error:
                    figures.note(f"no row of {what}: {error}")
                    del found[target.name]
    return found
