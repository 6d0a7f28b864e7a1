"""A scripted session that knows the truth, against the tree and the rows made from its calls.

The simulator plays a harness that does what harnesses do: re-tokenise, strip thinking, edit, compact, retry, rewind,
run parallel sub-agents on one prompt, swap images. The checks look at nothing but the raw calls.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.storage.recipe import Recipe
from forge.storage.records import Call, CallKind, CallStatus, JoinCause, Sample, Session
from forge.storage.samples import Derivation, derive
from forge.storage.trajectory import EXACT, Placer, build

Message = dict[str, Any]
HEADER = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
PAIR = 1000
"""Ids from here on stand for two characters: what the model samples and no re-tokenisation gives."""
SECOND_US = 1_000_000


def canonical(text: str) -> list[int]:
    return [10 + ord(c) for c in text]


def sampled(text: str) -> list[int]:
    """Another tokenisation of the same text: its first two characters are one id."""
    return [PAIR + 7 * ord(text[0]) + ord(text[1]), *canonical(text[2:])]


@dataclass
class Part:
    message: Message
    ids: list[int]


def told(role: str, text: str) -> Part:
    return Part({"role": role, "content": text}, [HEADER[role], *canonical(text), 5])


@dataclass
class Thread:
    parts: list[Part]
    kind: str = CallKind.MAIN
    agent: str | None = None
    model: str = "m"
    media: list[str] = field(default_factory=list)
    pending: JoinCause | None = JoinCause.ROOT
    """Why the next call is no exact continuation; None if it is one."""
    sure: bool = True
    """False once several things happened at once, so that no single cause is right."""
    bent: bool = False
    """Some earlier reply is not as it was sampled: going back to it is no exact continuation."""

    def replies(self) -> list[int]:
        return [i for i, part in enumerate(self.parts) if part.message["role"] == "assistant"]

    def broke(self, cause: JoinCause) -> None:
        self.sure = self.sure and self.pending is None
        self.pending, self.bent = cause, True


class World:
    """The harness and the model of one session."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.expected: dict[str, JoinCause | None] = {}
        self.clock = 0
        self.count = 0
        self.main = Thread([told("system", "be good"), told("user", "do the task")])
        self.threads = [self.main]

    def text(self, n: int) -> str:
        self.count += 1
        return f"{'abcde'[n % 5]}{n % 3} word {self.count}"

    def ask(self, thread: Thread, n: int, **changes: Any) -> tuple[Call, Part]:
        """One call; the reply is not yet part of the thread."""
        text = self.text(n)
        content = f"<think>hm {n % 7} {self.count}</think>{text}" if n % 2 else text
        reply = Part({"role": "assistant", "content": content}, [*sampled(content), 6])
        prompt = [i for part in thread.parts for i in part.ids] + [HEADER["assistant"]]
        call = Call(
            call_id=f"c{len(self.calls):03d}", run_id="r", session_id="s", seq=len(self.calls), agent_id=thread.agent,
            kind=thread.kind, messages=json.dumps([part.message for part in thread.parts]),
            response=json.dumps(reply.message), finish_reason="stop", model_served=thread.model,
            prompt_ids=np.array(prompt, np.int32), output_ids=np.array(reply.ids, np.int32),
            output_log_probs=np.linspace(-1, -0.1, len(reply.ids), dtype=np.float32),
            media=json.dumps(thread.media) if thread.media else None, sampling_sent='{"temperature": 1.0}',
            start_us=self.clock, end_us=SECOND_US // 2, policy_version_start=n % 3, policy_version_end=n % 3,
            trainable=True,
        )  # fmt: skip
        call = replace(call, **changes)
        self.calls.append(call)
        if thread.sure:
            self.expected[call.call_id] = thread.pending
        self.clock += SECOND_US
        return call, reply

    def accept(self, thread: Thread, reply: Part, n: int) -> None:
        """The harness takes the reply into its history and goes on."""
        thread.parts += [Part(reply.message, [HEADER["assistant"], *reply.ids]), told("tool", self.text(n))]
        thread.pending, thread.sure = None, True

    # What a harness does. Each takes a thread and a number that varies it.

    def turn(self, thread: Thread, n: int) -> None:
        self.accept(thread, self.ask(thread, n)[1], n)

    def last_word(self, thread: Thread, n: int) -> None:
        self.ask(thread, n)

    def cut_by_length(self, thread: Thread, n: int) -> None:
        self.accept(thread, self.ask(thread, n, finish_reason="length")[1], n)

    def constrained(self, thread: Thread, n: int) -> None:
        self.accept(thread, self.ask(thread, n, trainable=False, untrainable_reason="constrained")[1], n)

    def fails(self, thread: Thread, n: int) -> None:
        nothing = np.empty(0, np.int32)
        self.ask(thread, n, status=CallStatus.ERROR, output_ids=nothing, output_log_probs=nothing.astype(np.float32),
                 response=None, trainable=False, untrainable_reason="status")  # fmt: skip

    def aborted(self, thread: Thread, n: int) -> None:
        self.ask(thread, n, status=CallStatus.ABORTED, trainable=False, untrainable_reason="status")

    def no_ids(self, thread: Thread, n: int) -> None:
        nothing = np.empty(0, np.int32)
        call, _ = self.ask(thread, n, prompt_ids=nothing, trainable=False, untrainable_reason="prompt_ids_missing")
        self.expected.pop(call.call_id, None)

    def retry(self, thread: Thread, n: int) -> None:
        first, early = self.ask(thread, n)
        linked = first.call_id if n % 2 else None
        _, late = self.ask(thread, n + 1, retry_of=linked)
        self.accept(thread, early if n % 3 == 0 else late, n)

    def choices(self, thread: Thread, n: int) -> None:
        first, one = self.ask(thread, n)
        second, two = self.ask(thread, n + 1)
        self.calls[-1] = replace(second, call_id=first.call_id, choice=1, seq=first.seq, start_us=first.start_us)
        self.expected.pop(second.call_id, None)
        self.accept(thread, one if n % 2 else two, n)

    def retokenize(self, thread: Thread, n: int) -> None:
        for i in thread.replies()[-1 - n % 2 :]:
            content = thread.parts[i].message["content"]
            if content and "<think>" not in content:
                thread.parts[i].ids = [HEADER["assistant"], *canonical(content), 6]
                thread.broke(JoinCause.RETOKENIZED)
        thread.sure = thread.sure and len(thread.replies()) == 1

    def strip_thinking(self, thread: Thread, n: int) -> None:
        for i in thread.replies():
            content = thread.parts[i].message["content"]
            if "<think>" in content:
                text = content.split("</think>")[1]
                thread.parts[i] = Part({"role": "assistant", "content": text}, [HEADER["assistant"], *sampled(text), 6])
                thread.broke(JoinCause.THINKING_STRIPPED)
        thread.sure = thread.sure and len(thread.replies()) == 1

    def edit(self, thread: Thread, n: int) -> None:
        if replies := thread.replies():
            at = replies[n % len(replies)]
            text = "cut" + self.text(n)
            thread.parts[at] = Part({"role": "assistant", "content": text}, [HEADER["assistant"], *canonical(text), 6])
            thread.broke(JoinCause.EDITED)

    def compact(self, thread: Thread, n: int) -> None:
        asking = Thread([*thread.parts, told("user", "summarise")], CallKind.COMPACTION, thread.agent, sure=False)
        _, reply = self.ask(asking, n)
        summary = reply.message["content"].split("</think>")[-1]
        thread.parts = [thread.parts[0], told("user", f"so far: {summary}")]
        thread.media, thread.pending, thread.sure = [], JoinCause.COMPACTED, len(summary) >= 16

    def forget_middle(self, thread: Thread, n: int) -> None:
        replies = thread.replies()
        if len(replies) >= 3 and thread.pending is None:
            del thread.parts[replies[0] : replies[1]]
            thread.broke(JoinCause.COMPACTED)

    def rewind(self, thread: Thread, n: int) -> None:
        if replies := thread.replies():
            del thread.parts[replies[n % len(replies)] + 1 :]
            thread.parts.append(told("user", self.text(n)))
            if not any(900 in part.ids for part in thread.parts):
                thread.media = []
            thread.sure = thread.sure and thread.pending is None and not thread.bent

    def subagent(self, thread: Thread, n: int) -> None:
        start = [told("system", "be good"), told("user", f"sub task {n % 2}")]
        self.threads.append(Thread(start, CallKind.SUBAGENT, f"a{len(self.threads)}" if n % 3 else None))

    def parallel(self, thread: Thread, n: int) -> None:
        """Two sub-agents on one prompt at one time, of which one goes on."""
        one, two = (Thread([told("user", "twin")], CallKind.SUBAGENT, sure=False) for _ in range(2))
        _, reply = self.ask(one, n)
        self.clock -= SECOND_US
        self.ask(two, n + 1)
        self.accept(one, reply, n)
        self.threads.append(one)

    def title(self, thread: Thread, n: int) -> None:
        self.ask(Thread([*thread.parts, told("user", "a title")], CallKind.TITLE, sure=False), n)

    def image(self, thread: Thread, n: int) -> None:
        """A screenshot: the same placeholder ids whatever it shows."""
        if thread.media:
            thread.media = [f"sha{self.count}", *thread.media[1:]]
            self.count += 1
            thread.sure, thread.bent = False, True
        else:
            thread.parts.append(Part({"role": "user", "content": "<image>"}, [2, 900, 900, 5]))
            thread.media = ["sha0"]
            thread.sure = thread.sure and thread.pending is not None

    def other_model(self, thread: Thread, n: int) -> None:
        thread.model, thread.sure, thread.bent = f"m{n % 2}", False, True


ACTIONS = [
    World.turn, World.last_word, World.cut_by_length, World.constrained, World.fails, World.aborted, World.no_ids,
    World.retry, World.choices, World.retokenize, World.strip_thinking, World.edit, World.compact,
    World.forget_middle, World.rewind, World.subagent, World.parallel, World.title, World.image, World.other_model,
]  # fmt: skip
STEP = st.tuples(st.one_of(st.just(World.turn), st.sampled_from(ACTIONS)), st.integers(0, 5), st.integers(0, 11))
SCRIPTS = st.lists(STEP, min_size=1, max_size=24)
SESSION = Session(session_id="s", run_id="r", reward=1.0, reward_status="graded")


def play(script: list[Any]) -> World:
    world = World()
    for action, which, n in script:
        action(world, world.threads[which % len(world.threads)], n)
    return world


def sequence(call: Call) -> list[int]:
    return [*call.prompt_ids.tolist(), *call.output_ids.tolist()]


def check_rows(calls: list[Call], done: Derivation) -> None:
    by_id: dict[str, list[Call]] = {}
    for call in calls:
        by_id.setdefault(call.call_id, []).append(call)
    trained: Counter[tuple[str, int, int]] = Counter()
    for row in done.samples:
        trained.update(trained_tokens(row, by_id))
    assert not trained or max(trained.values()) == 1
    left_out = sum(excluded.tokens for excluded in done.excluded)
    assert len(trained) + left_out == sum(len(call.output_ids) for call in calls)
    assert {row.session_trainable_tokens for row in done.samples} <= {len(trained)}


def trained_tokens(row: Sample, by_id: dict[str, list[Call]]) -> list[tuple[str, int, int]]:
    """The (call, choice, offset) of every mask-1 token, each found under the very context it was sampled in."""
    assert len(row.response_ids) == len(row.response_mask) == len(row.rollout_log_probs)
    assert row.response_mask.any()
    whole = [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
    tokens = []
    for start, end, call_id in zip(row.turn_starts, row.turn_ends, row.turn_call_ids, strict=True):
        at, until = len(row.prompt_ids) + start, len(row.prompt_ids) + end
        seen = [c for c in by_id[call_id] if sequence(c)[:until] == whole[:until] and len(c.prompt_ids) == at]
        assert seen, "a sampled turn stands under a context its model did not see"
        for offset in range(end - start):
            place = start + offset
            if row.response_mask[place]:
                assert seen[0].trainable
                assert row.rollout_log_probs[place] == seen[0].output_log_probs[offset]
                tokens.append((call_id, seen[0].choice, offset))
            else:
                assert np.isnan(row.rollout_log_probs[place])
        assert len({c.model_served for turn in row.turn_call_ids for c in by_id[turn]}) == 1
        media, last = (json.loads(m or "[]") for m in (seen[0].media, row.media))
        assert last[: len(media)] == media
    assert len(tokens) == row.response_mask.sum()
    assert sum(row.token_versions[1::2]) == len(tokens)
    return tokens


@settings(max_examples=120, deadline=None)
@given(SCRIPTS, st.one_of(st.none(), st.integers(2, 160)))
def test_no_token_is_trained_twice_or_out_of_its_context(script: list[Any], max_tokens: int | None) -> None:
    world = play(script)
    done = derive(SESSION, world.calls, Recipe(max_tokens=max_tokens))
    check_rows(world.calls, done)
    assert all(len(row.prompt_ids) + len(row.response_ids) <= (max_tokens or 1 << 30) for row in done.samples)


@settings(max_examples=50, deadline=None)
@given(SCRIPTS, st.integers(0, 1 << 30))
def test_rows_do_not_depend_on_the_order_of_calls(script: list[Any], seed: int) -> None:
    calls = play(script).calls
    shuffled = calls[:]
    random.Random(seed).shuffle(shuffled)
    once, again = derive(SESSION, calls), derive(SESSION, shuffled)
    assert [repr(row) for row in once.samples] == [repr(row) for row in again.samples]
    assert once.excluded == again.excluded


@settings(max_examples=60, deadline=None)
@given(SCRIPTS)
def test_placement_equals_pairwise_search(script: list[Any]) -> None:
    calls = play(script).calls
    tree = build(calls)
    for index, node in enumerate(tree.nodes):
        prompt = node.call.prompt_ids.tolist()
        earlier = [n.call for n in tree.nodes[:index] if len(n.call.prompt_ids)]
        exact = [len(sequence(c)) for c in earlier if extends(node.call, c)]
        if exact:
            assert node.placement.join == EXACT
            assert node.placement.prefix_len == max(exact)
        else:
            assert node.placement.join == "none"
            assert node.placement.prefix_len == max((common(sequence(c), prompt) for c in earlier), default=0)
        if node.placement.parent_call_id is not None:
            key = (node.placement.parent_call_id, node.placement.parent_choice)
            parent = next(n.call for n in tree.nodes[:index] if (n.call.call_id, n.call.choice) == key)
            assert common(sequence(parent), prompt) >= node.placement.prefix_len


def extends(child: Call, parent: Call) -> bool:
    ids, media = sequence(parent), json.loads(parent.media or "[]")
    return (
        len(parent.output_ids) > 0
        and child.prompt_ids.tolist()[: len(ids)] == ids
        and parent.model_served == child.model_served
        and json.loads(child.media or "[]")[: len(media)] == media
    )


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=120, deadline=None)
@given(SCRIPTS)
def test_every_break_has_its_cause(script: list[Any]) -> None:
    world = play(script)
    for node in build(world.calls).nodes:
        if node.call.call_id in world.expected and len(node.call.prompt_ids):
            assert node.placement.join_cause == world.expected[node.call.call_id], node.call.call_id


@settings(max_examples=40, deadline=None)
@given(SCRIPTS)
def test_a_call_is_placed_alike_in_the_order_of_closing(script: list[Any]) -> None:
    """The decoder sees calls as they close: overlapping ones may change places, their joins may not."""
    calls = play(script).calls
    closing = sorted(calls, key=lambda c: (c.start_us // SECOND_US, -c.seq))
    placer = Placer()
    placed = {(c.call_id, c.choice): placer.add(c) for c in closing}
    for node in build(calls).nodes:
        place = placed[node.call.call_id, node.call.choice]
        assert (place.join, place.prefix_len) == (node.placement.join, node.placement.prefix_len) or (
            place.join == node.placement.join == "none"
        )
