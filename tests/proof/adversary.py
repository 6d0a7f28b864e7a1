"""A harness that does to its history whatever real ones were seen to do, and writes down what it did.

It knows the truth that no recorder can see: which reply it took into which history, what it changed in it since, and
whether a single known thing happened between two calls, so that a break has one right cause.
"""

from __future__ import annotations

import copy
import json
import random
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forge.storage.media_list import media_of
from forge.storage.records import Call, CallKind, CallStatus, JoinCause
from tests.proof.model import Reply, sample, says, tools
from tests.proof.templates import Message, Template

SUMMARY_MIN = 16
"""A shorter summary proves nothing when it is found in a later prompt."""


@dataclass
class Thread:
    """One agent's history as the harness keeps it."""

    messages: list[Message]
    kind: str = CallKind.MAIN
    agent: str | None = None
    model: str = "m"
    tools: list[Any] | None = field(default_factory=tools)
    done: list[JoinCause] = field(default_factory=list)
    """What was done to the history since its last call; empty: it was only extended."""
    clean: bool = True
    """Nothing was ever done to it before that."""
    before: set[str | None] | None = field(default_factory=lambda: {JoinCause.ROOT})
    """The right causes of its last call's break; None where they are not certain."""
    taken: bool = False
    """The last call's reply is in the history."""


@dataclass
class Truth:
    used: set[int] = field(default_factory=set)
    """Calls whose reply was taken into a history, unchanged, and followed by another call there."""
    causes: dict[str, set[str | None]] = field(default_factory=dict)
    """Where it is certain: the causes that are right for a call's break."""


class Adversary:
    """Plays one session; ``calls`` is what a recorder saw."""

    def __init__(self, template: Template, seed: int) -> None:
        self.template = template
        self.rng = random.Random(seed)
        self.calls: list[Call] = []
        self.truth = Truth()
        self._clock = 0
        self._images = 0
        self._pending: dict[int, int] = {}
        """Thread to the call whose reply it took last."""
        system = {"role": "system", "content": "You are an agent. Session nonce: 0."}
        self.main = Thread([system, {"role": "user", "content": says(self.rng, 3, 20)}])
        self.threads = [self.main]

    def play(self, steps: int) -> None:
        for _ in range(steps):
            thread = self.rng.choice(self.threads)
            self.rng.choices(ACTIONS, WEIGHTS)[0](self, thread)

    # Calls

    def ask(self, thread: Thread, **changes: Any) -> tuple[int, Reply]:
        """One call; its reply is in no history yet. Gives its number."""
        prompt = self.template.encode(self.template.render(thread.messages, thread.tools, generate=True))
        reply = sample(self.rng, self.template, thread.messages, thread.tools)
        number = len(self.calls)
        version = self.rng.randrange(3)
        call = Call(
            call_id=f"c{number:04d}", run_id="r", session_id="s", seq=number, kind=thread.kind, agent_id=thread.agent,
            messages=json.dumps(thread.messages), tools=json.dumps(thread.tools) if thread.tools else None,
            response=json.dumps(reply.message), finish_reason="stop", model_served=thread.model,
            prompt_ids=np.array(prompt, np.int32), output_ids=np.array(reply.ids, np.int32),
            output_log_probs=-self._log_probs(len(reply.ids)), media=media_of(json.dumps(thread.messages)),
            start_us=self._clock, end_us=500_000, sampling_sent='{"temperature": 1.0}', policy_version_start=version,
            policy_version_end=version, trainable=True,
        )  # fmt: skip
        self.calls.append(replace(call, **changes))
        self._clock += 1_000_000
        if (taken := self._pending.pop(id(thread), None)) is not None:
            self.truth.used.add(taken)
        self._cause(thread, self.calls[-1])
        thread.clean, thread.done, thread.taken = thread.clean and not thread.done, [], False
        return number, reply

    def _log_probs(self, count: int) -> Any:
        return np.array([self.rng.random() * 3 for _ in range(count)], np.float32)

    def _cause(self, thread: Thread, call: Call) -> None:
        """What may be said of a break at this call, if it is one: what was done to the history since the last call,
        or what the template does to it by itself; of the same prompt again, what was said of it before."""
        right: set[str | None] | None = None
        if thread.clean and len(thread.done) <= 1:
            right = {None, *thread.done} | (set() if thread.taken else thread.before or set())
            if thread.taken:
                thought = any(m.get("reasoning") for m in thread.messages if m["role"] == "assistant")
                right |= {JoinCause.RETOKENIZED} | ({JoinCause.THINKING_STRIPPED} if thought else set())
            if not any(m["role"] == "assistant" for m in thread.messages):
                right.add(JoinCause.ROOT)
            if thread.before is None and not thread.taken:
                right = None
        thread.before = right
        if right is not None and len(call.prompt_ids):
            self.truth.causes[call.call_id] = right

    def take(self, thread: Thread, number: int, reply: Reply) -> None:
        """The reply becomes part of the history, and something follows it."""
        message = copy.deepcopy(reply.message)
        thread.messages.append(message)
        thread.taken = True
        self._pending[id(thread)] = number
        calls = message.get("tool_calls") or ()
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": says(self.rng, 1, 15)} for call in calls
        ]
        if results and self.rng.random() < 0.3:
            results.reverse()  # parallel results come back in any order
        thread.messages += results or [{"role": "user", "content": says(self.rng, 1, 8)}]

    # What a harness does

    def turn(self, thread: Thread) -> None:
        self.take(thread, *self.ask(thread))

    def fail(self, thread: Thread) -> None:
        nothing = np.empty(0, np.int32)
        self.ask(thread, status=CallStatus.ERROR, response=None, output_ids=nothing,
                 output_log_probs=nothing.astype(np.float32), trainable=False, untrainable_reason="status")  # fmt: skip

    def abort(self, thread: Thread) -> None:
        self.ask(thread, status=CallStatus.ABORTED, trainable=False, untrainable_reason="status")

    def retry(self, thread: Thread) -> None:
        """The same request twice; the harness takes either answer."""
        first, early = self.ask(thread)
        linked = self.calls[first].call_id if self.rng.random() < 0.7 else None
        second, late = self.ask(thread, retry_of=linked)
        if self.rng.random() < 0.3:
            self.take(thread, first, early)
        else:
            self.take(thread, second, late)

    def choices(self, thread: Thread) -> None:
        first, one = self.ask(thread)
        second, two = self.ask(thread)
        head = self.calls[first]
        self.calls[second] = replace(
            self.calls[second], call_id=head.call_id, choice=1, seq=head.seq, start_us=head.start_us
        )
        self.truth.causes.pop(self.calls[second].call_id, None)
        chosen = self.rng.choice(((first, one), (second, two)))
        self.take(thread, *chosen)

    def reserialise(self, thread: Thread) -> None:
        for call in _tool_calls(thread):
            try:
                value = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            keys = list(value.items())
            self.rng.shuffle(keys)
            call["function"]["arguments"] = json.dumps(dict(keys), separators=(",", ":"), ensure_ascii=False)
            call["id"] = call["id"].replace("_", "")
        # Key order is kept by templates that write the object as it is: other text, the same call.
        thread.done += [JoinCause.RETOKENIZED] if any(True for _ in _tool_calls(thread)) else []

    def repair(self, thread: Thread) -> None:
        calls = list(_tool_calls(thread))
        if calls:
            call = self.rng.choice(calls)["function"]
            how = self.rng.choice(("empty", "rename", "repair"))
            if how == "rename":
                call["name"] = "invalid"
            else:
                call["arguments"] = "{}" if how == "empty" else json.dumps({"command": says(self.rng, 1, 3)})
            self._edited(thread)

    def drop_reasoning(self, thread: Thread) -> None:
        replies = [m for m in thread.messages if m["role"] == "assistant" and m.get("reasoning")]
        for message in replies:
            del message["reasoning"]
        if replies:
            thread.done.append(JoinCause.THINKING_STRIPPED)
            self._pending.pop(id(thread), None)

    def drop_answer(self, thread: Thread) -> None:
        """mini-swe-agent leaves an answer without a tool call out of its history."""
        at = max((i for i, m in enumerate(thread.messages) if m["role"] == "assistant"), default=None)
        if at is not None and not thread.messages[at].get("tool_calls"):
            del thread.messages[at]
            self._edited(thread)
            thread.clean = False  # a gap may be an edit or a small compaction: nobody can tell

    def nonce(self, thread: Thread) -> None:
        headed = thread.messages[0]["role"] == "system"
        said = {"role": "system", "content": f"You are an agent. Session nonce: {self.rng.random()}."}
        thread.messages[: int(headed)] = [said]
        self._edited(thread)

    def move_state(self, thread: Thread) -> None:
        """OpenClaw's state message moves to the end at every call."""
        state = [m for m in thread.messages if m.get("state")]
        thread.messages = [m for m in thread.messages if not m.get("state")]
        thread.messages.append({"role": "user", "content": "state: idle", "state": True})
        if state:
            self._edited(thread)

    def flip(self, thread: Thread) -> None:
        """A text becomes a list of one text, as when a cache mark moves."""
        message = self.rng.choice([m for m in thread.messages if m["role"] in ("user", "tool")])
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}]

    def compact(self, thread: Thread) -> None:
        asking = Thread(
            [*thread.messages, {"role": "user", "content": "Summarise."}], CallKind.COMPACTION, thread.agent
        )
        asking.clean = False
        _, reply = self.ask(asking)
        summary = str(reply.message["content"])
        thread.messages = [thread.messages[0], {"role": "user", "content": f"So far: {summary}"}]
        self._pending.pop(id(thread), None)
        thread.done.append(JoinCause.COMPACTED)
        thread.clean = thread.clean and len(summary) >= SUMMARY_MIN

    def restart(self, thread: Thread) -> None:
        """The first turn is sent again."""
        asked = next((i for i, m in enumerate(thread.messages) if m["role"] == "assistant"), len(thread.messages))
        del thread.messages[asked:]
        self._edited(thread)
        thread.clean = False

    def rewind(self, thread: Thread) -> None:
        replies = [i for i, m in enumerate(thread.messages) if m["role"] == "assistant"]
        if replies:
            del thread.messages[self.rng.choice(replies) :]
            thread.messages.append({"role": "user", "content": says(self.rng, 1, 8)})
            self._edited(thread)
            thread.clean = False

    def subagent(self, thread: Thread) -> None:
        system = {"role": "system", "content": "You are a helper."}
        task = {"role": "user", "content": f"sub task {self.rng.randrange(2)}"}
        agent = f"a{len(self.threads)}" if self.rng.random() < 0.7 else None
        self.threads.append(Thread([system, task], CallKind.SUBAGENT, agent))

    def parallel(self, thread: Thread) -> None:
        """Two agents ask the same at one time; both go on."""
        start = [{"role": "user", "content": "twin"}]
        twins = [Thread(copy.deepcopy(start), CallKind.SUBAGENT) for _ in range(2)]
        first = self.ask(twins[0])
        self._clock -= 1_000_000
        second = self.ask(twins[1])
        for twin, answer in zip(twins, (first, second), strict=True):
            twin.clean = False
            self.take(twin, *answer)
        self.threads += twins

    def title(self, thread: Thread) -> None:
        aside = Thread(
            [{"role": "user", "content": "A title for: " + says(self.rng, 2, 5)}], CallKind.TITLE, tools=None
        )
        self.ask(aside)

    def image(self, thread: Thread) -> None:
        """A screenshot of the usual size; later another one in its place."""
        shown = [p for m in thread.messages if isinstance(m["content"], list) for p in m["content"] if "image_url" in p]
        self._images += 1
        url = {"url": f"data:image/png;base64,{b64encode(str(self._images).encode()).decode()}"}
        if shown and self.rng.random() < 0.5:
            self.rng.choice(shown)["image_url"] = url
            self._edited(thread)
        else:
            parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": url}]
            thread.messages.append({"role": "user", "content": parts})

    def other_model(self, thread: Thread) -> None:
        thread.model = self.rng.choice(("m", "n"))
        thread.clean = False

    def _edited(self, thread: Thread) -> None:
        thread.done.append(JoinCause.EDITED)
        self._pending.pop(id(thread), None)


def _tool_calls(thread: Thread) -> Any:
    return (call for m in thread.messages for call in m.get("tool_calls") or ())


_RARE: dict[Callable[[Adversary, Thread], None], float] = {
    Adversary.fail: 1, Adversary.abort: 1, Adversary.retry: 2, Adversary.choices: 1, Adversary.reserialise: 2,
    Adversary.repair: 1.5, Adversary.drop_reasoning: 1, Adversary.drop_answer: 1, Adversary.nonce: 0.5,
    Adversary.move_state: 1, Adversary.flip: 1, Adversary.compact: 1, Adversary.restart: 0.4, Adversary.rewind: 1,
    Adversary.subagent: 1, Adversary.parallel: 0.6, Adversary.title: 0.6, Adversary.image: 1,
    Adversary.other_model: 0.5,
}  # fmt: skip
ACTIONS: list[Callable[[Adversary, Thread], None]] = [Adversary.turn, *_RARE]
WEIGHTS: list[float] = [16, *_RARE.values()]
