"""How the scripted engine words a turn: vLLM 0.32's chat answers, streamed and whole, and what rides on them.

Owns the shapes and the counts; what is asked, refused or broken off is the engine's (``tests/engine.py``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from tests.script import EOS, Chunk, Gate, Json, Served, Turn, WordTokenizer, cut, log_prob_of


class Shapes:
    def __init__(self, model: str, max_model_len: int) -> None:
        self.model = model
        self.max_model_len = max_model_len
        self.tokenizer = WordTokenizer()
        self.gate = Gate()
        self.served: list[Served] = []
        self.gives_ids = True
        self.logprobs_mode = "processed"
        self.hidden: Json = {}
        """Sampling members that it takes from its model where a request says nothing of them."""

    def named(self, served: Served) -> str:
        """The model that an answer names."""
        return self.model

    def _chunks(self, served: Served) -> list[Chunk]:
        """The turn as chunks of delta and ids, cut at max_tokens."""
        turn = served.turn
        encode = self.tokenizer.encode
        chunks: list[Chunk] = []
        if turn.reasoning is not None:
            chunks.append(Chunk({}, encode("<think>")))
            chunks += [Chunk({"reasoning": p}, encode(p)) for p in self.tokenizer.pieces(turn.reasoning)]
            chunks.append(Chunk({}, encode("</think>")))
        chunks += [Chunk({"content": p}, encode(p)) for p in self.tokenizer.pieces(turn.text)]
        for n, (name, arguments) in enumerate(turn.tool_calls):
            opening = f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": '
            head = {"id": self._tool_id(n), "type": "function", "index": n, "function": {"name": name}}
            chunks += [Chunk({}, [token]) for token in encode(opening)]
            chunks.append(Chunk({"content": None, "tool_calls": [head]}, []))
            for piece in self.tokenizer.pieces(arguments):
                part = {"index": n, "function": {"arguments": piece}}
                chunks.append(Chunk({"content": None, "tool_calls": [part]}, encode(piece)))
            chunks.append(Chunk({}, encode("}\n</tool_call>")))
        finish = turn.finish or ("tool_calls" if turn.tool_calls else "stop")
        chunks.append(Chunk({}, [self.tokenizer.id(EOS)], finish))
        limit = served.json.get("max_completion_tokens") or served.json.get("max_tokens")
        room = self.max_model_len - len(served.prompt_ids)
        return cut(chunks, min(room, limit) if limit else room)

    def _log_prob_entry(self, token: int, request: Json) -> Json:
        piece = self.tokenizer.decode([token])
        wanted = int(request.get("top_logprobs") or 0)
        heat = (request.get("temperature") or 1.0) if self.logprobs_mode == "processed" else 1.0
        cut = request.get("top_p", self.hidden.get("top_p", 1.0)) < 1.0
        top = [
            {
                "token": f"alt{n}",
                "logprob": -9999.0 if n and cut else -0.25 - 1.5 * n / heat,
                "bytes": list(f"alt{n}".encode()),
            }
            for n in range(wanted)
        ]
        return {
            "token": piece,
            "logprob": log_prob_of(token),
            "bytes": list(piece.encode()),
            "top_logprobs": top,
        }

    def _log_probs(self, served: Served, ids: list[int]) -> Json | None:
        if not served.json.get("logprobs") or served.turn.fault.no_log_probs or not ids:
            return None
        return {"content": [self._log_prob_entry(token, served.json) for token in ids]}

    def _asks_ids(self, served: Served) -> bool:
        return bool(served.json.get("return_token_ids")) and self.gives_ids and not served.turn.fault.no_ids

    def _emit(self, served: Served, ids: list[int]) -> None:
        served.output_ids += ids
        served.log_probs += [log_prob_of(token) for token in ids]

    async def _events(self, served: Served, chunks: list[Chunk]) -> AsyncIterator[bytes]:
        """vLLM 0.32's stream. Asked for ids or log probs it also sends chunks with an empty delta."""
        if served.turn.fault.raw is not None:
            for piece in served.turn.fault.raw:
                await (served.turn.gate or self.gate).passed()
                yield piece
            return
        asked = self._asks_ids(served)
        head: Json = {
            "id": served.id or f"chatcmpl-{len(self.served)}",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": self.named(served),
        }
        role = choice_of({"role": "assistant", "content": ""})
        usage_due = bool((served.json.get("stream_options") or {}).get("include_usage"))
        gate = served.turn.gate or self.gate
        await gate.passed()
        prompt = served.prompt_ids if asked else None
        if served.id is None:
            yield _event(head | {"choices": [role], "prompt_token_ids": prompt, "prompt_text": None})
        for chunk in chunks[served.skip :]:
            if not await gate.passed_before(served.aborted):
                yield _event(head | {"choices": [self._given_up(served, chunk)]})
                break
            if chunk.finish is not None and served.turn.fault.no_finish:
                break
            served.skip += 1
            self._emit(served, chunk.ids)
            log_probs = self._log_probs(served, chunk.ids)
            if chunk.delta or chunk.finish or asked or log_probs:
                choice = choice_of(chunk.delta, log_probs, chunk.finish, chunk.stop)
                choice |= {"token_ids": chunk.ids if asked else None}
                tail = {"system_fingerprint": "scripted"} if chunk.finish and not usage_due else {}
                yield _event(head | {"choices": [choice]} | tail)
        if usage_due:
            usage = {"choices": [], "usage": self._usage(served), "system_fingerprint": "scripted"}
            yield _event(head | usage)
        if not served.turn.fault.no_done and not served.turn.fault.no_finish:
            yield b"data: [DONE]\n\n"

    async def _whole(self, served: Served, chunks: list[Chunk]) -> AsyncIterator[bytes]:
        if served.turn.fault.raw is not None:
            yield b"".join(served.turn.fault.raw)
            return
        finish: str | None = None
        stop: str | None = None
        gate = served.turn.gate or self.gate
        for chunk in chunks[served.skip :]:
            if not await gate.passed_before(served.aborted):
                finish = "abort"
                break
            stop = chunk.stop
            served.skip += 1
            self._emit(served, chunk.ids)
            finish = chunk.finish or finish
        if served.turn.fault.no_finish:
            finish = None
        asked = self._asks_ids(served)
        choice = {
            "index": 0,
            "message": self._message(served.turn, chunks),
            "logprobs": self._log_probs(served, served.output_ids),
            "finish_reason": finish,
            "stop_reason": stop,
            "token_ids": served.output_ids if asked else None,
            "routed_experts": None,
        }
        body = {
            "id": f"chatcmpl-{len(self.served)}",
            "object": "chat.completion",
            "created": 1700000000,
            "model": self.named(served),
            "choices": [choice],
            "usage": self._usage(served),
            "prompt_logprobs": None,
            "prompt_token_ids": served.prompt_ids if asked else None,
            "prompt_text": None,
            "kv_transfer_params": None,
        }
        yield dumps(body)

    def _given_up(self, served: Served, chunk: Chunk) -> Json:
        """The choice that says so, before this chunk could be said."""
        return choice_of({}, finish="abort")

    def _message(self, turn: Turn, chunks: list[Chunk]) -> Json:
        tools = [
            {"id": self._tool_id(n), "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(turn.tool_calls)
        ]
        message: Json = {
            "role": "assistant",
            "content": "".join(c.delta.get("content") or "" for c in chunks) or (None if tools else ""),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if tools:
            message["tool_calls"] = tools
        return message | {"reasoning": "".join(c.delta.get("reasoning", "") for c in chunks) or None}

    def _tool_id(self, number: int) -> str:
        return f"chatcmpl-tool-{len(self.served)}{number}"

    def _usage(self, served: Served) -> Json:
        prompt, output = len(served.prompt_ids), len(served.before) + len(served.output_ids)
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def choice_of(delta: Json, log_probs: Json | None = None, finish: str | None = None, stop: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish}
    return choice | {"stop_reason": stop} if finish else choice


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _event(value: object) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"
