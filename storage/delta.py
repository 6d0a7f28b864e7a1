"""Prompts as deltas: what of a call is new over its parent, and the whole call back again.

A session's prompts repeat each other, 27 times over in long ones. ``Chain`` writes each call as the ids, messages
and tools that its parent (same session, longest common prefix) does not have; ``Unfolder`` gives them back, id for
id, checked by hash. Both take a session's calls in the same order: that of the rows. Pure; knows no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from forge.storage.records import Call, Ids, empty_ids, empty_log_probs
from forge.storage.trajectory import Placer

SNAPSHOT_LINKS: Final = 32
"""Every so many links a call is written whole, so that no rebuild is long."""
_raw_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


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

    chain_len: int
    messages: list[bytes]
    """Hash of each message, the response's last."""
    tools_hash: str | None


class Chain:
    """Encodes one session's calls, in order. ``size`` estimates the bytes it holds."""

    def __init__(self) -> None:
        self.size = 0
        self.rows: list[Delta] = []
        """What was added, less the columns that nothing is derived from."""
        self._placer = Placer()
        self._links: dict[Key, _Link] = {}

    def add(self, call: Call) -> Delta:
        """Places the call, and writes it as a delta over its parent."""
        place = self._placer.add(call)
        placed = replace(
            call,
            parent_call_id=place.parent_call_id,
            parent_choice=place.parent_choice,
            join=place.join,
            join_cause=place.join_cause,
        )
        pieces = message_list(call.messages)
        hashes = [_hash(piece) for piece in pieces]
        tools_hash = _hash(call.tools.encode()).hex() if call.tools is not None else None
        parent = self._parent(placed)
        shared = _common(parent.messages, hashes) if parent else 0
        delta = Delta(
            call=replace(
                placed,
                prompt_ids=empty_ids(),
                messages=join_messages(pieces[shared:]) if shared else call.messages,
                tools=None if parent and parent.tools_hash == tools_hash else call.tools,
            ),
            messages_prefix_len=shared,
            tools_hash=tools_hash,
            prompt_prefix_len=place.prefix_len if parent else 0,
            prompt_suffix_ids=call.prompt_ids[place.prefix_len :] if parent else call.prompt_ids,
            prompt_len=len(call.prompt_ids),
            prompt_hash=prompt_hash(call.prompt_ids),
            chain_len=parent.chain_len + 1 if parent else 0,
        )
        response = [_hash(call.response.encode())] if call.response else []
        self._links[Key(call.call_id, call.choice)] = _Link(delta.chain_len, hashes + response, tools_hash)
        self._keep(delta, len(hashes))
        return delta

    def calls(self) -> list[Call]:
        """The calls again, whole, less ``request_raw`` and other bulk."""
        unfolder = Unfolder()
        return [unfolder.add(row) for row in self.rows]

    def _keep(self, delta: Delta, messages: int) -> None:
        call = replace(delta.call, request_raw=None, top_logprobs=None, routed_experts=None, sampling_mask=None)
        call = replace(call, prompt_log_probs=empty_log_probs())
        self.rows.append(replace(delta, call=call))
        ids = len(delta.prompt_suffix_ids) + 2 * len(call.output_ids)
        texts = (call.messages, call.tools, call.response, call.sampling_sent, call.error)
        self.size += 12 * ids + 128 * messages + sum(3 * len(text) for text in texts if text) + 4096

    def _parent(self, call: Call) -> _Link | None:
        """The link to write a delta over; None when the call is to be written whole."""
        if call.parent_call_id is None:
            return None
        link = self._links[Key(call.parent_call_id, call.parent_choice or 0)]
        return link if link.chain_len + 1 < SNAPSHOT_LINKS else None


@dataclass(frozen=True, slots=True)
class _Whole:
    ids: Ids
    """Prompt and output."""
    messages: list[bytes]
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
            prompt = np.concatenate((parent.ids[: row.prompt_prefix_len], prompt))
        if len(prompt) != row.prompt_len or prompt_hash(prompt) != row.prompt_hash:
            raise WrongPrompt(f"{len(prompt)} ids with hash {prompt_hash(prompt)}")
        messages = message_list(row.call.messages)
        tools = row.call.tools
        if parent is not None:
            messages = parent.messages[: row.messages_prefix_len] + messages
            tools = parent.tools if row.tools_hash and tools is None else tools
        self._keep(row, prompt, messages, tools)
        text = join_messages(messages) if row.messages_prefix_len else row.call.messages
        return replace(row.call, prompt_ids=prompt, messages=text, tools=tools)

    def _keep(self, row: Delta, prompt: Ids, messages: list[bytes], tools: str | None) -> None:
        response = [row.call.response.encode()] if row.call.response else []
        ids = np.concatenate((prompt, row.call.output_ids))
        self._wholes[Key(row.call.call_id, row.call.choice)] = _Whole(ids, messages + response, tools)
        self.size += ids.nbytes + 8 * len(messages) + len(row.call.messages) + 1024


def prompt_hash(ids: Ids) -> str | None:
    """blake2b-128 of the little-endian int32 ids; None when there are none."""
    if not len(ids):
        return None
    return hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i4").tobytes(), digest_size=16).hexdigest()


def message_list(text: str) -> list[bytes]:
    """The messages of a JSON array, each as its own bytes; [] where it is none that we can take apart (half a surrogate
    pair): such a text is kept as it is, whole."""
    try:
        return [bytes(raw) for raw in _raw_list.decode(text.encode())]
    except msgspec.DecodeError:
        return []


def join_messages(pieces: Sequence[bytes]) -> str:
    return (b"[" + b",".join(pieces) + b"]").decode()


def _hash(piece: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=16).digest()


def _common(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count
