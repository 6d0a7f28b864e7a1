"""A radix tree over token ids: longest common prefix and longest contained sequence, in time linear in the tokens.

Owns nothing but numbers: what an owner is, and whether a match means anything, is the caller's business. Sequences
share their common prefixes, so memory grows with the *new* tokens of each one. A split keeps the lower edge's
identity, so an edge returned by ``insert`` stays the end of its sequence for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from forge.storage.records import Ids, empty_ids


class Edge:
    """A run of ids that no known sequence leaves in its middle."""

    __slots__ = ("children", "ends", "ids", "owner", "parent")

    def __init__(self, ids: Ids, parent: Edge | None, owner: int) -> None:
        self.ids = ids
        self.parent = parent
        self.owner = owner
        """The latest sequence that runs through here."""
        self.children: dict[int, Edge] = {}
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
        self._root = Edge(empty_ids(), None, -1)

    def match(self, ids: Ids) -> Match:
        edge, depth, ends = self._root, 0, []
        while depth < len(ids):
            child = edge.children.get(int(ids[depth]))
            if child is None:
                break
            same = _common(child.ids, ids[depth:])
            edge, depth = child, depth + same
            if same < len(child.ids):
                break
            ends.extend(child.ends)
        return Match(depth, edge, ends)

    def insert(self, ids: Ids, owner: int, *, findable: bool) -> Edge:
        """Adds a sequence; ``findable`` ones are named in ``Match.ends``."""
        edge, depth = self._root, 0
        while depth < len(ids):
            child = edge.children.get(int(ids[depth]))
            if child is None:
                child = edge.children[int(ids[depth])] = Edge(ids[depth:].copy(), edge, owner)
            else:
                same = _common(child.ids, ids[depth:])
                if same < len(child.ids):
                    child = _split(child, edge, same)
            child.owner = owner
            edge, depth = child, depth + len(child.ids)
        if findable:
            edge.ends.append(owner)
        return edge


def _common(a: Ids, b: Ids) -> int:
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    first = int(differs.argmax())
    return first if differs[first] else size


def _split(edge: Edge, parent: Edge, at: int) -> Edge:
    """Puts a new edge above ``edge`` that ends after its first ``at`` ids."""
    upper = Edge(edge.ids[:at], parent, edge.owner)
    upper.children[int(edge.ids[at])] = edge
    parent.children[int(edge.ids[0])] = upper
    edge.ids, edge.parent = edge.ids[at:], upper
    return upper
