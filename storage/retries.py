"""Which of several replies to the same prompt were thrown away by the harness.

A retry asks the same prompt again; the reply that a later prompt contains was used, its siblings were not. But
equal prompts are no proof of a retry: parallel sub-agents may well ask the same. So calls whose times overlap are
siblings only if the proxy linked them (``retry_of``) or they are choices of one call.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

from forge.storage.media_list import identities
from forge.storage.records import Call
from forge.storage.trajectory import Node, Trajectory


def discarded(tree: Trajectory) -> set[int]:
    """Numbers of the nodes that a harness dropped for another reply to the same prompt."""
    groups: dict[tuple[bytes, tuple[str, ...], str | None, str | None], list[int]] = defaultdict(list)
    for index, node in enumerate(tree.nodes):
        call = node.call
        if len(call.prompt_ids):
            digest = hashlib.blake2b(call.prompt_ids.tobytes(), digest_size=16).digest()
            groups[digest, tuple(identities(call.media)), call.model_served, call.agent_id].append(index)
    first = _first_tries([node.call for node in tree.nodes])
    dropped: set[int] = set()
    for group in groups.values():
        if len(group) > 1:
            dropped.update(_dropped(tree.nodes, group, first))
    return dropped


def _dropped(nodes: list[Node], group: list[int], first: dict[str, str]) -> list[int]:
    """A sibling that was used displaces one that was not. Where none was, a retry's later answer displaces the
    earlier: the harness would not have asked again had it got that."""

    def linked(a: int, b: int) -> bool:
        one, two = nodes[a].call.call_id, nodes[b].call.call_id
        return one != two and first[one] == first[two]

    def displaces(other: int, index: int) -> bool:
        one, two = nodes[other], nodes[index]
        if one.used:
            return linked(other, index) or one.call.call_id == two.call.call_id or not _overlap(one.call, two.call)
        return other > index and one.call.trainable and linked(other, index)

    return [i for i in group if not nodes[i].used and any(displaces(o, i) for o in group if o != i)]


def _first_tries(calls: list[Call]) -> dict[str, str]:
    """Call id to the call id that its chain of retries began with."""
    first: dict[str, str] = {}
    for call in calls:
        first.setdefault(call.call_id, first.get(call.retry_of, call.retry_of) if call.retry_of else call.call_id)
    return first


def _overlap(a: Call, b: Call) -> bool:
    """Were both under way at one time? Wall clocks of one host; a call without an end counts as a point."""
    return a.start_us < b.start_us + (b.end_us or 0) and b.start_us < a.start_us + (a.end_us or 0)
