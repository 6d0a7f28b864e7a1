"""What clients get: whole bodies and stream chunks in vLLM's shapes. Pure.

A ``Reply`` is fed the steps of one job and says what goes out. Not obvious: every step makes one chunk, also when its
text is held back, so ids and log probs stand in the chunk of the step that drew them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge.policy.answer import Answer
from forge.policy.protocol import Wanted
from forge.policy.sampler import MINUS_INFINITY, Drawn, Scored
from forge.policy.scheduler import Step
from forge.policy.template import Text
from forge.policy.toolcalls import Parsed, ToolCall, ToolParser

Json = dict[str, Any]


def error(status: int, message: str, param: str | None = None) -> Json:
    kinds = {400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError", 409: "ConflictError"}
    kinds |= {413: "BadRequestError", 429: "RateLimitError", 503: "ServiceUnavailableError"}
    kind = kinds.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Reply:
    """The part that chat and completions share."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, wanted: Wanted, text: Text, answer: Answer, prompt: list[int], head: Json) -> None:
        self.wanted = wanted
        self.text = text
        self.answer = answer
        self.prompt = prompt
        self.head = head
        """id, created, model."""
        self.give_ids = bool(wanted.common.return_token_ids)
        self.cached = 0
        self.content = ""
        self.drawn: list[Drawn] = []
        self.scored: list[Scored] = []
        self.finish: str | None = None
        self.stop: str | int | None = None
        self.goes_on = False
        """It is the rest of an answer that was given up."""
        self.before = 0
        """Ids of that answer."""

    def usage(self) -> Json:
        made = len(self.answer.ids)
        return {
            "prompt_tokens": len(self.prompt),
            "total_tokens": len(self.prompt) + made,
            "completion_tokens": made,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def spans(self) -> list[Json]:
        return [span._asdict() for span in self.answer.spans]

    def ending(self) -> Json:
        """What the last choice object of a stream, and that of a whole body, carry."""
        end: Json = {"finish_reason": self.finish, "stop_reason": self.stop}
        return end | ({"weight_versions": self.spans()} if self.give_ids else {})

    def usage_chunk(self, fingerprint: str) -> Json:
        chunk = self.head | {"object": self.chunk_object, "choices": [], "usage": self.usage()}
        return chunk | {"system_fingerprint": fingerprint}

    def take(self, step: Step) -> None:
        self.finish, self.stop = step.said.finish, step.said.stop
        if step.drawn is not None:
            self.drawn.append(step.drawn)

    def parse(self, step: Step) -> Parsed | None:
        raise NotImplementedError

    def go_on(self, so_far: Sequence[int]) -> bool:
        """Takes over what was sampled before; False if it had ended already."""
        for token in so_far:
            self.parse(Step(None, self.answer.feed(token, "")))
        self.goes_on, self.before = True, len(so_far)
        self.answer.spans.clear()
        return self.finish is None

    def token(self, index: int) -> str:
        if self.wanted.common.return_tokens_as_token_ids:
            return f"token_id:{index}"
        return self.text.bytes_of(index).decode(errors="replace")


class ChatReply(Reply):
    prefix = "chatcmpl-"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, wanted: Wanted, text: Text, answer: Answer, prompt: list[int], head: Json) -> None:
        super().__init__(wanted, text, answer, prompt, head)
        self.parser = ToolParser() if wanted.parse_tools else None
        self.calls: list[ToolCall] = []

    def first(self) -> Json:
        choice: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        chunk = self.head | {"object": self.chunk_object, "choices": [choice | {"finish_reason": None}]}
        return chunk | ({"prompt_token_ids": self.prompt} if self.give_ids else {})

    def chunk(self, step: Step) -> Json:
        said = self.parse(step)
        delta: Json = {"content": said.content} if said.content or not said.calls else {}
        if said.calls:
            at = len(self.calls) - len(said.calls)
            delta["tool_calls"] = [{"index": at + n} | self.call(at + n) for n in range(len(said.calls))]
        drawn = [step.drawn] if step.drawn else []
        choice: Json = {"index": 0, "delta": delta, "logprobs": self.log_probs(drawn) if drawn else None}
        choice |= self.ending() if self.finish else {"finish_reason": None}
        choice |= {"token_ids": [d.id for d in drawn]} if self.give_ids else {}
        return self.head | {"object": self.chunk_object, "choices": [choice]}

    def whole(self, fingerprint: str) -> Json:
        message: Json = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
        if self.calls:
            message["tool_calls"] = [self.call(n) for n in range(len(self.calls))]
        choice = {"index": 0, "message": message, "logprobs": self.log_probs(self.drawn)} | self.ending()
        choice["token_ids"] = self.answer.ids[self.before :] if self.give_ids else None
        body = self.head | {"object": self.whole_object, "choices": [choice], "usage": self.usage()}
        body |= {"service_tier": None, "system_fingerprint": fingerprint, "prompt_logprobs": None}
        return body | {"prompt_token_ids": self.prompt if self.give_ids else None, "kv_transfer_params": None}

    def parse(self, step: Step) -> Parsed:
        self.take(step)
        said = Parsed(step.said.text)
        if self.parser:
            said = self.parser.feed(step.said.text)
            if self.finish:
                rest = self.parser.finish()
                said = Parsed(said.content + rest.content, said.calls + rest.calls)
        self.content += said.content
        self.calls += said.calls
        if self.finish == "stop" and self.calls:
            self.finish = "tool_calls"
        return said

    def call(self, at: int) -> Json:
        function = {"name": self.calls[at].name, "arguments": self.calls[at].arguments}
        return {
            "id": f"call_{self.head['id'].removeprefix(self.prefix)}_{at}",
            "type": "function",
            "function": function,
        }

    def log_probs(self, drawn: list[Drawn]) -> Json | None:
        if not self.wanted.log_probs:
            return None
        return {"content": [self._entry(d.id, d.log_prob) | {"top_logprobs": self._top(d)} for d in drawn]}

    def _top(self, drawn: Drawn) -> list[Json]:
        return [self._entry(index, log_prob) for index, log_prob in drawn.top]

    def _entry(self, index: int, log_prob: float) -> Json:
        return {"token": self.token(index), "logprob": log_prob, "bytes": list(self.text.bytes_of(index))}


class CompletionReply(Reply):
    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def chunk(self, step: Step) -> Json:
        self.take(step)
        drawn = [step.drawn] if step.drawn else []
        log_probs = self.log_probs(drawn, len(self.content)) if drawn else None
        choice: Json = {"index": 0, "text": step.said.text, "logprobs": log_probs}
        self.content += step.said.text
        choice |= self.ending() if self.finish else {"finish_reason": None, "stop_reason": None}
        if self.give_ids:
            choice["token_ids"] = [d.id for d in drawn]
            choice |= {"prompt_token_ids": self.prompt} if len(self.drawn) <= 1 else {}
        return self.head | {"object": self.chunk_object, "choices": [choice]}

    def whole(self, fingerprint: str) -> Json:
        choice: Json = {"index": 0, "text": self.content, "logprobs": self.log_probs(self.drawn, 0)} | self.ending()
        choice |= {"token_ids": self.answer.ids if self.give_ids else None, "prompt_logprobs": self.prompt_log_probs()}
        choice["prompt_token_ids"] = self.prompt if self.give_ids else None
        body = self.head | {"object": self.whole_object, "choices": [choice], "usage": self.usage()}
        return body | {"service_tier": None, "system_fingerprint": fingerprint, "kv_transfer_params": None}

    def parse(self, step: Step) -> None:
        self.take(step)
        self.content += step.said.text

    def prompt_log_probs(self) -> list[Json | None] | None:
        """Of each prompt id, by id as vLLM has it: its own first, then the likeliest; nothing of the first one."""
        if self.wanted.common.prompt_logprobs is None:
            return None
        return [None, *(self._prompt_entry(each) for each in self.scored)]

    def _prompt_entry(self, scored: Scored) -> Json:
        ranked = [(scored.id, scored.log_prob, scored.rank)]
        ranked += [(i, p, rank) for rank, (i, p) in enumerate(scored.top, 1) if i != scored.id]
        return {
            str(i): {
                "logprob": max(p, MINUS_INFINITY),
                "rank": rank,
                "decoded_token": self.text.bytes_of(i).decode(errors="replace"),
            }
            for i, p, rank in ranked
        }

    def log_probs(self, drawn: list[Drawn], at: int) -> Json | None:
        if not self.wanted.log_probs:
            return None
        offsets = []
        for d in drawn:
            offsets.append(at)
            at += len(self.token(d.id))
        return {
            "text_offset": offsets,
            "token_logprobs": [d.log_prob for d in drawn],
            "tokens": [self.token(d.id) for d in drawn],
            "top_logprobs": [{self.token(i): p for i, p in [(d.id, d.log_prob), *d.top]} for d in drawn],
        }
