from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import Answer, Hold, Piece
from forge.proxy.dialects.responses_input import hide_reasoning
from tests.proxy.wire import CALL_ID, answer, chunk, events, run, send, stream, text, usage_chunk

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"
TYPES: dict[str, type[BaseModel]] = {
    typing.get_args(model.model_fields["type"].annotation)[0]: model
    for model in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
}
TOOLS = [
    {"type": "function", "name": "exec_command", "parameters": {"type": "object"}},
    {"type": "custom", "name": "apply_patch"},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
    {"type": "local_shell"},
]


def start(**members: Any) -> Answer:
    outgoing = send("responses", {"model": "asked", "input": "hi", "stream": True, "tools": TOOLS} | members)
    return answer("responses", outgoing)


def read(pieces: list[Piece]) -> list[dict[str, Any]]:
    """Every event, checked: the SDK's own type takes it, its name is its type, its number is its place."""
    found: list[dict[str, Any]] = []
    for event in events(text(pieces)):
        document = json.loads(event.data or b"")
        assert event.name.decode() == document["type"]
        assert document["sequence_number"] == len(found)
        TYPES[document["type"]].model_validate(document, strict=True)
        found.append(document)
    assert [document["type"] for document in found[:2]] == ["response.created", "response.in_progress"]
    return found


def names(found: list[dict[str, Any]]) -> list[str]:
    return [document["type"].removeprefix("response.") for document in found]


def final(found: list[dict[str, Any]]) -> dict[str, Any]:
    response: dict[str, Any] = found[-1]["response"]
    done = [document["item"] for document in found if document["type"] == "response.output_item.done"]
    assert response["output"] == done
    return response


def call_delta(index: int, name: str | None = None, arguments: str = "", call_id: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function} | ({"id": call_id} if call_id else {})]}


ROLE = chunk({"role": "assistant", "content": ""})


def test_the_life_of_a_text() -> None:
    """Field case 33: every event of the life cycle, in order."""
    body = stream(ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), usage_chunk(30, 4))
    got = start()
    found = read(run(got, body))
    assert names(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = final(found)
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert (response["id"], response["model"], response["status"]) == (f"resp_{CALL_ID}", "asked", "completed")
    assert response["created_at"] == 1700000000
    assert response["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 34,
    }
    assert (got.complete, got.finish_reason, got.error) == (True, "stop", None)


def test_calls_stream_as_they_come_and_each_ends_before_the_next() -> None:
    """Field cases 71, 78: parallel calls have places of their own, and their arguments come as they are made."""
    body = stream(
        ROLE,
        chunk({"content": "I will."}),
        chunk(call_delta(0, "exec_command", call_id="chatcmpl-tool-1")),
        chunk(call_delta(0, arguments='{"cmd":')),
        chunk(call_delta(0, arguments='"ls"}')),
        chunk(call_delta(1, "agents__spawn", '{"x": 1}', call_id="chatcmpl-tool-2")),
        chunk({}, "tool_calls"),
        usage_chunk(),
    )
    found = read(run(start(), body))
    deltas = [document["delta"] for document in found if document["type"].endswith("arguments.delta")]
    assert deltas == ['{"cmd":', '"ls"}', '{"x": 1}']
    output = final(found)["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [(item["call_id"], item["arguments"]) for item in output[1:]] == [
        ("chatcmpl-tool-1", '{"cmd":"ls"}'),
        ("chatcmpl-tool-2", '{"x": 1}'),
    ]
    assert (output[2]["name"], output[2]["namespace"]) == ("spawn", "agents")
    assert "namespace" not in output[1]
    open_items: list[int] = []
    for document in found:
        if document["type"] == "response.output_item.added":
            assert open_items == []
            open_items.append(document["output_index"])
        if document["type"] == "response.output_item.done":
            assert open_items == [document["output_index"]]
            open_items.clear()


def test_custom_tools_get_their_raw_input_and_the_local_shell_its_command() -> None:
    """Field cases 56, 58: a freeform tool is called as one."""
    patch = '*** Begin\n"quoted" 漢字'
    body = stream(
        chunk(call_delta(0, "apply_patch", '{"input": ', call_id="a")),
        chunk(call_delta(0, arguments=json.dumps(patch) + "}")),
        chunk(call_delta(1, "local_shell", '{"command": ["ls", "-l"], "timeout_ms": 5}', call_id="b")),
        chunk(call_delta(2, "apply_patch", "not json", call_id="c")),
        chunk(call_delta(3, "local_shell", '{"comm', call_id="d")),
        chunk({}, "tool_calls"),
        usage_chunk(),
    )
    found = read(run(start(), body))
    custom, shell, odd, cut = final(found)["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "apply_patch", patch)
    assert shell["action"] == {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 5}
    assert odd["input"] == "not json"
    assert cut["action"]["command"] == ['{"comm']
    assert [document["input"] for document in found if document["type"].endswith("input.done")] == [patch, "not json"]


def test_reasoning_is_an_item_of_its_own_and_comes_back_without_a_store() -> None:
    body = stream(
        ROLE, chunk({"reasoning": "I "}), chunk({"reasoning_content": "think"}), chunk({"content": "A"}, "stop")
    )
    found = read(run(start(include=["reasoning.encrypted_content"]), body))
    reasoning, message = final(found)["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "I think"}]
    assert reasoning["encrypted_content"] == hide_reasoning("I think")
    assert [document["delta"] for document in found if "reasoning" in document["type"] and "delta" in document] == [
        "I ",
        "think",
    ]
    sent = json.loads(send("responses", {"input": [reasoning, message]}).body)
    thought = {"reasoning": "I think", "reasoning_content": "I think"}
    assert sent["messages"] == [{"role": "assistant", "content": "A"} | thought]
    plain = final(read(run(start(), body)))["output"][0]
    assert "encrypted_content" not in plain


@pytest.mark.parametrize("kind", ["text", "tool"])
@pytest.mark.parametrize("cut", [1, 50, 1 << 20])
def test_real_answers_streamed_and_whole_are_the_same_response(kind: str, cut: int) -> None:
    """Field case 72: what was streamed and the final object hold the same text, once."""
    tools = [{"type": "function", "name": "run", "parameters": {"type": "object"}}]
    streamed = final(read(run(start(tools=tools), (GOLDEN / f"{kind}-stream-asked.txt").read_bytes(), cut=cut)))
    got = start(tools=tools, stream=False)
    (piece,) = run(got, (GOLDEN / f"{kind}-whole-asked.txt").read_bytes(), cut=cut)
    complete = json.loads(piece.data)
    Response.model_validate(complete, strict=True)
    assert piece.hold is Hold.CLOSE
    assert got.complete
    for response in (streamed, complete):
        for item in response["output"]:
            item.pop("call_id", None)
    assert streamed == complete


def test_what_a_harness_can_act_on_waits_for_the_journal_and_the_end_for_the_close() -> None:
    got = start()
    body = stream(
        ROLE,
        chunk({"content": "a"}),
        chunk(call_delta(0, "exec_command", "{}", call_id="x")),
        chunk({}, "tool_calls"),
        usage_chunk(),
    )
    holds = [[piece.hold.name for piece in got.feed(event.raw)] for event in events(body)]
    assert holds == [["NOTHING"], ["NOTHING"] * 2, ["DATA", "NOTHING", "NOTHING"], ["DATA"], [], []]
    assert [piece.hold for piece in got.finish()] == [Hold.CLOSE]
    for piece in run(start(), body):
        for event in events(piece.data):
            name = event.name.decode()
            if name.endswith(".done"):
                assert piece.hold is Hold.DATA, name
            elif name == "response.completed":
                assert piece.hold is Hold.CLOSE


def test_ids_are_stable_and_short() -> None:
    """Field cases 74, 75, 77: no id of ours is longer than 40 characters."""
    long_id = "chatcmpl-tool-" + "0" * 60
    deltas = [chunk(call_delta(n, "exec_command", "{}", call_id=long_id if n else None)) for n in range(12)]
    body = stream(chunk({"reasoning": "r"}), *deltas, chunk({}, "tool_calls"))
    first, second = (read(run(start(), body)) for _ in range(2))
    assert first == second
    items = final(first)["output"]
    ids = [item["id"] for item in items] + [item["call_id"] for item in items if "call_id" in item]
    assert all(len(made) <= 40 and CALL_ID in made for made in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete(finish: str, reason: str) -> None:
    """Field case 60: what was not finished says so."""
    body = stream(chunk(call_delta(0, "exec_command", '{"cmd": "l', call_id="x")), chunk({}, finish), usage_chunk())
    got = start()
    response = final(read(run(got, body)))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert (response["output"][0]["status"], response["output"][0]["arguments"]) == ("incomplete", '{"cmd": "l')
    assert response["usage"]["output_tokens"] == 2
    assert got.complete


def test_nothing_said_is_a_response_all_the_same() -> None:
    response = final(read(run(start(), stream(ROLE, chunk({}, "stop"), usage_chunk()))))
    (message,) = response["output"]
    assert (response["status"], message["type"], message["content"][0]["text"]) == ("completed", "message", "")


def test_usage_that_the_engine_did_not_give_is_not_invented() -> None:
    """Field case 116: usage is the engine's or none."""
    assert final(read(run(start(), stream(chunk({"content": "a"}, "stop")))))["usage"] is None


BROKEN = stream(
    ROLE,
    chunk({"content": "Hello"}),
    chunk(call_delta(0, "exec_command", '{"cmd":"ls"}', call_id="x")),
    chunk({}, "tool_calls"),
)


@pytest.mark.parametrize("upto", range(0, len(BROKEN) - 14, 29))
def test_a_stream_that_breaks_off_anywhere_fails_in_words(upto: int) -> None:
    """Field case 34: every stream has an end, whatever became of the engine."""
    got = start()
    found = read(run(got, BROKEN[:upto]))
    finished = got.finish_reason is not None
    assert names(found)[-1] == ("completed" if finished else "failed")
    assert got.complete == finished
    if not finished:
        assert "broke off" in found[-1]["response"]["error"]["message"]
        assert found[-1]["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (stream(chunk({"content": "a"}), {"error": {"message": "CUDA error", "code": 500}}), "CUDA error"),
        (stream(chunk({"content": "a"})) + b"data: nonsense\n\n", "cannot be read"),
        (stream(chunk({"content": 5})), "cannot be read"),
        (b"<html>not a stream</html>", "broke off"),
        (b'{"error":{"message":"no such model","code":404}}', "no such model"),
        (b'{"half', "not a chat completion"),
        (stream(*(chunk(call_delta(n, "f")) for n in (0, 1, 0))), "went back to a tool call"),
        (stream(chunk({"content": "a"}), chunk({}, "abort")), "aborted"),
    ],
)
def test_what_goes_wrong_is_told(body: bytes, words: str) -> None:
    got = start()
    found = read(run(got, body))
    assert names(found)[-1] == "failed"
    assert words in found[-1]["response"]["error"]["message"]
    whole = start(stream=False)
    (piece,) = run(whole, body)
    assert "error" in json.loads(piece.data)
    assert not whole.complete


def test_an_abort_ends_no_item() -> None:
    found = read(run(start(), stream(chunk(call_delta(0, "exec_command", "{", call_id="x")), chunk({}, "abort"))))
    assert "output_item.done" not in names(found)


def test_a_whole_body_where_a_stream_was_due_is_streamed() -> None:
    found = read(run(start(), (GOLDEN / "tool-whole-asked.txt").read_bytes(), cut=7))
    assert names(found)[-1] == "completed"
    assert final(found)["output"][0]["type"] == "function_call"


def test_the_request_is_echoed_where_clients_look() -> None:
    members = {"temperature": 0.5, "metadata": {"a": "b"}, "tool_choice": "required", "parallel_tool_calls": False}
    response = final(read(run(start(**members), stream(chunk({"content": "a"}, "stop")))))
    assert {name: response[name] for name in members} == members


# Errors


def test_context_overflow_keeps_its_words_and_gets_the_known_code() -> None:
    """Field case 113."""
    responses = DIALECTS["responses"]
    outgoing = send("responses", {"input": "hi"})
    for name in ("overflow", "overflow2"):
        body = (GOLDEN / f"{name}.txt").read_bytes()
        error = json.loads(responses.engine_error(400, body, outgoing))["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"] == json.loads(body)["error"]["message"]
    missing = (GOLDEN / "nomodel.txt").read_bytes()
    error = json.loads(responses.engine_error(404, missing, outgoing))["error"]
    assert error["code"] == error["type"] == json.loads(missing)["error"]["type"]


@pytest.mark.parametrize(
    "body", [b"Bad Gateway", b"", b"[1]", b'{"error":"words"}', b'{"detail":"Not Found"}', b"\xff"]
)
def test_errors_in_any_shape_become_this_ones(body: bytes) -> None:
    error = json.loads(DIALECTS["responses"].engine_error(502, body, send("responses", {"input": "hi"})))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "upstream_error"


def test_a_failure_outside_any_answer_is_a_failed_response() -> None:
    (event,) = events(DIALECTS["responses"].stream_error(code="server_error", message="gone"))
    document = json.loads(event.data or b"")
    TYPES["response.failed"].model_validate(document, strict=True)
    assert document["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert json.loads(DIALECTS["responses"].error(409, code="late", message="closed"))["error"]["code"] == "late"


def test_two_calls_by_one_id_get_two() -> None:
    body = stream(ROLE, *(chunk(call_delta(n, "ls", "{}", "c")) for n in range(2)), chunk({}, "tool_calls"))
    ids = [item["call_id"] for item in final(read(run(start(), body)))["output"]]
    assert ids == ["c", f"call_{CALL_ID}_1"]
