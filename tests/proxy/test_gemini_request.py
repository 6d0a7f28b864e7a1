from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.dialects.base import BadRequest, Outgoing, Overrides, Target
from forge.proxy.dialects.gemini_node import camel
from forge.proxy.dialects.gemini_schema import json_schema
from forge.proxy.dialects.gemini_signature import sign, signed
from forge.proxy.door.routes import Kind, route
from tests.faults.soak import examples, figures
from tests.proxy.wire import send

M = Target("m")
HI: dict[str, Any] = {"role": "user", "parts": [{"text": "hi"}]}
CHAT_HI = {"role": "user", "content": "hi"}


def ask(*contents: dict[str, Any], target: Target = M, **members: Any) -> Outgoing:
    return send("gemini", {"contents": list(contents) or [HI]} | members, target=target)


def chat(*contents: dict[str, Any], **members: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(ask(*contents, **members).body)
    return decoded


def messages(*contents: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat(*contents, **members)["messages"]
    return found


def edits(*contents: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    return json.loads(ask(*contents, **members).edits or "[]")  # type: ignore[no-any-return]


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str, call_id: str | None = None, args: Any = None, **more: Any) -> dict[str, Any]:
    called = {"name": name, "args": args if args is not None else {}} | ({"id": call_id} if call_id else {})
    return {"functionCall": called} | more


def result(name: str, response: Any, call_id: str | None = None, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response} | ({"id": call_id} if call_id else {}) | more}


def chat_call(call_id: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Contents


def test_the_smallest_request() -> None:
    outgoing = ask()
    assert json.loads(outgoing.body) == {
        "model": "m",
        "messages": [CHAT_HI],
        "return_token_ids": True,
        "logprobs": True,
    }
    assert (outgoing.edited, outgoing.stream, outgoing.model_requested, outgoing.edits) == (True, False, "m", None)
    assert ask(target=Target("m", stream=True)).stream


@pytest.mark.parametrize(
    "instruction",
    [
        "be kind",
        {"parts": [{"text": "be kind"}]},
        {"role": "system", "parts": {"text": "be kind"}},
        {"text": "be kind"},
    ],
)
@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
def test_the_system_instruction_in_all_its_forms(name: str, instruction: Any) -> None:
    assert messages(**{name: instruction}) == [{"role": "system", "content": "be kind"}, CHAT_HI]


def test_roles_and_texts() -> None:
    contents: list[dict[str, Any]] = [
        {"parts": [{"text": "no role"}]},
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
        model({"text": "one "}, {"text": "answer"}, {"text": ""}),
        {"role": "system", "parts": [{"text": "mind this"}]},
        {"role": "user", "parts": []},
        {"parts": [call("f", "x")]},
    ]
    assert messages(*contents) == [
        {"role": "user", "content": "no role"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "one answer"},
        {"role": "system", "content": "mind this"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [chat_call("x", "f")]},
    ]
    assert send("gemini", {"contents": "hi"}, target=Target("m")).body == ask().body
    assert send("gemini", {"contents": HI}, target=Target("m")).body == ask().body


def test_pieces_of_one_answer_are_one_message_again() -> None:
    pieces = [
        model({"text": "I ", "thought": True}),
        model({"text": "think", "thought": True}),
        model({"text": "So", "thoughtSignature": sign("I think")}),
        model({"text": ": "}),
        model(call("f", "x", {"a": 1, "b": [1.0, "é"]})),
        model({"text": ""}),
    ]
    (_, made) = messages(HI, *pieces)
    assert made == {
        "role": "assistant",
        "content": "So: ",
        "reasoning": "I think",
        "reasoning_content": "I think",
        "tool_calls": [chat_call("x", "f", '{"a": 1, "b": [1.0, "é"]}')],
    }


def test_thoughts_come_back_by_signature_or_by_text_and_foreign_signatures_are_nothing() -> None:
    """Field case 109: any signature is taken."""
    texts = model({"text": "seen", "thought": True}, {"text": "A", "thoughtSignature": "c2tpcA=="})
    kept = model({"text": "A", "thoughtSignature": sign("whole")})
    skip = model(call("f", "x", thoughtSignature="skip_thought_signature_validator"))
    assert messages(HI, texts)[1]["reasoning_content"] == "seen"
    assert messages(HI, kept)[1]["reasoning_content"] == "whole"
    assert "reasoning_content" not in messages(HI, skip)[1]


def test_results_without_ids_answer_the_first_open_call_of_their_name() -> None:
    contents = [
        HI,
        model(call("f", args={"n": 1}), call("g"), call("f", args={"n": 2})),
        user(result("g", {"output": "of g"}), result("f", {"output": "of 1"}), result("f", {"output": "of 2"})),
        model(call("f")),
        user(result("f", {"output": "again"})),
    ]
    found = messages(*contents)
    assert [made["id"] for made in found[1]["tool_calls"]] == ["call_0", "call_1", "call_2"]
    assert [(made["tool_call_id"], made["content"]) for made in found[2:5]] == [
        ("call_1", "of g"),
        ("call_0", "of 1"),
        ("call_2", "of 2"),
    ]
    assert found[6] == {"role": "tool", "tool_call_id": "call_3", "content": "again"}


def test_ids_of_the_harness_are_kept_and_pair_with_calls_that_have_none() -> None:
    contents = [
        model(call("f", "a"), call("f", "b"), call("g")),
        user(result("f", {"output": "B"}, "b"), result("f", {"output": "A"}), result("g", {"output": "G"}, "own")),
        user(result("lost", {"output": "?"}), result("lost", {"output": "?"}, "theirs")),
    ]
    assert [made["tool_call_id"] for made in messages(*contents)[1:]] == ["b", "a", "call_0", "call_1", "theirs"]


@pytest.mark.parametrize(
    ("response", "content"),
    [
        ({"output": "plain\ntext"}, "plain\ntext"),
        ({"output": {"a": 1}}, '{"a": 1}'),
        ({"error": "bad"}, '{"error": "bad"}'),
        ({"output": "x", "code": 0}, '{"output": "x", "code": 0}'),
        ("a string", '"a string"'),
        (None, ""),
    ],
)
def test_a_result_is_its_output_or_all_of_it(response: Any, content: str) -> None:
    assert messages(model(call("f", "x")), user(result("f", response, "x")))[1]["content"] == content


def test_results_come_right_behind_their_calls_and_their_images_follow() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "-_8"}}
    contents = [model(call("f", "x")), user({"text": "and this"}, result("f", {"output": "see"}, "x", parts=[image]))]
    found = messages(*contents)
    assert [made["role"] for made in found] == ["assistant", "tool", "user", "user"]
    assert found[2]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,+/8="}}]
    assert found[3]["content"] == "and this"
    assert [edit["edit"] for edit in edits(*contents)] == ["moved_images"]


@pytest.mark.parametrize(
    ("part", "chat_part"),
    [
        (
            {"inlineData": {"mimeType": "audio/x-wav", "data": "AAAA"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ),
        ({"inline_data": {"mime_type": "text/plain; charset=utf-8", "data": "aGk="}}, {"type": "text", "text": "hi"}),
        (
            {"fileData": {"fileUri": "https://e.com/a.png"}},
            {"type": "image_url", "image_url": {"url": "https://e.com/a.png"}},
        ),
        (
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://e.com/a.mp4"}},
            {"type": "video_url", "video_url": {"url": "https://e.com/a.mp4"}},
        ),
    ],
)
def test_media(part: dict[str, Any], chat_part: dict[str, Any]) -> None:
    (made,) = messages(user({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}, part))
    assert made["content"][1] == chat_part


def test_what_chat_has_no_place_for_is_named() -> None:
    contents = [
        HI,
        model({"executableCode": {"code": "1"}}, {"text": "x"}, {"codeExecutionResult": {"outcome": "OK"}}),
        user({"text": "y"}, {"toolResponse": {}}),
    ]
    assert edits(*contents) == [
        {"edit": "dropped_part", "type": kind} for kind in ("executableCode", "codeExecutionResult", "toolResponse")
    ]


# Tools


def test_functions_in_both_schema_languages_and_hosted_tools() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["A"], "nullable": True},
            "many": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1"},
        },
        "propertyOrdering": ["many", "type"],
        "required": ["type"],
    }
    plain = {"type": "object", "properties": {"Type": {"type": ["string", "null"]}}, "$schema": "x"}
    tools: list[dict[str, Any]] = [
        {"functionDeclarations": [{"name": "f", "description": "does", "parameters": schema}]},
        {"function_declarations": [{"name": "g", "parameters_json_schema": plain}, {"name": "h"}, {"name": "f"}]},
        {"googleSearch": {}, "code_execution": {}},
    ]
    sent = chat(tools=tools)["tools"]
    assert [tool["function"]["name"] for tool in sent] == ["f", "g", "h"]
    assert sent[0]["function"]["description"] == "does"
    parameters = sent[0]["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "properties": {
            "many": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "type": {"type": ["string", "null"], "enum": ["A", None]},
        },
        "required": ["type"],
    }
    assert list(parameters["properties"]) == ["many", "type"]
    assert sent[1]["function"]["parameters"] == plain
    assert sent[2]["function"] == {"name": "h", "parameters": {"type": "object", "properties": {}}}
    assert edits(tools=tools) == [
        {"edit": "dropped_tool", "name": "f", "cause": "declared twice"},
        {"edit": "dropped_tool", "type": "googleSearch"},
        {"edit": "dropped_tool", "type": "codeExecution"},
    ]


def test_schemas_keep_what_is_the_users() -> None:
    given = {
        "any_of": [{"type": "STRING"}, {"type": "TYPE_UNSPECIFIED"}],
        "nullable": True,
        "properties": {"max_items": {"default": {"min_items": "A"}, "example": 5}},
        "additionalProperties": False,
        "defs": {"a_b": {"ref": "#/$defs/a_b"}},
    }
    assert json_schema(given) == {
        "anyOf": [{"type": "string"}, {}, {"type": "null"}],
        "properties": {"max_items": {"default": {"min_items": "A"}, "examples": [5]}},
        "additionalProperties": False,
        "$defs": {"a_b": {"$ref": "#/$defs/a_b"}},
    }


@pytest.mark.parametrize(
    ("config", "choice", "names"),
    [
        ({}, "auto", "fg"),
        ({"mode": "AUTO"}, "auto", "fg"),
        ({"mode": "any"}, "required", "fg"),
        ({"mode": "NONE"}, "none", "fg"),
        ({"mode": "ANY", "allowedFunctionNames": ["g"]}, {"type": "function", "function": {"name": "g"}}, "g"),
        ({"mode": "ANY", "allowed_function_names": ["f", "g", "x"]}, "required", "fg"),
        ({"mode": "VALIDATED"}, "auto", "fg"),
    ],
)
def test_the_choice_of_functions(config: dict[str, Any], choice: Any, names: str) -> None:
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    sent = chat(tools=tools, toolConfig={"functionCallingConfig": config})
    assert (sent["tool_choice"], "".join(tool["function"]["name"] for tool in sent["tools"])) == (choice, names)
    assert "tool_choice" not in chat(toolConfig={"functionCallingConfig": config | {"allowedFunctionNames": []}})


# How tokens are sampled


def test_the_generation_config() -> None:
    config = {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 64.0,
        "maxOutputTokens": 100,
        "stopSequences": ["END"],
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "candidateCount": 1,
        "thinkingConfig": {"thinkingBudget": 8192, "thinkingLevel": "HIGH", "includeThoughts": True},
        "responseModalities": ["TEXT", "IMAGE"],
        "speechConfig": {},
    }
    outgoing = ask(generationConfig=config, safetySettings=[{"category": "X"}], labels={"a": "b"})
    sent = json.loads(outgoing.body)
    assert {name: sent[name] for name in sent if name not in ("model", "messages", "return_token_ids", "logprobs")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 64,
        "max_tokens": 100,
        "stop": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "reasoning_effort": "high",
    }
    assert b'"top_k":64,' in outgoing.body
    assert json.loads(outgoing.edits or "") == [
        {"edit": "dropped_modality", "type": "IMAGE"},
        {"edit": "dropped_member", "name": "generationConfig.speechConfig"},
        {"edit": "dropped_member", "name": "generationConfig.thinkingConfig.thinkingBudget"},
    ]


def test_the_runs_sampling_and_limits_stand_above_it() -> None:
    over = Overrides(sampling={"temperature": 1.0}, max_tokens_cap=50, model="policy")
    body = {"contents": [HI], "generationConfig": {"temperature": 0, "topK": 64, "maxOutputTokens": 100}}
    sent = json.loads(send("gemini", body, overrides=over, target=Target("m")).body)
    assert (sent["temperature"], sent["max_tokens"], sent["model"]) == (1.0, 50, "policy")
    assert "top_k" not in sent


@pytest.mark.parametrize(
    ("config", "member", "value"),
    [
        ({"responseMimeType": "application/json"}, "response_format", {"type": "json_object"}),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "STRING"}},
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "string"}}},
        ),
        (
            {"response_mime_type": "application/json", "response_json_schema": {"type": "string"}},
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "string"}}},
        ),
        (
            {"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b"]}},
            "structured_outputs",
            {"choice": ["a", "b"]},
        ),
        ({"responseMimeType": "text/plain"}, "response_format", None),
    ],
)
def test_the_shape_of_the_answer(config: dict[str, Any], member: str, value: Any) -> None:
    assert chat(generationConfig=config).get(member) == value


# Bad requests


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (b"[]", "request body"),
        (b"{", "request body"),
        ({}, "`contents` is missing"),
        ({"contents": 5}, r"`contents`"),
        ({"contents": [{"parts": 5}]}, r"`contents\[0\]\.parts`"),
        ({"contents": [{"parts": [{"text": 5}]}]}, r"`contents\[0\]\.parts\[0\]\.text`"),
        ({"contents": [HI], "cachedContent": "cachedContents/1"}, "send the whole contents"),
        ({"contents": [HI], "generationConfig": {"candidateCount": 2}}, "Multiple candidates"),
        ({"contents": [HI], "generationConfig": {"topK": 1.5}}, r"generationConfig\.topK"),
        ({"contents": [HI], "generationConfig": {"maxOutputTokens": "x"}}, "maxOutputTokens"),
        ({"contents": [HI], "generationConfig": {"responseMimeType": "image/png"}}, "responseMimeType"),
        ({"contents": [HI], "tools": [{"functionDeclarations": [{}]}]}, r"functionDeclarations\[0\]\.name"),
        ({"contents": [user({"inlineData": {"mimeType": "application/pdf", "data": "AA"}})]}, "application/pdf"),
        ({"contents": [user({"inlineData": {"mimeType": "text/plain", "data": "/w=="}})]}, "is no text"),
        ({"contents": [user({"fileData": {"fileUri": "gs://b/x"}})]}, "not stored here"),
        (
            {
                "contents": [HI],
                "tools": [{"functionDeclarations": [{"name": "f"}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}},
            },
            "names no declared function",
        ),
    ],
)
def test_a_request_that_cannot_be_served_says_where(request_: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        send("gemini", request_, target=Target("m"))


# The path


@pytest.mark.parametrize(
    ("path", "query", "dialect", "target"),
    [
        ("/v1beta/models/m:generateContent", "", "gemini", Target("m")),
        ("/v1/models/m:generateContent", "key=x", "gemini", Target("m")),
        ("/models/m:generateContent", "", "gemini", Target("m")),
        ("/s/01m8nrd8myn8dqheh5yfb5a51r/v1beta/models/m:generateContent", "", "gemini", Target("m")),
        ("/v1/v1beta/models/models/m:streamGenerateContent", "alt=sse", "gemini", Target("m", stream=True)),
        ("/v1beta/models/org%2Fm%3Aa:streamGenerateContent", "$alt=sse&x=1", "gemini", Target("org/m:a", stream=True)),
        ("/v1beta/models/org/m%3AstreamGenerateContent", "", "gemini-array", Target("org/m", stream=True)),
        ("/v1alpha/tunedModels/m:streamGenerateContent", "alt=json", "gemini-array", Target("m", stream=True)),
        ("/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent", "", "gemini", Target("m")),
    ],
)
def test_the_path_names_model_and_stream(path: str, query: str, dialect: str, target: Target) -> None:
    found = route(path, query)
    assert (found.kind, found.dialect, found.target) == (Kind.CALL, dialect, target)


def test_other_paths_of_the_api() -> None:
    assert (route("/v1beta/models/m:countTokens").kind, route("/v1beta/models/m:countTokens").target) == (
        Kind.COUNT,
        Target("m"),
    )
    listings = {path: route(path) for path in ("/v1beta/models", "/v1beta/models/m", "/v1/models")}
    assert {path: (found.kind, found.dialect) for path, found in listings.items()} == {
        "/v1beta/models": (Kind.MODELS, "gemini"),
        "/v1beta/models/m": (Kind.MODELS, "gemini"),
        "/v1/models": (Kind.MODELS, "chat"),
    }
    assert (route("/v1beta/nothing").kind, route("/v1beta/nothing").dialect) == (Kind.UNKNOWN, "gemini")


# Properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
NAMES = st.sampled_from(["run", "read_file"])
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda v: st.lists(v, max_size=2), max_leaves=3)
ARGS = st.dictionaries(TEXT, VALUES, max_size=2)


@st.composite
def turns(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Turns of one session, each the contents that it adds; ids are given throughout or never."""
    ids = draw(st.booleans())
    found: list[list[dict[str, Any]]] = [[user({"text": draw(TEXT)})]]
    for turn in range(draw(st.integers(0, 4))):
        made: list[dict[str, Any]] = [{"text": draw(TEXT)}] if draw(st.booleans()) else []
        if draw(st.booleans()):
            made.insert(0, {"text": draw(TEXT), "thought": True})
        names = draw(st.lists(NAMES, max_size=3))
        called = [(name, f"c{turn}{n}" if ids else None) for n, name in enumerate(names)]
        made += [call(name, call_id, draw(ARGS)) for name, call_id in called]
        results = [result(name, {"output": draw(TEXT)}, call_id) for name, call_id in draw(st.permutations(called))]
        pieces = [model(part) for part in made] if draw(st.booleans()) else [model(*made)]
        found.append([*(pieces or [model()]), user(*(results or [{"text": draw(TEXT)}]))])
    return found


@figures(40, 1250, 50_000)
def test_every_turn_extends_the_one_before_and_every_result_has_its_call(number: int) -> None:
    examples(number, turns(), _extends)


def _extends(session: list[list[dict[str, Any]]]) -> None:
    earlier: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    for added in session:
        history += added
        later = messages(*history)
        assert later[: len(earlier)] == earlier
        earlier = later
    calls = [made["id"] for message in earlier for made in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in earlier if message["role"] == "tool"]
    assert sorted(calls) == sorted(results)
    assert len(set(calls)) == len(calls)


def snake(value: Any) -> Any:
    """The same request as protobuf's other spelling; names inside arguments and results are the user's."""
    if isinstance(value, list):
        return [snake(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = ("args", "response", "output", "parametersJsonSchema")
    return {
        re.sub(r"(?<=[a-z])([A-Z])", lambda found: "_" + found[1].lower(), name): one if name in kept else snake(one)
        for name, one in value.items()
    }


@settings(max_examples=40)
@given(turns())
def test_both_spellings_say_the_same(session: list[list[dict[str, Any]]]) -> None:
    body = {
        "contents": [content for added in session for content in added],
        "generationConfig": {"maxOutputTokens": 5, "stopSequences": ["x"]},
        "tools": [{"functionDeclarations": [{"name": "run", "parametersJsonSchema": {"type": "object"}}]}],
    }
    assert send("gemini", snake(body), target=Target("m")).body == send("gemini", body, target=Target("m")).body


@given(st.text())
def test_signatures_come_back_in_either_alphabet(reasoning: str) -> None:
    try:
        reasoning.encode()
    except UnicodeEncodeError:
        return
    signature = sign(reasoning)
    assert signed(signature) == signed(signature.replace("+", "-").replace("/", "_").rstrip("=")) == reasoning


@given(st.text(max_size=20))
def test_any_other_signature_is_no_error(signature: str) -> None:
    assert signed(signature) is None


def test_names_are_respelt_as_protobuf_does() -> None:
    names = ("inline_data", "inlineData", "top_p", "_private", "a__b")
    assert [camel(name) for name in names] == ["inlineData", "inlineData", "topP", "_private", "a__b"]


MEMBERS = """contents parts role text thought thoughtSignature inlineData fileData functionCall functionResponse name id
    args response output mimeType data fileUri systemInstruction tools functionDeclarations parameters mode
    parametersJsonSchema toolConfig functionCallingConfig allowedFunctionNames generationConfig topK maxOutputTokens
    stopSequences candidateCount thinkingConfig responseMimeType responseSchema type properties items enum nullable
    propertyOrdering anyOf responseModalities"""
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["user", "model", "image/png", "STRING"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS.split()), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["contents", "tools", "toolConfig", "generationConfig", "systemInstruction"]), JSON, max_size=3
    )
)
def test_any_request_is_served_or_refused_by_name(body: dict[str, Any]) -> None:
    said = refusal({"contents": [HI]} | body)
    assert said is None or "`" in said or "Multiple candidates" in said


@pytest.mark.parametrize("depth", [200, 300, 900, 5000])
def test_a_schema_is_served_or_too_deep(depth: int) -> None:
    deep = b'{"items":' * depth + b"{}" + b"}" * depth
    declared = b'[{"functionDeclarations":[{"name":"f","parameters":' + deep + b"}]}]"
    said = refusal(b'{"contents":"hi","tools":' + declared + b"}")
    assert said is None or "deep" in said or "recursion depth" in said


def refusal(request: Any) -> str | None:
    try:
        send("gemini", request, target=M)
    except BadRequest as refused:
        return str(refused)
    return None
