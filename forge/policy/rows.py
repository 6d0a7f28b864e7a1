"""KV rows: the keys and values of one token sequence, and the cache that keeps finished ones for their prefixes.

A row knows the ids it holds. A new prompt starts from the row, running or idle, that shares the longest prefix: taken
over when next to nothing would be lost, else copied. Not obvious: idle rows *are* the prefix cache, so keeping one
costs no copy; they are capped in bytes, least recently used first, and dropped when the weights change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from forge.policy.llama import Shape

GROW = 512
"""Tokens a row grows by at least: growing copies it, 46 KB a token for the default model."""
KEEP_TAIL = 64
"""Ids of an idle row that may be overwritten rather than copied aside: recomputing them is cheaper than the copy."""


class Row:
    """KV of one sequence, [layers, keys or values, kv_heads, capacity, head_dim]."""

    __slots__ = ("ids", "kv", "limit", "shape")

    def __init__(self, shape: Shape, capacity: int, limit: int) -> None:
        self.shape = shape
        self.limit = limit
        self.ids: list[int] = []
        self.kv = self._empty(capacity)

    def _empty(self, capacity: int) -> Tensor:
        capacity = min(self.limit, -(-capacity // GROW) * GROW)
        return torch.empty(self.shape.layers, 2, self.shape.kv_heads, capacity, self.shape.head_dim)

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def keys(self, layer: int) -> Tensor:
        return self.kv[layer, 0]

    def values(self, layer: int) -> Tensor:
        return self.kv[layer, 1]

    def reserve(self, length: int) -> None:
        if length <= self.kv.shape[3]:
            return
        grown = self._empty(max(length, self.kv.shape[3] * 3 // 2))
        grown[:, :, :, : self.length] = self.kv[:, :, :, : self.length]
        self.kv = grown

    def copy_prefix(self, source: Row, length: int) -> None:
        self.kv[:, :, :, :length] = source.kv[:, :, :, :length]
        self.ids = source.ids[:length]


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix; whole slices are compared first, in C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass
class RowCache:
    """Hands out rows and keeps idle ones. Not thread-safe: the scheduler's thread owns it."""

    shape: Shape
    max_len: int
    max_bytes: int
    idle: list[Row] = field(default_factory=list)
    """Least recently used first."""
    running: list[Row] = field(default_factory=list)

    def fresh(self, length: int) -> Row:
        """A row, now running, that shares nothing with any other."""
        row = Row(self.shape, min(length, self.max_len), self.max_len)
        self.running.append(row)
        return row

    def take(self, prompt: list[int], room: int) -> Row:
        """A row, now running, that holds as much of ``prompt`` as is known, but for its last id."""
        best, shared = None, 0
        for row in self.idle + self.running:
            length = min(common_prefix(row.ids, prompt), len(prompt) - 1)
            if length >= shared and length > 0:
                best, shared = row, length
        if best is not None and best in self.idle and best.length - shared <= KEEP_TAIL:
            self.idle.remove(best)
            del best.ids[shared:]
            row = best
        else:
            row = Row(self.shape, min(len(prompt) + room, self.max_len), self.max_len)
            if best is not None:
                row.copy_prefix(best, shared)
        self.running.append(row)
        return row

    def give_back(self, row: Row) -> None:
        self.running.remove(row)
        if row.ids:
            self.idle.append(row)
        self.trim()

    def trim(self) -> None:
        while self.idle and sum(row.nbytes for row in self.idle) > self.max_bytes:
            self.idle.pop(0)

    def clear(self) -> None:
        """Forget every idle row: after new weights their KV is of another model."""
        self.idle.clear()
