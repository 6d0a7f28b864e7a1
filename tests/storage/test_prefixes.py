"""The radix tree against sequences compared one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.storage.prefixes import PrefixTree, packed

IDS = st.lists(st.integers(0, 2), max_size=8)


def common(a: list[int], b: list[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=400)
@given(st.lists(st.tuples(IDS, IDS, st.booleans()), max_size=12))
def test_the_tree_finds_what_a_search_of_all_finds(calls: list[tuple[list[int], list[int], bool]]) -> None:
    tree = PrefixTree()
    known: list[tuple[list[int], bool]] = []
    for prompt, output, findable in calls:
        whole = prompt + output
        ids = packed(np.array(prompt, np.int32), np.array(output, np.int32))
        match = tree.match(ids, len(prompt))
        shared = [common(sequence, prompt) for sequence, _ in known]
        assert match.length == max(shared, default=0)
        inside = [n for n, (seq, found) in enumerate(known) if found and seq == prompt[: len(seq)]]
        assert list(match.ends()) == sorted(inside, key=lambda n: (len(known[n][0]), n), reverse=True)
        nearest = [number for number, length in enumerate(shared) if length == match.length]
        assert [number for number in range(len(known)) if tree.shares(number, match)] == nearest
        assert tree.latest(match) == (nearest[-1] if match.length else None)
        tree.insert(ids, match, findable=findable)
        known.append((whole, findable))
        for number, (sequence, _) in enumerate(known):
            assert tree.same(number, len(known) - 1) == (sequence == whole)
