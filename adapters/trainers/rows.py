"""Which rows a trainer may get, and what goes with each: the one gate before every export and plug-in.

The unit of learning is the session, so whatever is left out is left out before a session's tokens are counted and its
last row is named. The non-obvious fact: a group of one session is left out, since some trainers take its raw reward
for an advantage and say nothing. Pure; what is trained within a row was decided in ``forge.storage.samples``.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forge.storage.errors import Untrainable
from forge.storage.media import MediaStore
from forge.storage.media_list import Medium, listed
from forge.storage.records import Ids, Purpose, RewardStatus, Sample, Session
from forge.storage.records import Untrainable as Reason


class Left(StrEnum):
    """Why a row is left out."""

    EVAL = "eval"
    """Its session is an evaluation: never exported."""
    NOT_TRAINABLE = "not_trainable"
    MEDIA = "media"
    """It holds images, or other media, that the format has no place for."""
    REWARD_NULL = "reward_null"
    REWARD_PENDING = "reward_pending"
    NO_GROUP = "no_group"
    """Its session names no group; none is guessed."""
    FEWER_THAN_TWO = "fewer_than_two"
    """No other rewarded session is in its group: there is nothing to compare."""
    NO_SPREAD = "no_spread"
    """All rewards of its group are equal: its advantages are zero."""
    NO_TEMPERATURE = "no_temperature"
    """Its turns were sampled at several temperatures, or at one that is not known."""
    NO_MESSAGES = "no_messages"
    """It is a raw completion: there are no messages."""
    BAD_ARGUMENTS = "bad_arguments"
    """A tool call's arguments are no JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a format cannot do without."""

    tokens: bool = True
    """Ids and log probabilities; text formats need none."""
    reward: bool = True
    """Where not, ``unrewarded`` keeps the rows without one."""
    group: bool = True
    """The trainer compares sessions of a group itself."""
    advantage: bool = False
    """The trainer wants that comparison's outcome."""
    temperature: bool = False
    """The trainer divides by it, token by token."""
    images: bool = False
    """The format has a place for images beside a row's ids."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sample and its place among what is exported."""

    sample: Sample
    last: bool
    """The last row of its session: it carries the reward where a trainer adds up rewards."""
    session_tokens: int
    """Masked tokens of its session's kept rows."""
    weight: float = 1.0
    """Of each of its trained tokens in a mean over all tokens, so that every session counts alike; 1 on average."""
    advantage: float | None = None

    @property
    def group(self) -> str | None:
        """The group's id; told apart from those of other runs."""
        sample = self.sample
        if sample.group_id is None or sample.group_id.startswith(f"{sample.run_id}/"):
            return sample.group_id
        return f"{sample.run_id}/{sample.group_id}"

    @property
    def ids(self) -> Ids:
        return np.concatenate((self.sample.prompt_ids, self.sample.response_ids))

    @property
    def mask(self) -> NDArray[np.int8]:
        """Over ``ids``: 0 for the prompt."""
        return np.concatenate((np.zeros(len(self.sample.prompt_ids), np.int8), self.sample.response_mask))

    @property
    def reward(self) -> float:
        assert self.sample.reward is not None, "formats that read it need it"
        return self.sample.reward

    def log_probs(self) -> NDArray[np.float32]:
        """Of the response; 0.0 where the mask is 0, as every trainer fills it. What is null under mask 1 never gets
        here: ``checked``."""
        return np.where(self.sample.response_mask == 1, self.sample.rollout_log_probs, np.float32(0.0))

    def experts(self) -> NDArray[Any] | None:
        """[ids less one, layers, experts] of ``ids``, where the engine gave them; without layers where it told no
        shape."""
        data = self.sample.routed_experts
        return None if data is None else np.load(io.BytesIO(data), allow_pickle=False)

    def whole_log_probs(self) -> NDArray[np.float32]:
        """The same over ``ids``."""
        return np.concatenate((np.zeros(len(self.sample.prompt_ids), np.float32), self.log_probs()))

    def images(self, media: MediaStore) -> list[str]:
        """The files of its images, in order."""
        return [str(media.path(name).absolute()) for name in images(self.sample) or ()]

    def place(self) -> dict[str, Any]:
        """Where it belongs, for every format that has room for it. Names: ``PLACE`` in ``files``."""
        sample = self.sample
        return {
            "sample_id": sample.sample_id,
            "run_id": sample.run_id,
            "session_id": sample.session_id,
            "task_id": sample.task_id,
            "group_id": self.group,
            "rollout_index": sample.rollout_index,
            "row_index": sample.row_index,
            "row_count": sample.row_count,
            "is_last": self.last,
            "session_trainable_tokens": self.session_tokens,
            "weight": self.weight,
            "policy_version_min": sample.policy_version_min,
            "policy_version_max": sample.policy_version_max,
        }


@dataclass(slots=True)
class _Kept:
    """What is remembered of a session until its rows are read a second time."""

    run_id: str
    group_id: str | None
    reward: float | None
    tokens: int = 0
    last: int = -1
    rows: int = 0


@dataclass(slots=True)
class Choice:
    """What is exported of a set of rows, told from one pass over them; the second pass gives them out."""

    needs: Needs
    unrewarded: bool = False
    left: Counter[str] = field(default_factory=Counter)
    kept: dict[str, _Kept] = field(default_factory=dict)

    def see(self, sample: Sample) -> None:
        if reason := left_out(sample, self.needs, unrewarded=self.unrewarded):
            self.left[reason] += 1
            return
        session = self.kept.setdefault(sample.session_id, _Kept(sample.run_id, sample.group_id, sample.reward))
        session.tokens += int(sample.response_mask.sum())
        session.last = max(session.last, sample.row_index)
        session.rows += 1

    def groups(self) -> dict[tuple[str, str], dict[str, float]]:
        """Rewards by session, by group."""
        found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for name, session in self.kept.items():
            if session.group_id is not None and session.reward is not None:
                found[session.run_id, session.group_id][name] = session.reward
        return found

    def drop(self, session_id: str, reason: str) -> None:
        self.left[reason] += self.kept.pop(session_id).rows

    def drop_lonely(self) -> None:
        """Leaves out what has nobody to be compared with."""
        for group in self.groups().values():
            if len(group) < 2:
                for session in group:
                    self.drop(session, Left.FEWER_THAN_TWO)

    def rows(self, samples: Iterable[Sample], advantages: Mapping[str, float] | None = None) -> Iterator[Row]:
        """The second pass, in the order of ``samples``."""
        total = sum(session.tokens for session in self.kept.values())
        for sample in samples:
            session = self.kept.get(sample.session_id)
            if session is None or left_out(sample, self.needs, unrewarded=self.unrewarded):
                continue
            yield Row(
                sample,
                last=sample.row_index == session.last,
                session_tokens=session.tokens,
                weight=total / (len(self.kept) * session.tokens) if session.tokens else 1.0,
                advantage=advantages[sample.session_id] if advantages is not None else None,
            )


def rows_of(
    samples: Iterable[Sample], needs: Needs, *, unrewarded: bool = False, evaluation: bool = False
) -> tuple[list[Row], Counter[str]]:
    """The rows of sessions that were just closed, and what is left out of them; groups are the live trainer's.
    ``evaluation``: the trainer itself asked for one, and gets its rows to score, not to train."""
    if evaluation:
        samples = (_scored(sample) for sample in samples)
    samples = list(samples)
    choice = Choice(needs, unrewarded=unrewarded)
    for sample in samples:
        choice.see(sample)
    return list(choice.rows(samples)), choice.left


def _scored(sample: Sample) -> Sample:
    return (
        replace(sample, trainable=True, untrainable_reason=None) if sample.untrainable_reason == Reason.EVAL else sample
    )


def left_out(sample: Sample, needs: Needs, *, unrewarded: bool = False) -> str | None:
    """Why a row is not exported, whatever its group is. Raises ``Untrainable`` for one that contradicts itself."""
    if sample.untrainable_reason == Reason.EVAL:
        return Left.EVAL
    if not sample.trainable or not sample.response_mask.any():
        return Left.NOT_TRAINABLE
    checked(sample)
    if sample.media is not None and needs.tokens and not (needs.images and images(sample)):
        return Left.MEDIA
    if sample.reward is None and not unrewarded:
        return Left.REWARD_PENDING if sample.reward_status == RewardStatus.PENDING else Left.REWARD_NULL
    if sample.temperature is None and needs.temperature:
        return Left.NO_TEMPERATURE
    return Left.NO_GROUP if sample.group_id is None and needs.group else None


def images(sample: Sample) -> list[str] | None:
    """The sha256 of its images, in order; None where other media, or images that are elsewhere, are in it."""
    media = [medium for medium in listed(sample.media) if isinstance(medium, Medium)]
    found = [each.sha256 for each in media if each.sha256 is not None and (each.mime or "").startswith("image/")]
    return found if len(found) == len(listed(sample.media)) else None


def checked(sample: Sample) -> None:
    """The last look before a gradient. Nothing that the decoder writes fails it; a file by another hand may."""
    name = f"row {sample.sample_id} of run {sample.run_id}"
    hint = "make the samples anew: forge decode --rebuild"
    if len({len(sample.response_ids), len(sample.response_mask), len(sample.rollout_log_probs)}) != 1:
        raise Untrainable(f"{name}: ids, mask and log probabilities differ in length", hint)
    if not len(sample.prompt_ids):
        raise Untrainable(f"{name} has no prompt ids", hint)
    trained = sample.response_mask == 1
    if not np.isfinite(sample.rollout_log_probs[trained]).all():
        at = int(np.flatnonzero(trained & ~np.isfinite(sample.rollout_log_probs))[0])
        raise Untrainable(f"{name}: token {at} of its response has mask 1 and no log probability", hint)


def with_session(sample: Sample, session: Session | None) -> dict[str, Any]:
    """What a session's latest revision says anew of its rows: a grader may have changed the reward since."""
    if session is None:
        return {}
    changes: dict[str, Any] = {
        "reward": session.reward,
        "reward_status": session.reward_status,
        "reward_components": session.reward_components,
        "group_id": session.group_id,
    }
    if session.purpose == Purpose.EVAL:
        changes |= {"trainable": False, "untrainable_reason": Reason.EVAL}
    return changes
