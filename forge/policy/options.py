"""What the embedded server is started with. Apart from ``server`` so that reading options loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path
    name: str
    slots: int = 8
    max_model_len: int | None = None
    prefix_cache_bytes: int = 1 << 30
    key: str | None = None
    version: str = "0"
    lineage: str = "default"
