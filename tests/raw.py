"""The scripted policy server's raw completions, in vLLM 0.32's shape: text beside ids, log probs in parallel lists."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence

from tests.script import Chunk, Gate, Json, Served, WordTokenizer, log_prob_of


class RawAnswer:
    """One choice as it grows. ``asked``: its ids are wanted."""

    def __init__(self, served: Served, tokenizer: WordTokenizer, asked: bool, model: str) -> None:
        self.served = served
        self._tokenizer = tokenizer
        self._asked = asked
        self.head: Json = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1700000000,
            "model": model,
        }
        self.finish: str | None = None
        self.stop: str | None = None
        self._text = ""
        self._ids: list[int] = []

    def take(self, chunk: Chunk) -> str:
        """The text that the chunk adds."""
        self.finish = chunk.finish or self.finish
        ends = chunk.finish in ("stop", "tool_calls")
        text = chunk.text
        if text is None:
            text = self._tokenizer.decode(chunk.ids[:-1] if ends else chunk.ids)
        self.stop = chunk.stop or self.stop
        self._text += text
        self._ids += chunk.ids
        return text

    def chunk(self, chunk: Chunk) -> Json:
        offset, first = len(self._text), not self._ids
        text = self.take(chunk)
        usage_due = bool((self.served.json.get("stream_options") or {}).get("include_usage"))
        tail = {"system_fingerprint": "scripted"} if chunk.finish and not usage_due else {}
        choice = self._choice(text, chunk.ids, offset, first=first, finish=chunk.finish)
        return self.head | {"choices": [choice]} | tail

    def whole(self, usage: Json) -> Json:
        choice = self._choice(self._text, self._ids, 0, first=True, finish=self.finish)
        choice |= {"prompt_logprobs": None, "routed_experts": None}
        rest = {"service_tier": None, "system_fingerprint": "scripted", "usage": usage, "kv_transfer_params": None}
        return self.head | {"choices": [choice]} | rest | {"ec_transfer_params": None, "metrics": None}

    def _choice(self, text: str, ids: list[int], offset: int, *, first: bool, finish: str | None) -> Json:
        return {
            "index": 0,
            "text": text,
            "logprobs": self._log_probs(ids, offset),
            "finish_reason": "stop" if finish == "tool_calls" else finish,
            "stop_reason": self.stop,
            "prompt_token_ids": self.served.prompt_ids if self._asked and first else None,
            "token_ids": ids if self._asked else None,
        }

    def _log_probs(self, ids: list[int], offset: int) -> Json | None:
        wanted = self.served.json.get("logprobs")
        if wanted is None or self.served.turn.fault.no_log_probs:
            return None
        tokens = [self._tokenizer.decode([token]) for token in ids]
        return {
            "text_offset": [offset + sum(map(len, tokens[:place])) for place in range(len(tokens))],
            "token_logprobs": [log_prob_of(token) for token in ids],
            "tokens": tokens,
            "top_logprobs": [
                {piece: log_prob_of(token)} | {f"alt{n}": -0.25 - n for n in range(wanted)}
                for piece, token in zip(tokens, ids, strict=True)
            ],
        }


async def raw_events(
    answer: RawAnswer,
    chunks: Sequence[Chunk],
    gate: Gate,
    emit: Callable[[Served, list[int]], None],
    usage: Callable[[Served], Json],
    *,
    streaming: bool,
) -> AsyncIterator[bytes]:
    """The answer's bytes, paced by the gate."""
    served, fault = answer.served, answer.served.turn.fault
    for chunk in chunks[served.skip :]:
        if not await gate.passed_before(served.aborted):
            answer.finish = "abort"
            if streaming:
                yield _event(answer.chunk(Chunk({}, [], "abort")))
            break
        if chunk.finish is not None and fault.no_finish:
            break
        emit(served, chunk.ids)
        if streaming and chunk.ids:
            yield _event(answer.chunk(chunk))
        else:
            answer.take(chunk)
    if not streaming:
        yield _dumps(answer.whole(usage(served)))
        return
    if (served.json.get("stream_options") or {}).get("include_usage"):
        yield _event(answer.head | {"choices": [], "usage": usage(served), "system_fingerprint": "scripted"})
    if not fault.no_done and not fault.no_finish:
        yield b"data: [DONE]\n\n"


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _event(value: object) -> bytes:
    return b"data: " + _dumps(value) + b"\n\n"
