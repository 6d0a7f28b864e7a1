"""A radix tree over token ids: longest common prefix and longest contained sequence, in time linear in the tokens.

Owns nothing but numbers: what a sequence is, and whether a match means anything, is the caller's business. Sequences
share their common prefixes, so memory grows with the *new* tokens of each one. The one non-obvious fact: a sequence may
end in the middle of an edge. One that goes on from the last makes that one's edge longer instead of adding another, so
a session's hundreds of calls are one edge, compared in one go, until one of them parts from it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from forge.storage.records import Ids

_ID: Final = 4
"""Bytes of one id. Sizes and places are bytes, counts and lengths ids."""


class Edge:
    """A run of ids that no known sequence leaves in its middle, though some may end there."""

    __slots__ = ("children", "ends", "ids", "parent", "start")

    def __init__(self, ids: bytes | bytearray, parent: Edge | None, start: int) -> None:
        self.ids = bytearray(ids)
        """As int32, one behind the other."""
        self.parent = parent
        self.start = start
        """Bytes before it, from the root on."""
        self.children: dict[bytes, Edge] = {}
        """By their first id."""
        self.ends: list[tuple[int, int]] = []
        """Where sequences end that asked to be found as a whole, and their numbers; in order."""

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)


class Match(NamedTuple):
    size: int
    """Bytes in common with the nearest known sequence."""
    edge: Edge
    """Where the match ends; the root if there is none."""

    @property
    def length(self) -> int:
        """The same in ids."""
        return self.size // _ID

    def ends(self) -> Iterator[int]:
        """Known sequences that are whole prefixes of the ids asked for, longest first."""
        edge: Edge | None = self.edge
        while edge is not None:
            for stop, number in reversed(edge.ends):
                if stop <= self.size:
                    yield number
            edge = edge.parent


class _End(NamedTuple):
    stop: int
    edge: Edge
    """Where the sequence ends, or an edge below: a split keeps the lower edge's identity."""


class PrefixTree:
    """Sequences have the numbers 0, 1, 2, ... in the order in which they were inserted."""

    def __init__(self) -> None:
        self._root = Edge(b"", None, 0)
        self._sequences: list[_End] = []

    def match(self, ids: bytes, count: int) -> Match:
        """Of the first ``count`` ids."""
        edge, at, size = self._root, 0, count * _ID
        while at < size and (child := edge.children.get(ids[at : at + _ID])) is not None:
            edge, stop = child, at + len(child.ids)
            if stop > size or not ids.startswith(child.ids, at):
                return Match(at + _common(child.ids, ids, at, size), child)
            at = stop
        return Match(at, edge)

    def insert(self, ids: bytes, match: Match, *, findable: bool) -> None:
        """Adds a sequence; ``findable`` ones are named by ``Match.ends``. ``match``: of its beginning."""
        edge, at = match.edge, match.size
        while True:
            at += _common(edge.ids, ids, at, len(ids), at - edge.start)
            if at == len(ids):
                break
            if at < edge.stop:
                edge = _split(edge, at)
            child = edge.children.get(ids[at : at + _ID])
            if child is None:
                edge = _grown(edge, ids, at)
                break
            edge = child
        if findable:
            insort(edge.ends, (len(ids), len(self._sequences)))
        self._sequences.append(_End(len(ids), edge))

    def shares(self, number: int, match: Match) -> bool:
        """Has the sequence all in common that the match has?"""
        stop, here = self._sequences[number]
        if not match.size or stop < match.size:
            return not match.size
        while here.start > match.edge.start and here.parent is not None:
            here = here.parent
        return here is match.edge

    def latest(self, match: Match) -> int | None:
        """Of the sequences that share the match, the last one inserted. None where nothing is shared."""
        numbers = range(len(self._sequences) - 1, -1, -1) if match.size else ()
        return next((number for number in numbers if self.shares(number, match)), None)

    def same(self, a: int, b: int) -> bool:
        """Are two sequences the same ids?"""
        return self._sequences[a].stop == self._sequences[b].stop and self._last_edge(a) is self._last_edge(b)

    def _last_edge(self, number: int) -> Edge:
        stop, edge = self._sequences[number]
        while edge.start >= stop and edge.parent is not None:
            edge = edge.parent
        return edge


def packed(*ids: Ids) -> bytes:
    """The bytes of these ids, one behind the other."""
    return b"".join(np.ascontiguousarray(some, dtype=np.int32).data for some in ids)


def _common(run: bytearray, ids: bytes, at: int, size: int, skip: int = 0) -> int:
    """Bytes of whole ids that ``run``, less its first ``skip`` bytes, has in common with those of ``ids`` that stand at
    ``at``, of which there are ``size`` in all."""
    count = min(len(run) - skip, size - at) // _ID
    if not count:
        return 0
    differs = np.frombuffer(run, np.int32, count, skip) != np.frombuffer(ids, np.int32, count, at)
    first = int(differs.argmax())
    return _ID * (first if differs[first] else count)


def _grown(edge: Edge, ids: bytes, at: int) -> Edge:
    """What follows ``edge``, from ``at`` on: the edge itself, where nothing else follows it."""
    if edge.children or edge.parent is None:
        child = edge.children[ids[at : at + _ID]] = Edge(ids[at:], edge, at)
        return child
    edge.ids += memoryview(ids)[at:]
    return edge


def _split(edge: Edge, at: int) -> Edge:
    """Puts a new edge above ``edge`` that ends at ``at``, and gives that."""
    parent, kept = edge.parent, at - edge.start
    assert parent is not None
    upper = Edge(edge.ids[:kept], parent, edge.start)
    upper.children[bytes(edge.ids[kept : kept + _ID])] = edge
    parent.children[bytes(edge.ids[:_ID])] = upper
    upper.ends = [end for end in edge.ends if end[0] <= at]
    edge.ends = edge.ends[len(upper.ends) :]
    edge.ids, edge.parent, edge.start = edge.ids[kept:], upper, at
    return upper
