"""Prompts as deltas: what of a call is new over its parent, and the whole call back again.

A session's prompts repeat each other, 27 times over in long ones. ``Chain`` writes each call as the ids, messages
and tools that its parent (same session, longest common prefix) does not have; ``Unfolder`` gives them back, id for
id, checked by hash. Both take a session's calls in the same order: that of the rows. Pure; knows no files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import islice
from sys import getsizeof
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from forge.storage.messages import Messages, Piece, common, joined, piece_of
from forge.storage.records import Call, Ids, empty_ids, empty_log_probs
from forge.storage.trajectory import Placer

SNAPSHOT_LINKS: Final = 64
"""A power of two. So many links from its root a call is written whole again, and at every doubling."""
HASH_BYTES: Final = 16
BULK: Final = ("request_raw", "top_logprobs")
"""Of a call: nothing is derived from it."""
ID_BYTES: Final = 9
"""Of an id, in its row and in the tree, which keeps room to grow."""
PIECE_BYTES: Final = 500
"""Around a message: its digests, in several places."""
CALL_BYTES: Final = 4096
"""Around a call."""
LONG: Final = 4096
"""Messages of so many characters are not kept beside their pieces."""
Blake: TypeAlias = "hashlib.blake2b"


@dataclass(frozen=True, slots=True)
class Delta:
    """One row of ``calls``: ``call`` has empty ``prompt_ids``, and only the new ``messages`` and ``tools``."""

    call: Call
    messages_prefix_len: int
    tools_hash: str | None
    prompt_prefix_len: int
    prompt_suffix_ids: Ids
    prompt_len: int
    prompt_hash: str | None
    chain_len: int

    @property
    def needs_parent(self) -> bool:
        return bool(self.prompt_prefix_len or self.messages_prefix_len or (self.tools_hash and self.call.tools is None))


class DanglingParent(Exception):
    """The row's parent was not among the rows before it."""


class WrongPrompt(Exception):
    """The rebuilt prompt is not the one that was recorded."""


class Key(NamedTuple):
    call_id: str
    choice: int


@dataclass(frozen=True, slots=True)
class _Link:
    """What the encoder keeps of a call: enough to tell what the next one shares with it."""

    depth: int
    """Links to the root of its chain."""
    chain_len: int
    messages: list[Piece]
    """Of the prompt, the response last."""
    tools_hash: str | None
    hashed: Hashed


class Chain:
    """Encodes one session's calls, in order."""

    def __init__(self) -> None:
        self._kept = 0
        self._rows: list[Delta] = []
        """What was added, less the columns that nothing is derived from, and less messages that their pieces say."""
        self._placer = Placer()
        self._messages = Messages()
        self._links: dict[Key, _Link] = {}

    def add(self, call: Call) -> Delta:
        """Places the call, and writes it as a delta over its parent."""
        pieces = self._messages.read(call.messages)
        response = piece_of(call.response)
        place = self._placer.add(call, (pieces, response))
        near = self._links.get(Key(place.parent_call_id or "", place.parent_choice or 0))
        depth = near.depth + 1 if near else 0
        parent = None if is_whole(depth) else near
        hashed = Hashed.of(call.prompt_ids, call.output_ids, near.hashed if near else None, place.prefix_len)
        tools_hash = _hash(call.tools.encode()).hex() if call.tools is not None else None
        shared = common(parent.messages, pieces) if parent else 0
        delta = Delta(
            call=replace(
                call,
                parent_call_id=place.parent_call_id,
                parent_choice=place.parent_choice,
                join=place.join,
                join_cause=place.join_cause,
                prompt_ids=empty_ids(),
                messages=joined(pieces, shared) if shared else call.messages,
                tools=None if parent and parent.tools_hash == tools_hash else call.tools,
            ),
            messages_prefix_len=shared,
            tools_hash=tools_hash,
            prompt_prefix_len=place.prefix_len if parent else 0,
            # A copy: a view would keep the whole prompt in memory for as long as its row.
            prompt_suffix_ids=call.prompt_ids[place.prefix_len :].copy() if parent else call.prompt_ids,
            prompt_len=len(call.prompt_ids),
            prompt_hash=hashed.prompt_hash,
            chain_len=parent.chain_len + 1 if parent else 0,
        )
        said = [*pieces, response] if response is not None else pieces
        link = _Link(depth, delta.chain_len, said, tools_hash, hashed)
        self._links[Key(call.call_id, call.choice)] = link
        self._keep(delta, pieces)
        return delta

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return self._kept + self._messages.size

    def calls(self) -> list[Call]:
        """The calls again, whole, less ``request_raw`` and other bulk."""
        unfolder = Unfolder()
        return [unfolder.add(self._told(row)) for row in self._rows]

    def _told(self, row: Delta) -> Delta:
        if row.call.messages:
            return row
        link = self._links[Key(row.call.call_id, row.call.choice)]
        said = link.messages[:-1] if row.call.response else link.messages
        return replace(row, call=replace(row.call, messages=joined(said, row.messages_prefix_len)))

    def _keep(self, delta: Delta, pieces: list[Piece]) -> None:
        call, shared = delta.call, delta.messages_prefix_len
        ids = len(delta.prompt_suffix_ids) + 2 * len(call.output_ids)
        new = sum(getsizeof(piece.text) + PIECE_BYTES for piece in islice(pieces, shared, None))
        texts = (call.tools, call.response, call.sampling_sent, call.error)
        self._kept += ID_BYTES * ids + new + sum(getsizeof(text) for text in texts) + CALL_BYTES
        self._kept += len(call.routed_experts or b"") + len(call.sampling_mask or b"")
        less: dict[str, Any] = {name: None for name in BULK if getattr(call, name) is not None}
        if len(call.prompt_log_probs):
            less["prompt_log_probs"] = empty_log_probs()
        if len(call.messages) >= LONG and pieces and (shared or joined(pieces) == call.messages):
            less["messages"] = ""
        else:
            self._kept += getsizeof(call.messages)
        self._rows.append(replace(delta, call=replace(call, **less)) if less else delta)


@dataclass(frozen=True, slots=True)
class _Whole:
    prompt: Ids
    output: Ids
    hashed: Hashed
    messages: list[Piece]
    """The messages, and the response if there is one."""
    tools: str | None


class Unfolder:
    """Gives one session's rows back as whole calls, in the order they were written."""

    def __init__(self) -> None:
        self.size = 0
        self._wholes: dict[Key, _Whole] = {}

    def add(self, row: Delta) -> Call:
        """Raises ``DanglingParent`` or ``WrongPrompt``."""
        parent: _Whole | None = None
        if row.needs_parent:
            key = Key(row.call.parent_call_id or "", row.call.parent_choice or 0)
            parent = self._wholes.get(key)
            if parent is None:
                raise DanglingParent(f"{key.call_id} (choice {key.choice})")
        prompt = row.prompt_suffix_ids
        if parent is not None and row.prompt_prefix_len:
            shared = parent.prompt[: row.prompt_prefix_len]
            prompt = np.concatenate((shared, parent.output[: row.prompt_prefix_len - len(shared)], prompt))
        hashed = Hashed.of(prompt, row.call.output_ids, parent.hashed if parent else None, row.prompt_prefix_len)
        if len(prompt) != row.prompt_len or hashed.prompt_hash != row.prompt_hash:
            raise WrongPrompt(f"{len(prompt)} ids with hash {hashed.prompt_hash}")
        messages = Messages().read(row.call.messages)
        tools = row.call.tools
        if parent is not None:
            messages = parent.messages[: row.messages_prefix_len] + messages
            tools = parent.tools if row.tools_hash and tools is None else tools
        self._keep(row, prompt, hashed, messages, tools)
        text = joined(messages) if row.messages_prefix_len else row.call.messages
        return replace(row.call, prompt_ids=prompt, messages=text, tools=tools)

    def _keep(self, row: Delta, prompt: Ids, hashed: Hashed, messages: list[Piece], tools: str | None) -> None:
        said = [*messages, Piece(row.call.response)] if row.call.response else messages
        self._wholes[Key(row.call.call_id, row.call.choice)] = _Whole(prompt, row.call.output_ids, hashed, said, tools)
        self.size += prompt.nbytes + row.call.output_ids.nbytes + 8 * len(messages) + len(row.call.messages) + 1024


@dataclass(frozen=True, slots=True)
class Hashed:
    """The hash of a prompt's ids, and how far it had come where a continuation can take it up."""

    prompt_len: int
    total_len: int
    after_prompt: Blake
    after_output: Blake

    @classmethod
    def of(cls, prompt: Ids, output: Ids, parent: Hashed | None, prefix_len: int) -> Hashed:
        """``prefix_len`` ids are those that the parent's prompt and output begin with: where these are all of them,
        they are not hashed again."""
        if parent is not None and prefix_len == parent.total_len:
            begun, new = parent.after_output.copy(), prompt[prefix_len:]
        elif parent is not None and prefix_len == parent.prompt_len:
            begun, new = parent.after_prompt.copy(), prompt[prefix_len:]
        else:
            begun, new = hashlib.blake2b(digest_size=HASH_BYTES), prompt
        begun.update(_little(new))
        whole = begun.copy()
        whole.update(_little(output))
        return cls(len(prompt), len(prompt) + len(output), begun, whole)

    @property
    def prompt_hash(self) -> str | None:
        return self.after_prompt.hexdigest() if self.prompt_len else None


def is_whole(depth: int) -> bool:
    """Whether a call so many links from its root is written whole: now and then, so that what a lost part takes with
    it is bounded, and at twice the distance each time, so that a long session is not written many times over."""
    return depth == 0 or (depth >= SNAPSHOT_LINKS and depth & (depth - 1) == 0)


def prompt_hash(ids: Ids) -> str | None:
    """blake2b-128 of the little-endian int32 ids; None when there are none."""
    return Hashed.of(ids, empty_ids(), None, 0).prompt_hash


def _little(ids: Ids) -> bytes:
    return np.ascontiguousarray(ids, dtype="<i4").tobytes()


def _hash(piece: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=HASH_BYTES).digest()
