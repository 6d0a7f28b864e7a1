"""One session's calls as a tree to look at: how each joins, what was said, what it is worth.

Owns the rich renderable, nothing of the joins themselves. Not obvious: nesting is for forks alone. A continuation
stands below its call, not inside it, and the longest continuation of a fork is the one that goes on; so a session of
hundreds of turns stays a list, in which a stretch where nothing happens is one line.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rich.markup import escape
from rich.tree import Tree

from forge.storage.media_list import Medium, listed
from forge.storage.records import Call, CallStatus, Session
from forge.storage.trajectory import EXACT, Node, build

TEXT_WIDTH: Final = 100
"""Characters of a call's answer that the tree shows."""
FOLDED_MIN: Final = 4
"""Calls in a row with nothing to see that become one line."""


def session_tree(session: Session, calls: Sequence[Call]) -> Tree:
    """Numbers are places in the session, from 0."""
    opened = datetime.fromtimestamp(session.open_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    task = f", task {escape(session.task_id)}" if session.task_id else ""
    head = Tree(
        f"[bold]{session.session_id}[/bold] {escape(session.harness or '')} {session.status}, "
        f"reward {reward_text(session)}, opened {opened}{task}"
    )
    drawing = _Drawing.of(build(calls).nodes)
    todo: list[tuple[Tree, int]] = [(head, root) for root in reversed(drawing.roots)]
    while todo:
        above, start = todo.pop()
        todo += reversed(drawing.run(above, start))
    return head


def reward_text(session: Session) -> str:
    return "null" if session.reward is None else f"{session.reward:.3f}"


@dataclass(frozen=True, slots=True)
class _Drawing:
    nodes: list[Node]
    children: list[list[int]]
    """The longest continuation first."""
    number: dict[tuple[str, int], int]
    roots: list[int]

    @classmethod
    def of(cls, nodes: list[Node]) -> _Drawing:
        size = [1] * len(nodes)
        children: list[list[int]] = [[] for _ in nodes]
        for index in range(len(nodes) - 1, -1, -1):  # a parent stands before its children
            parent = nodes[index].parent
            if parent is not None:
                size[parent] += size[index]
                children[parent].append(index)
        for several in children:
            several.sort(key=lambda child: (-size[child], child))
        number = {(node.call.call_id, node.call.choice): index for index, node in enumerate(nodes)}
        return cls(nodes, children, number, [i for i, node in enumerate(nodes) if node.parent is None])

    def run(self, above: Tree, start: int) -> list[tuple[Tree, int]]:
        """Draws a call and its longest continuation; gives back the forks to draw inside them."""
        path = [start]
        while self.children[path[-1]]:
            path.append(self.children[path[-1]][0])
        first = above.add(self._line(start))
        forks = [(first, fork) for fork in self.children[start][1:]]
        plain: list[int] = []
        for before, index in itertools.pairwise(path):
            if self._plain(before, index):
                plain.append(index)
                continue
            self._stretch(first, plain)
            line = first.add(self._line(index))
            forks += [(line, fork) for fork in self.children[index][1:]]
            plain = []
        self._stretch(first, plain)
        return forks

    def _plain(self, before: int, index: int) -> bool:
        """A continuation like the one before it, with one continuation of its own: nothing to see."""
        call, last = self.nodes[index].call, self.nodes[before].call
        same = (call.kind, call.policy_version_start) == (last.kind, last.policy_version_start)
        usual = call.status == CallStatus.OK and call.trainable and self.nodes[index].placement.join_cause is None
        return same and usual and len(self.children[index]) == 1 and not self._seen(index)

    def _stretch(self, above: Tree, plain: list[int]) -> None:
        if len(plain) < FOLDED_MIN:
            for index in plain:
                above.add(self._line(index))
            return
        sampled = sum(len(self.nodes[index].call.output_ids) for index in plain)
        last = self.nodes[plain[-1]].call
        above.add(
            f"[dim]#{plain[0]} ... #{plain[-1]}: {len(plain)} calls straight on, {sampled:,} tokens sampled, "
            f"the prompt has grown to {len(last.prompt_ids):,}[/dim]"
        )

    def _line(self, index: int) -> str:
        call = self.nodes[index].call
        marks = f"{len(call.prompt_ids):,} -> {len(call.output_ids):,} tokens"
        version = "" if call.policy_version_start is None else f", version {call.policy_version_start}"
        worth = "" if call.trainable else f" [yellow]not trainable: {call.untrainable_reason}[/yellow]"
        status = call.status if call.status == CallStatus.OK else f"[red]{call.status}[/red]"
        kind = "" if call.kind == "main" else f" [cyan]{call.kind}[/cyan]"
        return "\n".join(
            (
                f"#{index} [bold]{call.call_id}[/bold] {self._join(index)}{kind}: {status}, {marks}{version}{worth}",
                *(escape(f"sees {medium}") for medium in self._seen(index)),
                escape(said(call)),
            )
        )

    def _seen(self, index: int) -> list[str]:
        """The media that its exact parent had not seen: what each is, and its file in the data directory."""
        parent = self.nodes[index].parent
        known = len(listed(self.nodes[parent].call.media)) if parent is not None else 0
        return [medium_text(medium) for medium in listed(self.nodes[index].call.media)[known:]]

    def _join(self, index: int) -> str:
        place = self.nodes[index].placement
        parent = self.number.get((place.parent_call_id or "", place.parent_choice or 0))
        if place.join == EXACT:
            return f"continues #{parent}" + (f" ({place.join_cause} after it)" if place.join_cause else "")
        if place.join_cause is None:
            return "no prompt ids"
        after = "" if parent is None else f" of #{parent}, {place.prefix_len:,} ids in common"
        return f"[magenta]{place.join_cause}[/magenta]{after}"


def medium_text(medium: Medium | str) -> str:
    if isinstance(medium, str):
        return f"media/{medium}"
    where = f"media/{medium.sha256}" if medium.sha256 is not None else medium.url
    return " ".join(filter(None, (medium.mime, where)))


def said(call: Call) -> str:
    """One line of what the policy answered."""
    if call.response is None:
        return call.error or "(no answer)"
    message = json.loads(call.response)
    parts = [str(message.get("content") or "")]
    for tool in message.get("tool_calls") or []:
        function = tool.get("function") or {}
        parts.append(f"{function.get('name')}({function.get('arguments')})")
    text = " ".join(" ".join(parts).split())
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"
