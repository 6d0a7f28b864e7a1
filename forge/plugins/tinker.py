"""An export for Tinker as ``Datum`` objects."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

DTYPES: Final = {"target_tokens": np.int64}
"""The others are float32. Tinker guesses no type for names that it does not know, ``mask`` among them."""


def datums(path: Path | str, *, mask: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each datum and what stands beside it (``reward``, ``weight``, ``session_id``...). ``mask``: leave it in; Tinker's
    own losses refuse it."""
    types: Any = import_module("tinker").types
    with Path(path).open("rb") as file:
        for line in file:
            row = msgspec.json.decode(line, type=dict[str, Any])
            made = row.pop("datum")
            inputs = {
                name: np.asarray(values, DTYPES.get(name, np.float32))
                for name, values in made["loss_fn_inputs"].items()
                if mask or name != "mask"
            }
            yield types.Datum(model_input=types.ModelInput.from_ints(made["tokens"]), loss_fn_inputs=inputs), row
