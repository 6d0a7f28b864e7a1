"""Realistic journals for tests: chat requests and vLLM-shaped answers as frames, written by a real writer.

``Kit`` plays the recorder: it opens sessions and calls, answers them, closes them and cuts. Ids and log probs are
made from a seed, so two kits with the same script write the same frames.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from forge.storage.frames import AnyFrame, Close, Cut, Data, Open, SessionFrame
from forge.storage.journal import JournalWriter
from forge.storage.journal_segment import SEGMENT_BYTES
from forge.storage.records import RewardStatus, Session, SessionStatus

WALL_US = 1_790_000_000_000_000


@dataclass
class Turn:
    """One call: what was sent and what the engine said."""

    call_id: str
    messages: list[dict[str, Any]]
    prompt_ids: list[int]
    output_ids: list[int]
    log_probs: list[float]
    reply: str

    @property
    def history(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Messages and ids that an exact continuation begins with."""
        return [*self.messages, {"role": "assistant", "content": self.reply}], self.prompt_ids + self.output_ids


def request_body(messages: Sequence[dict[str, Any]], *, stream: bool, tools: list[Any] | None = None) -> bytes:
    body: dict[str, Any] = {"model": "policy", "messages": list(messages), "stream": stream, "temperature": 1.0}
    if tools is not None:
        body["tools"] = tools
    return msgspec.json.encode(body)


def sent_body(request: bytes) -> bytes:
    """The request as the engine got it: our members appended, as the chat lane does."""
    return request[:-1] + b',"logprobs":true,"return_token_ids":true}'


def whole_answer(turn: Turn) -> bytes:
    """The body of vLLM's non-streaming answer with ids."""
    return msgspec.json.encode(
        {
            "id": f"chatcmpl-{turn.call_id}",
            "object": "chat.completion",
            "created": 1_790_000_000,
            "model": "policy",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": turn.reply},
                    "logprobs": {"content": _token_log_probs(turn)},
                    "finish_reason": "stop",
                    "token_ids": turn.output_ids,
                }
            ],
            "usage": _usage(turn),
            "prompt_token_ids": turn.prompt_ids,
        }
    )


def stream_answer(turn: Turn) -> list[bytes]:
    """The same as server-sent events, one per token."""
    base: dict[str, Any] = {"id": f"chatcmpl-{turn.call_id}", "object": "chat.completion.chunk", "model": "policy"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    events: list[dict[str, Any]] = [{**base, "choices": [first], "prompt_token_ids": turn.prompt_ids}]
    words = _words(turn)
    for index, entry in enumerate(_token_log_probs(turn)):
        last = index == len(turn.output_ids) - 1
        choice = {
            "index": 0,
            "delta": {"content": words[index]},
            "logprobs": {"content": [entry]},
            "finish_reason": "stop" if last else None,
            "token_ids": [turn.output_ids[index]],
        }
        events.append({**base, "choices": [choice]})
    events.append({**base, "choices": [], "usage": _usage(turn)})
    return [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


def _token_log_probs(turn: Turn) -> list[dict[str, Any]]:
    return [
        {"token": word, "logprob": p, "bytes": [116], "top_logprobs": []}
        for word, p in zip(_words(turn), turn.log_probs, strict=True)
    ]


def _words(turn: Turn) -> list[str]:
    """The reply's text, a piece for each id."""
    size = -(-len(turn.reply) // len(turn.output_ids))
    return [turn.reply[n * size : (n + 1) * size] for n in range(len(turn.output_ids))]


def _usage(turn: Turn) -> dict[str, int]:
    prompt, output = len(turn.prompt_ids), len(turn.output_ids)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


@dataclass
class Kit:
    """A recorder over one data directory."""

    data: Path
    run_id: str = "run-a"
    seed: int = 0
    writer: int = 0
    segment_bytes: int = SEGMENT_BYTES
    wall_us: int = WALL_US
    """What the wall clock says."""
    sessions: dict[str, Session] = field(default_factory=dict)
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    """Every call begun, by session."""

    def __post_init__(self) -> None:
        self.journal = JournalWriter.open(
            self.data,
            self.writer,
            run_id=self.run_id,
            segment_bytes=self.segment_bytes,
            wall_us=lambda: WALL_US,
        )
        self._random = random.Random(self.seed)
        self._mono = 0
        self._calls = 0
        self._cuts = 0

    def close(self) -> None:
        self.journal.close()

    def open_session(self, session_id: str, **fields: Any) -> Session:
        session = Session(
            session_id=session_id, run_id=self.run_id, open_us=WALL_US + len(self.sessions), harness="kit", **fields
        )
        self._state(session, "open")
        return session

    def close_session(self, session_id: str, *, reward: float | None = None, pending: bool = False) -> None:
        status = RewardStatus.PENDING if pending else RewardStatus.NULL if reward is None else RewardStatus.GRADED
        old = self.sessions[session_id]
        self._state(
            replace(
                old,
                revision=old.revision + 1,
                status=SessionStatus.COMPLETED,
                close_us=WALL_US + 1000,
                reward=reward,
                reward_status=status,
            ),
            "close",
        )

    def reward(self, session_id: str, reward: float) -> None:
        old = self.sessions[session_id]
        new = replace(old, revision=old.revision + 1, reward=reward, reward_status=RewardStatus.GRADED)
        self._state(new, "reward")

    def _state(self, session: Session, event: str) -> None:
        self.sessions[session.session_id] = session
        self.journal.append(
            SessionFrame(
                session_id=session.session_id,
                run_id=session.run_id,
                event=event,
                revision=session.revision,
                state=msgspec.json.encode(session).decode(),
                wall_us=WALL_US,
            )
        )

    def next_turn(self, session_id: str, *, parent: Turn | None = None, fresh: int = 20, output: int = 8) -> Turn:
        """A turn that extends ``parent`` exactly, or begins anew."""
        self._calls += 1
        messages, ids = parent.history if parent else ([{"role": "system", "content": "Be brief."}], [1, 2, 3])
        text = " ".join(str(self._random.randrange(10_000)) for _ in range(fresh))
        turn = Turn(
            call_id=f"c{self.writer:02d}{self.journal.boot:03d}{self._calls:06d}",
            messages=[*messages, {"role": "user", "content": text}],
            prompt_ids=ids + [self._random.randrange(150_000) for _ in range(fresh)],
            output_ids=[self._random.randrange(150_000) for _ in range(output)],
            log_probs=[-round(self._random.expovariate(1.0), 6) for _ in range(output)],
            reply=f"reply {self._calls} " + "x" * output,
        )
        self.turns.setdefault(session_id, []).append(turn)
        return turn

    def begin(self, session_id: str, turn: Turn, *, stream: bool = False, tools: list[Any] | None = None) -> None:
        """The ``open`` frame."""
        self._mono += 1000
        request = request_body(turn.messages, stream=stream, tools=tools)
        sent = sent_body(request)
        frame = Open(
            call_id=turn.call_id,
            session_id=session_id,
            run_id=self.run_id,
            boot=self.journal.boot,
            mono_us=self._mono,
            writer=self.writer,
            wall_us=self.wall_us + self._mono,
            dialect="chat",
            path="/v1/chat/completions",
            stream=stream,
            request_len=len(request),
            sent_len=len(sent),
            engine="vllm",
            replica="http://127.0.0.1:8000",
            model_requested="policy",
            policy_version=0,
            version_source="replica_state",
            logprobs_mode="raw",
            sampling_asked='{"temperature":1.0}',
            sampling_sent='{"temperature":1.0}',
        )
        self.journal.append(frame, request, sent)

    def finish(self, turn: Turn, *, stream: bool = False, status: str = "ok") -> None:
        """The ``data`` frames and the ``close`` frame."""
        pieces = stream_answer(turn) if stream else [whole_answer(turn)]
        frames: list[tuple[AnyFrame, Sequence[bytes]]] = [(Data(call_id=turn.call_id), (piece,)) for piece in pieces]
        close = Close(
            call_id=turn.call_id,
            status=status,
            http_status=200,
            engine_status=200,
            content_type="text/event-stream" if stream else "application/json",
            delivered=sum(map(len, pieces)),
            first_byte_us=500,
            end_us=900,
            policy_version=0,
        )
        self.journal.append_many([*frames, (close, ())])

    def call(self, session_id: str, *, parent: Turn | None = None, stream: bool = False, **sizes: int) -> Turn:
        """A whole call."""
        turn = self.next_turn(session_id, parent=parent, **sizes)
        self.begin(session_id, turn, stream=stream)
        self.finish(turn, stream=stream)
        return turn

    def cut(self) -> None:
        self._cuts += 1
        self.journal.append(Cut(number=self._cuts, wall_us=WALL_US))


def story(kit: Kit, *, sessions: int = 3, turns: int = 4) -> None:
    """Interleaved sessions over several cuts, streams and whole bodies, a branch, a grade, a null and a late reward."""
    names = [f"s{kit.journal.boot:03d}{i:08d}" for i in range(sessions)]
    last: dict[str, Turn] = {}
    for name in names:
        kit.open_session(name, task_id="t", group_id="g")
    for number in range(turns):
        for index, name in enumerate(names):
            last[name] = kit.call(name, parent=last.get(name), stream=(number + index) % 2 == 0)
        kit.cut()
    kit.call(names[0], parent=kit.turns[names[0]][0])
    for index, name in enumerate(names):
        kit.close_session(name, reward=float(index) if index != 1 else None, pending=name == names[-1])
        kit.cut()
    kit.reward(names[-1], 0.5)
    kit.cut()
