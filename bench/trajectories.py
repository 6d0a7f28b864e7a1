"""The workload of the storage bars: agents whose every call repeats the conversation so far.

Owns the seeded sessions, and the order-0 limit of what is new in them. Knows nothing of how anything is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bench import wire
from bench.words import Ids, LogProbs, Words

F32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """How long sessions are, in tokens where nothing else is said."""

    sessions: int = 4
    calls: int = 50
    start: int = 4000
    """Of the first prompt."""
    output: int = 365
    """Mean of an answer."""
    between: int = 737
    """Mean of what a tool says to it."""
    seed: int = 20261130


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call: what a harness sends, what the policy server says, and what is true of it."""

    session: int
    request: bytes
    answer: bytes
    prompt_ids: Ids
    output_ids: Ids
    log_probs: LogProbs


@dataclass(slots=True)
class _Agent:
    ids: Ids
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Workload:
    exchanges: list[Exchange]
    """In the order of calls: one of each session in turn."""
    limit: float
    """Bytes: what is new, each id at its order-0 entropy, each log probability at 32 bits."""
    new_ids: int

    @property
    def json_lines(self) -> int:
        """Bytes of the same as JSON lines with whole prompts: ids and log probabilities alone."""
        return sum(len(json.dumps(_plain(exchange))) + 1 for exchange in self.exchanges)


def _plain(exchange: Exchange) -> dict[str, list[Any]]:
    return {
        "prompt_ids": exchange.prompt_ids.tolist(),
        "output_ids": exchange.output_ids.tolist(),
        "output_log_probs": exchange.log_probs.tolist(),
    }


def make(plan: Plan) -> Workload:
    words = Words(plan.seed)
    exchanges = list(_exchanges(plan, words))
    ends = exchanges[-plan.sessions :]
    new = sum(len(e.prompt_ids) + len(e.output_ids) for e in ends)
    limit = new * words.bits_per_id / 8 + sum(F32_BYTES * len(e.output_ids) for e in exchanges)
    return Workload(exchanges, limit, new)


def _exchanges(plan: Plan, words: Words) -> Iterator[Exchange]:
    agents = [_begin(words, plan.start) for _ in range(plan.sessions)]
    for number in range(plan.calls * plan.sessions):
        agent = agents[number % plan.sessions]
        output = words.ids(words.count(plan.output))
        log_probs = words.log_probs(len(output))
        _ask(agent, wire.mark("raw", number))
        body = {"model": wire.MODEL, "messages": agent.messages, "tools": [wire.TOOL], "temperature": 1.0}
        answer = wire.answer(words, agent.ids, output, log_probs, number)
        yield Exchange(number % plan.sessions, wire.encode(body), answer, agent.ids, output, log_probs)
        agent.messages = [*agent.messages, {"role": "assistant", "content": words.text(output)}]
        said = words.ids(words.count(plan.between))
        agent.messages.append({"role": "user", "content": words.text(said)})
        agent.ids = np.concatenate((agent.ids, output, said))


def _begin(words: Words, tokens: int) -> _Agent:
    ids = words.ids(tokens)
    half = tokens // 2
    messages = [{"role": "system", "content": words.text(ids[:half])}]
    messages.append({"role": "user", "content": words.text(ids[half:])})
    return _Agent(ids, messages)


def _ask(agent: _Agent, mark: str) -> None:
    """The mark stands at the end of the last message, and stays there."""
    last = agent.messages[-1]
    agent.messages[-1] = {**last, "content": last["content"] + mark}
