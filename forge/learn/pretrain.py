"""What a language model knows before anybody shows it a session; here: requests, and the calls that may follow them.

Text costs nothing, so no line comes twice and none is learned by heart: what is learned is to copy a name and to write
a call. Most calls are the right ones. So the policy can do the task before the teacher's habits cover that up, as a
large model can before its own; knows neither harness nor recording.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from forge.learn.sizes import Sizes
from forge.learn.small import END, MICRO_TOKENS, PARAMETERS, make
from forge.learn.tasks import Instance, asked, call, habit, instances
from forge.policy.template import Text
from forge.trainer.batch import Row
from forge.trainer.config import Hyper, Objective
from forge.trainer.learner import Learner

RIGHT_SHARE: Final = 0.7
"""Of the text's calls; the three other tools share the rest."""
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": tool.value, "parameters": {"properties": {name: {} for name in names}}}}
    for tool, names in PARAMETERS.items()
]


def pretrain(folder: Path, sizes: Sizes) -> Path:
    """A model directory: random weights that have read their text."""
    model = make(folder / "random", 0)
    text, draws, lines = Text(model), random.Random(0), instances(2, held_out=False)
    for number, (steps, lr) in enumerate(sizes.text_rounds, 1):
        learner = Learner(model, Hyper(objective=Objective.SFT, lr=lr, micro_tokens=MICRO_TOKENS))
        learner.load()
        torch.set_num_threads(1)  # a pack is too small to be shared out
        for _ in range(steps):
            learner.step([_row(text, draws, each, sizes.text_rows) for each in islice(lines, sizes.text_rows)])
        model = folder / f"round-{number}"
        learner.save(model)
    return model


def _row(text: Text, draws: random.Random, instance: Instance, rows: int) -> Row:
    """A request and a call, the call to be learned; ``rows``: of the step."""
    named = asked(instance.prompt)
    assert named is not None
    prompt = text.encode(text.render([{"role": "user", "content": instance.prompt, "tool_calls": []}], TOOLS))
    said = text.encode(call(habit(draws, instance.request, right=RIGHT_SHARE), named) + END)
    ids = np.asarray(prompt + said, dtype=np.int32)
    return Row(
        sample_id=instance.prompt,
        ids=ids,
        places=np.arange(len(prompt), len(ids)),
        rollout_log_probs=np.full(len(said), np.nan, dtype=np.float32),  # nobody sampled it
        temperature=1.0,
        advantage=1.0,
        weight=1.0 / (rows * len(said)),
    )
