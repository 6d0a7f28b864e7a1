"""A radix tree over token ids: longest common prefix and longest contained sequence, in time linear in the tokens.

Owns nothing but numbers: what an owner is, and whether a match means anything, is the caller's business. Sequences
share their common prefixes, so memory grows with the *new* tokens of each one. A split keeps the lower edge's
identity, so an edge returned by ``insert`` stays the end of its sequence for ever. The one non-obvious fact: edges
hold bytes, because a long session's sequences run through hundreds of edges, and a prefix of bytes is compared
without making an array of it first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from forge.storage.records import Ids

_ID: Final = 4
"""Bytes of one id."""


class Edge:
    """A run of ids that no known sequence leaves in its middle."""

    __slots__ = ("children", "ends", "ids", "owner", "parent")

    def __init__(self, ids: bytes, parent: Edge | None, owner: int) -> None:
        self.ids = ids
        """As int32, one behind the other."""
        self.parent = parent
        self.owner = owner
        """The latest sequence that runs through here."""
        self.children: dict[bytes, Edge] = {}
        """By their first id."""
        self.ends: list[int] = []
        """Sequences that end with this edge and asked to be found as a whole, in order of insertion."""

    def runs_through(self, edge: Edge) -> bool:
        """Does the sequence that ends here run through ``edge``?"""
        here: Edge | None = self
        while here is not None and here is not edge:
            here = here.parent
        return here is edge


class Match(NamedTuple):
    length: int
    """Ids in common with the nearest known sequence."""
    edge: Edge
    """Where the match ends; the root if ``length`` is 0."""
    ends: list[int]
    """Known sequences that are whole prefixes of the ids asked for, shortest first."""


class PrefixTree:
    def __init__(self) -> None:
        self._root = Edge(b"", None, -1)

    def match(self, ids: Ids) -> Match:
        asked = _bytes(ids)
        edge, depth, ends = self._root, 0, []
        while (child := edge.children.get(asked[depth : depth + _ID])) is not None:
            edge = child
            if not asked.startswith(child.ids, depth):
                depth += _common(child.ids, asked, depth)
                break
            depth += len(child.ids)
            ends += child.ends
        return Match(depth // _ID, edge, ends)

    def insert(self, ids: Ids, owner: int, *, findable: bool) -> Edge:
        """Adds a sequence; ``findable`` ones are named in ``Match.ends``."""
        added = _bytes(ids)
        edge, depth = self._root, 0
        while depth < len(added):
            first = added[depth : depth + _ID]
            child = edge.children.get(first)
            if child is None:
                child = edge.children[first] = Edge(added[depth:], edge, owner)
            elif not added.startswith(child.ids, depth):
                child = _split(child, edge, _common(child.ids, added, depth))
            child.owner = owner
            edge, depth = child, depth + len(child.ids)
        if findable:
            edge.ends.append(owner)
        return edge


def _bytes(ids: Ids) -> bytes:
    return np.ascontiguousarray(ids, dtype=np.int32).tobytes()


def _common(run: bytes, asked: bytes, at: int) -> int:
    """Bytes of whole ids that ``run`` has in common with what stands at ``at``."""
    size = min(len(run), len(asked) - at) // _ID
    differs = np.frombuffer(run, np.int32, size) != np.frombuffer(asked, np.int32, size, at)
    first = int(differs.argmax())
    return _ID * (first if differs[first] else size)


def _split(edge: Edge, parent: Edge, at: int) -> Edge:
    """Puts a new edge above ``edge`` that ends after its first ``at`` bytes."""
    upper = Edge(edge.ids[:at], parent, edge.owner)
    upper.children[edge.ids[at : at + _ID]] = edge
    parent.children[edge.ids[:_ID]] = upper
    edge.ids, edge.parent = edge.ids[at:], upper
    return upper
