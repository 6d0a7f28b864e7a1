"""Tinker: the parts of its ``Datum`` as JSON lines; ``forge.plugins.tinker.datums`` builds them.

Inputs are the ids but the last, targets the ids but the first, and all that belongs to a target is shifted with it.
The non-obvious fact: Tinker adds up over tokens, so ``weight`` stands beside the datum for who wants every session to
count alike; the advantage is given as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import write_lines
from forge.adapters.trainers.rows import Needs, Row


class Tinker:
    name = "tinker"
    needs = Needs(advantage=True)
    suffix = ".jsonl"
    caution = None

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_lines(path, ({"datum": datum(row), "reward": row.reward, **row.place()} for row in rows))
        return Counter()


def datum(row: Row) -> dict[str, Any]:
    """``tokens`` for ``ModelInput.from_ints``, and ``loss_fn_inputs``. ``mask`` is for the client's own sums: it is
    taken out before the policy-gradient losses, which read it in the zero advantages."""
    assert row.advantage is not None, "asked for"
    ids, mask = row.ids, row.mask[1:]
    return {
        "tokens": ids[:-1].tolist(),
        "loss_fn_inputs": {
            "target_tokens": ids[1:].tolist(),
            "logprobs": row.whole_log_probs()[1:].tolist(),
            "advantages": np.where(mask == 1, row.advantage, 0.0).tolist(),
            "mask": mask.astype(float).tolist(),
        },
    }
