"""A session's calls as a tree: whose continuation each one is, exactly, or why it is none.

A join is ``exact`` iff an earlier call's prompt + output ids are a prefix of the prompt, its media are the prompt's
first media and the same model served both. Only ids decide; text (``history.py``) names the cause where they part.
Pure, and linear in the tokens read. ``Placer`` works call by call, so the decoder can use it while a session runs:
a reply that a prompt contains was delivered before that prompt was sent, so its parent is always known by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from forge.storage.history import THINKING_HEAD, Broken, Continued, History, Said
from forge.storage.media_list import identities
from forge.storage.messages import Messages, Piece, piece_of
from forge.storage.prefixes import Match, PrefixTree, packed
from forge.storage.records import Call, JoinCause

EXACT: Final = "exact"
NONE: Final = "none"


class Placement(NamedTuple):
    """Where a call stands among the earlier calls of its session."""

    parent_call_id: str | None
    """The longest exact history; else the call that shares the longest run of ids; else the one that shares text."""
    parent_choice: int | None
    prefix_len: int
    """Ids in common with the parent's prompt + output."""
    join: str
    """``exact`` or ``none``."""
    join_cause: str | None
    """Why its history is not exact to its end: an exact parent may lie further back than the reply that the prompt
    continues. None if it is, and where there are no prompt ids to tell by."""


@dataclass(slots=True)
class _Known:
    """What is kept of a call."""

    call_id: str
    choice: int
    prompt_len: int
    total_len: int
    model: str | None
    media: list[str]
    exact: int | None
    """The call it continues."""
    cause: JoinCause | None

    @classmethod
    def of(cls, call: Call, media: list[str], exact: int | None, cause: JoinCause | None) -> _Known:
        prompt = len(call.prompt_ids)
        total = prompt + len(call.output_ids) if prompt else 0
        return cls(call.call_id, call.choice, prompt, total, call.model_served, media, exact, cause)


class Placer:
    """The index of one session's calls."""

    def __init__(self) -> None:
        self.used: set[int] = set()
        """Numbers (in order of ``add``) of the calls whose reply stands in a later prompt."""
        self._tree = PrefixTree()
        self._history = History()
        self._messages = Messages()
        self._known: list[_Known] = []

    def add(self, call: Call, told: tuple[list[Piece], Piece | None] | None = None) -> Placement:
        """Places ``call`` among the calls added before it, and adds it. ``told``: its messages and its response, where
        the caller has taken them apart."""
        media = identities(call.media)
        pieces, response = told or (self._messages.read(call.messages), piece_of(call.response))
        said = self._history.read(pieces, response, call.tools, call.kind)
        # Output ids whose context is unknown are no sequence.
        ids = packed(call.prompt_ids, call.output_ids) if len(call.prompt_ids) else b""
        match = self._tree.match(ids, len(call.prompt_ids))
        exact = self._exact(match, call.model_served, media)
        parent, prefix, cause = exact, match.length, None
        if exact is not None:
            # Of replies with the very same ids one is enough.
            twins = (twin for twin in self._history.twins(said, exact) if not self._tree.same(twin, exact))
            self.used.update((exact, *twins))
            prefix = self._known[exact].total_len
        # An exact parent may lie further back than the reply that the prompt continues: the text goes on beyond it, and
        # so do the ids, unless they part at the very next one.
        if exact is None or self._history.goes_on(said, exact):
            found = self._history.continued(said)
            self.used.update(found.calls)
            if exact is None or match.length > prefix or found.calls:
                nearest = self._nearest(match, found)
                cause = self._cause(len(call.prompt_ids), exact, nearest, match, said, found)
                parent = nearest if exact is None else exact
        known = _Known.of(call, media, exact, cause)
        # A call that sampled nothing is never continued: a retry after a failure repeats its prompt, no more.
        self._tree.insert(ids, match, findable=known.total_len > known.prompt_len)
        self._known.append(known)
        self._history.add(said)
        if parent is None:
            return Placement(None, None, 0, NONE, cause)
        known = self._known[parent]
        return Placement(known.call_id, known.choice, prefix, NONE if exact is None else EXACT, cause)

    def _exact(self, match: Match, model: str | None, media: list[str]) -> int | None:
        """The longest whole history. Equal placeholders hide unequal images, so media are compared by hash."""
        for index in match.ends():
            known = self._known[index]
            if known.model == model and media[: len(known.media)] == known.media:
                return index
        return None

    def _nearest(self, match: Match, found: Continued) -> int | None:
        """The call that shares most ids; of several, one whose reply the prompt contains as text, else the latest."""
        for index in reversed(found.calls):
            if self._tree.shares(index, match):
                return index
        return self._tree.latest(match)

    def _cause(
        self, prompt_len: int, exact: int | None, nearest: int | None, match: Match, said: Said, found: Continued
    ) -> JoinCause | None:
        if prompt_len == 0:
            return None
        joined = self._known[exact].total_len if exact is not None else 0
        longest = next(match.ends(), None)
        if longest is not None and self._known[longest].total_len > joined:
            return JoinCause.EDITED  # the same ids, but other media or another model
        if nearest is not None and self._known[nearest].prompt_len == match.length == prompt_len:
            return self._known[nearest].cause  # the same prompt again: nothing new parted here
        # The reply that the prompt continues is the one whose ids parted, whoever else happens to share more of them.
        continued = found.calls[-1] if found.calls else nearest
        return self._history.cause(said, found, nearest, self._broken(continued, match.length))

    def _broken(self, call: int | None, length: int) -> Broken | None:
        """The call of this one's exact history inside whose output a prompt of ``length`` common ids parts from it."""
        while call is not None:
            known = self._known[call]
            if known.prompt_len - THINKING_HEAD < length < known.total_len:
                return Broken(call, length - known.prompt_len)
            call = known.exact
        return None


@dataclass(frozen=True, slots=True)
class Node:
    call: Call
    placement: Placement
    parent: int | None
    """Number of the node it continues exactly."""
    used: bool
    """Its reply stands in a later prompt, as ids or as text."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    nodes: list[Node]
    """In order of ``seq`` and choice."""

    def path(self, leaf: int) -> list[int]:
        """The exact history of a node, from its root to itself."""
        path: list[int] = []
        here: int | None = leaf
        while here is not None:
            path.append(here)
            here = self.nodes[here].parent
        return path[::-1]

    def branches(self, ends: Iterable[int] | None = None) -> list[list[int]]:
        """Every root-to-leaf path, ordered by leaf; with ``ends``, of the tree of these nodes and their histories."""
        leaves = set(range(len(self.nodes)) if ends is None else ends)
        inner: set[int] = set()
        for end in leaves:
            here = self.nodes[end].parent
            while here is not None and here not in inner:
                inner.add(here)
                here = self.nodes[here].parent
        return [self.path(leaf) for leaf in sorted(leaves - inner)]


def build(calls: Iterable[Call]) -> Trajectory:
    """The tree of one session's calls, in whatever order they come."""
    ordered = sorted(calls, key=lambda call: (call.seq, call.call_id, call.choice))
    placer = Placer()
    placements = [placer.add(call) for call in ordered]
    number = {(call.call_id, call.choice): index for index, call in enumerate(ordered)}
    nodes = [
        Node(
            call,
            place,
            number[place.parent_call_id, place.parent_choice or 0]
            if place.join == EXACT and place.parent_call_id is not None
            else None,
            index in placer.used,
        )
        for index, (call, place) in enumerate(zip(ordered, placements, strict=True))
    ]
    return Trajectory(nodes)
