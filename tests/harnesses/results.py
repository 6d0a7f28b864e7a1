"""What a run of the matrix is asked for and leaves: all cells or the few of each change, and facts for the tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

EVERYTHING = os.environ.get("FORGE_HARNESS_TESTS") == "all"
NOT_HERE = ("zeroclaw", "command")
"""No program of their own can be installed."""


def keep(facts: dict[str, Any]) -> None:
    """Appends to the file that ``make test-harnesses`` names."""
    if (path := os.environ.get("FORGE_MATRIX_RESULTS")) is not None:
        with Path(path).open("a") as file:
            file.write(json.dumps(facts) + "\n")
