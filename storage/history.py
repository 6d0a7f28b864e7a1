"""What a session's calls say to each other as text: which earlier reply a later prompt contains.

Token ids decide a join; this module only explains one that failed, and tells which of two replies to the same
prompt was used. It compares messages in a normal form: harnesses rewrite tool call ids, re-serialise arguments,
move thinking between fields and trim ends. Every message is normalised once, however many prompts repeat it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from forge.storage.messages import RECENT, Piece, common
from forge.storage.records import CallKind, JoinCause

THINK: Final = re.compile(r"<think>(.*?)</think>", re.DOTALL)
REASONING_FIELDS: Final = ("reasoning", "reasoning_content", "thinking")
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""What reading a message can raise."""
SUMMARY_MIN_CHARS: Final = 16
"""A compaction's text shorter than this proves nothing when it is found in a later prompt."""
THINKING_HEAD: Final = 4
"""Ids from a reply's beginning within which it parts from its echo if its thinking is gone: an opening mark and a
line end stand in an empty thought too, and the mark may be the prompt's. Text that is tokenised anew parts later."""
SPEAKERS: Final = 4
"""Of those who gave a reply that many gave, so many are looked at, the latest."""
GAP_FILLERS: Final = 2
"""Messages a harness may put in the place of those it drops (a summary and an acknowledgement)."""


class Key(NamedTuple):
    """A message's identity."""

    whole: bytes
    spoken: bytes
    """Without its thinking."""
    assistant: bool
    told: bool
    """A user's text, or what a harness says in that role."""
    thinks: bool
    piece: Piece

    @property
    def text(self) -> str:
        """What it says. It is as long as the message and few ask, so it is read again each time."""
        try:
            return _spoken(_decoded(self.piece))[0]
        except UNREADABLE:
            return ""


@dataclass(slots=True)
class Said:
    """What one call's prompt and reply say."""

    pieces: list[Piece]
    keys: list[Key]
    whole: list[bytes]
    """Running hash after each message of the prompt."""
    spoken: list[bytes]
    reply: Key | None
    tools: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class Continued:
    """The earlier replies that a prompt contains in its place; several when they said the same."""

    calls: tuple[int, ...] = ()
    thinking_kept: bool = True
    moved: bool = False
    """The last message before the reply is not there any more: notes of a harness's own that it moves or replaces."""


class Broken(NamedTuple):
    """Where the ids of a prompt part from an earlier call's."""

    call: int
    """The call inside whose output they do."""
    at: int
    """Output ids in common; below 0 where they part a little before it."""


class History:
    """The replies of a session so far, found by the text that leads to them and what they say."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Key] = {}
        self._whole: dict[bytes, list[int]] = {}
        self._spoken: dict[bytes, list[int]] = {}
        self._moved: dict[bytes, list[int]] = {}
        """By the text without its last message, where that is no reply."""
        self._said: list[Said] = []
        self._replies: dict[bytes, list[int]] = {}
        self._summaries: list[int] = []

    def read(self, pieces: list[Piece], response: Piece | None, tools: str | None, kind: str) -> Said:
        """``pieces``: the prompt's messages. Of those that a recent prompt began with nothing is worked out again."""
        reply = self._key(response) if response is not None else None
        like, same = self._alike(pieces)
        keys = [self._key(piece) for piece in islice(pieces, same, None)]
        whole = _running(like.whole[:same] if like else [], [key.whole for key in keys])
        spoken = _running(like.spoken[:same] if like else [], [key.spoken for key in keys])
        return Said(pieces, like.keys[:same] + keys if like else keys, whole, spoken, reply, tools, kind)

    def _alike(self, pieces: list[Piece]) -> tuple[Said | None, int]:
        """The recent prompt that has most messages in common with this one, and how many."""
        best: tuple[Said | None, int] = (None, 0)
        for said in islice(reversed(self._said), RECENT):
            same = common(said.pieces, pieces)
            if same > best[1]:
                best = (said, same)
            if best[1] and best[1] == len(said.pieces):
                break
        return best

    def add(self, said: Said) -> None:
        """The next call of the session; its place in order is its number."""
        index = len(self._said)
        self._said.append(said)
        if said.reply is None:
            return
        self._whole.setdefault(_step(_last(said.whole), said.reply.whole), []).append(index)
        self._replies.setdefault(said.reply.spoken, []).append(index)
        self._spoken.setdefault(_step(_last(said.spoken), said.reply.spoken), []).append(index)
        if len(said.keys) > 1 and said.keys[-1].told:
            self._moved.setdefault(_step(said.spoken[-2], said.reply.spoken), []).append(index)
        if said.kind == CallKind.COMPACTION and len(said.reply.text) >= SUMMARY_MIN_CHARS:
            self._summaries.append(index)

    def continued(self, said: Said) -> Continued:
        """The longest earlier prompt + reply that ``said`` repeats message for message, but for a moved last one."""
        for length in range(len(said.keys) - 1, -1, -1):
            if not said.keys[length].assistant:
                continue
            if calls := self._whole.get(said.whole[length]):
                return Continued(tuple(calls))
            if calls := self._spoken.get(said.spoken[length]):
                return Continued(tuple(calls), thinking_kept=False)
            if calls := self._moved.get(said.spoken[length]):
                return Continued(tuple(calls), moved=True)
        return Continued()

    def twins(self, said: Said, call: int) -> list[int]:
        """The calls with the prompt of this one whose reply a prompt repeats in its place as text: where a template
        shows no thinking, the ids of several replies are the same, and only the text tells which was used."""
        place = len(self._said[call].keys)
        if place >= len(said.keys):
            return []
        calls = self._whole.get(said.whole[place], [])
        return calls if calls or said.keys[place].thinks else self._spoken.get(said.spoken[place], [])

    def goes_on(self, said: Said, call: int) -> bool:
        """Do more replies follow in the prompt after this call's?"""
        return any(key.assistant for key in said.keys[len(self._said[call].keys) + 1 :])

    def thinks(self, call: int) -> bool:
        reply = self._said[call].reply
        return reply is not None and reply.thinks

    def cause(self, said: Said, found: Continued, nearest: int | None, broken: Broken | None) -> JoinCause:
        """Why a prompt is no exact continuation. ``nearest`` shares the longest run of ids with it."""
        if found.calls and not self.goes_on(said, found.calls[0]):
            if found.moved or all(self._said[call].tools != said.tools for call in found.calls):
                return JoinCause.EDITED
            stripped = not found.thinking_kept
            if broken is not None:
                stripped = broken.at < THINKING_HEAD and self.thinks(broken.call)
            return JoinCause.THINKING_STRIPPED if stripped else JoinCause.RETOKENIZED
        before = self._said[nearest] if nearest is not None else None
        if self._has_new_summary(said, before):
            return JoinCause.COMPACTED
        replies = [key.spoken for key in said.keys if key.assistant]
        if before is None or not replies:
            return JoinCause.ROOT
        # Several may have said it, a short word or nothing at all: a gap is one if none of them leads here without.
        speakers = [self._said[index] for index in self._replies.get(replies[-1], ())[-SPEAKERS:]] or [before]
        return JoinCause.COMPACTED if all(_has_gap(each, said) for each in speakers) else JoinCause.EDITED

    def _has_new_summary(self, said: Said, before: Said | None) -> bool:
        replies = [reply for call in self._summaries if (reply := self._said[call].reply) is not None]
        texts = [key.text for key in said.keys] if replies else []
        known = [key.text for key in before.keys] if replies and before is not None else []
        return any(_stands_in(reply.text, texts) and not _stands_in(reply.text, known) for reply in replies)

    def _key(self, piece: Piece) -> Key:
        key = self._keys.get(piece.digest)
        if key is None:
            key = self._keys[piece.digest] = _key_of(piece)
        return key


def _key_of(piece: Piece) -> Key:
    """Total: what a harness sent may be any JSON, and the row of a refused call is placed too."""
    try:
        return _normalise(piece)
    except UNREADABLE:
        return Key(piece.digest, piece.digest, assistant=False, told=False, thinks=False, piece=piece)


def _normalise(piece: Piece) -> Key:
    message = _decoded(piece)
    role = message.get("role")
    text, thoughts = _spoken(message)
    calls = message.get("tool_calls")
    spoken = _hash([role, text, [_tool_call(c) for c in calls] if isinstance(calls, list) else calls or []])
    whole = _step(spoken, _hash(thoughts)) if thoughts else spoken
    return Key(whole, spoken, role == "assistant", told=role == "user", thinks=bool(thoughts), piece=piece)


def _decoded(piece: Piece) -> dict[str, Any]:
    """Raises one of ``UNREADABLE``."""
    message = msgspec.json.decode(piece.text)
    return message if isinstance(message, dict) else {"content": message}


def _spoken(message: dict[str, Any]) -> tuple[str, list[str]]:
    """Its text without thinking, and its thoughts."""
    text = _text(message.get("content"))
    if message.get("role") != "assistant":
        return text, []
    thoughts = [_text(message[name]) for name in REASONING_FIELDS if message.get(name)]
    thoughts += [t.strip() for t in THINK.findall(text) if t.strip()]
    return THINK.sub("", text).strip(), thoughts


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        parts = [p["text"] if isinstance(p, dict) and isinstance(p.get("text"), str) else _plain(p) for p in content]
        return "\n".join(parts).strip()
    return _plain(content)


def _tool_call(call: Any) -> list[str]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return [_plain(call)]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            return [_plain(function.get("name")), arguments]
    return [_plain(function.get("name")), _plain(arguments or {})]


def _plain(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _hash(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=16).digest()


def _step(running: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(running + key, digest_size=16).digest()


def _running(hashes: list[bytes], keys: list[bytes]) -> list[bytes]:
    """``hashes`` of the messages before, and those of ``keys``."""
    for key in keys:
        hashes.append(_step(_last(hashes), key))
    return hashes


def _last(hashes: list[bytes]) -> bytes:
    return hashes[-1] if hashes else b""


def _stands_in(summary: str, texts: list[str]) -> bool:
    return any(summary in text for text in texts)


def _has_gap(before: Said, said: Said) -> bool:
    """Were replies in the middle of the history dropped: its start and its end are there, less stands between them?"""
    past = [(key.spoken, key.assistant) for key in before.keys]
    now = [key.spoken for key in said.keys]
    start = 0
    while start < min(len(past), len(now)) and past[start][0] == now[start]:
        start += 1
    if before.reply is not None and before.reply.spoken in now[start:]:
        past.append((before.reply.spoken, True))  # else nobody took that reply into the history
    if not past:
        return False
    for at in range(len(now) - 1, start - 1, -1):
        if now[at] != past[-1][0]:
            continue
        kept = 0
        while kept < at + 1 - start and kept < len(past) - start and now[at - kept] == past[-1 - kept][0]:
            kept += 1
        fillers, dropped = at + 1 - start - kept, past[start : len(past) - kept]
        return fillers <= GAP_FILLERS and len(dropped) > fillers and any(reply for _, reply in dropped)
    return False
