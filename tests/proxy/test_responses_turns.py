"""Random conversations over the responses wire: what goes out as an answer comes back as the same message, and each
prompt begins with the one before it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.faults.soak import examples, figures
from tests.proxy.wire import answer, chunk, documents, run, send, stream, text, usage_chunk

Json = dict[str, Any]
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
TOOLS = [
    {"type": "function", "name": "run", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "look", "parameters": {}}]},
]
NAMES = ("run", "patch", "mcp__look")
TEXT = st.text(min_size=1, max_size=12)
ARGUMENTS = st.dictionaries(
    TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3
)


@dataclass(frozen=True)
class Said:
    """What the policy writes in one turn."""

    reasoning: str
    text: str
    calls: list[tuple[str, Json, str]]
    """Tool, a function's arguments, a freeform tool's input."""


@dataclass(frozen=True)
class Heard:
    """What the harness adds before the next one."""

    text: str
    role: str
    images: int
    image_in_result: bool
    seed: int


SAID = st.builds(
    Said,
    st.just("") | TEXT,
    st.just("") | TEXT,
    st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS, st.text(max_size=12)), max_size=3),
)
HEARD = st.builds(
    Heard, TEXT, st.sampled_from(["user", "developer", "system"]), st.integers(0, 2), st.booleans(), st.integers(0, 99)
)


def written(name: str, arguments: Json, freeform: str) -> str:
    return json.dumps({"input": freeform} if name == "patch" else arguments, ensure_ascii=False)


def engine(said: Said, turn: int) -> bytes:
    """The policy's turn as an engine streams it, arguments in pieces."""
    deltas = [chunk({"role": "assistant", "content": ""})]
    deltas += [chunk({"reasoning": said.reasoning})] if said.reasoning else []
    deltas += [chunk({"content": said.text})] if said.text else []
    for n, (name, arguments, freeform) in enumerate(said.calls):
        whole = written(name, arguments, freeform)
        head = {"index": n, "id": f"c{turn}_{n}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append(chunk({"tool_calls": [head]}))
        for at in range(0, len(whole), 5):
            deltas.append(chunk({"tool_calls": [{"index": n, "function": {"arguments": whole[at : at + 5]}}]}))
    return stream(*deltas, chunk({}, "tool_calls" if said.calls else "stop"), usage_chunk())


def expected(said: Said, turn: int) -> Json:
    """The policy's turn as it must stand in the next prompt."""
    made: Json = {"role": "assistant", "content": said.text or (None if said.calls else "")}
    if said.reasoning:
        made |= {"reasoning": said.reasoning, "reasoning_content": said.reasoning}
    if said.calls:
        made["tool_calls"] = [
            {"id": f"c{turn}_{n}", "type": "function", "function": {"name": name, "arguments": written(name, *rest)}}
            for n, (name, *rest) in enumerate(said.calls)
        ]
    return made


def items(heard: Heard, output: list[Json]) -> list[Json]:
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    results: list[Json] = []
    for item in output:
        if item["type"] in kinds:
            of: Any = f"of {item['call_id']}"
            shown = [{"type": "input_text", "text": of}, IMAGE] if heard.image_in_result else of
            results.append({"type": kinds[item["type"]], "call_id": item["call_id"], "output": shown})
    random.Random(heard.seed).shuffle(results)
    parts = [{"type": "input_text", "text": heard.text}, *([IMAGE] * heard.images if heard.role == "user" else [])]
    return [*results, {"type": "message", "role": heard.role, "content": parts}]


def request(history: list[Json]) -> Json:
    return {"input": history, "tools": TOOLS, "stream": True, "include": ["reasoning.encrypted_content"]}


@figures(60, 1250, 50_000)
def test_each_prompt_begins_with_the_last_one_and_its_answer(number: int) -> None:
    examples(number, st.lists(st.tuples(SAID, HEARD), min_size=1, max_size=4), _converse)


def _converse(turns: list[tuple[Said, Heard]]) -> None:
    history: list[Json] = [{"type": "message", "role": "user", "content": "hi"}]
    before = json.loads(send("responses", request(history)).body)["messages"]
    for turn, (said, heard) in enumerate(turns):
        outgoing = send("responses", request(history))
        output = documents(text(run(answer("responses", outgoing), engine(said, turn))))[-1]["response"]["output"]
        history += [*output, *items(heard, output)]
        after = json.loads(send("responses", request(history)).body)["messages"]
        assert after[: len(before)] == before
        assert after[len(before)] == expected(said, turn)
        assert [m["content"] for m in after if m["role"] not in ("assistant", "tool")][-1]
        before = after
