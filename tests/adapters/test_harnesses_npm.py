"""The launches of the harnesses from npm: limits, quiet, one model's name, and prompts that reach the agent whole."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.adapters.harnesses import find
from tests.adapters.test_harnesses import request

NAMES = ("claude-code", "gemini-cli", "openclaw", "opencode")


def config(name: str) -> Any:
    """The first of the launch's files."""
    return json.loads(next(iter(find(name).launch(request()).files.values())))


def test_claude_code_knows_one_model_and_its_limits() -> None:
    """Field cases 105, 114: no nonce in the system prompt, and the true context."""
    env = find("claude-code").launch(request(model="policy")).env
    assert {value for key, value in env.items() if "MODEL" in key} == {"policy"}
    assert (env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == ("8192", "2048")
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert "Bash" not in config("claude-code")["permissions"]["deny"]


def test_opencode_knows_its_limits_and_makes_no_side_call() -> None:
    """Field case 114: it compacts by the context it was told of."""
    told = config("opencode")
    assert told["provider"]["forge"]["models"]["policy"]["limit"] == {"context": 8192, "output": 2048}
    assert told["model"] == told["small_model"] == "forge/policy"
    assert any(word.startswith("--title=") for word in find("opencode").launch(request()).argv)


@given(prompt=st.text(min_size=1, max_size=30))
def test_opencode_reads_the_prompt_as_it_is(prompt: str) -> None:
    launch = find("opencode").launch(request(prompt))
    file = launch.argv[launch.argv.index('exec "$@" < "$0"') + 1]
    assert launch.files[file.removeprefix("/home/agent/")] == prompt


@pytest.mark.parametrize("name", ["claude-code", "gemini-cli"])
def test_a_prompt_is_no_command_of_the_harness(name: str) -> None:
    words = [find(name).launch(request(prompt)).argv[-1].removeprefix("--prompt=") for prompt in ("/help", "no /help")]
    assert words == [" /help", "no /help"]


def test_openclaw_knows_its_limits() -> None:
    """Field case 36: it does not see keepalives, and gives up after its own idle limit."""
    (model,) = config("openclaw")["models"]["providers"]["forge"]["models"]
    assert (model["contextWindow"], model["maxTokens"]) == (8192, 2048)
    provider = config("openclaw")["models"]["providers"]["forge"]
    assert provider["api"] == "openai-responses"
    assert provider["timeoutSeconds"] > request().seconds, "the runner's limit comes first"


@pytest.mark.parametrize("name", ["claude-code", "gemini-cli"])
def test_clients_of_these_wires_append_the_version_themselves(name: str) -> None:
    values = find(name).launch(request()).env.values()
    assert "http://127.0.0.1:8100/s/01abc" in values


@pytest.mark.parametrize("name", NAMES)
def test_sessions_differ_in_their_key_and_address_alone(name: str) -> None:
    one = request()
    other = dataclasses.replace(one, base_url="http://127.0.0.1:8100/s/02xyz/v1", api_key="fs_02xyz_mac")
    told = [
        repr(find(name).launch(each)).replace(each.api_key, "KEY").replace(each.base_url.removesuffix("/v1"), "URL")
        for each in (one, other)
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("name", "stdout", "text"),
    [
        ("claude-code", '{"type":"result","subtype":"success","is_error":false,"result":"Done."}\n', "Done."),
        ("claude-code", '{"type":"result","subtype":"error_max_turns","result":null}\n', ""),
        ("gemini-cli", '{\n  "session_id": "ec93",\n  "response": "Done.",\n  "stats": {}\n}', "Done."),
        ("gemini-cli", '{"error": {"type": "Error", "message": "no"}}', ""),
        ("openclaw", '{\n  "ok": true,\n  "final": "Done.",\n  "payloads": []\n}\n', "Done."),
        ("openclaw", "[1]", ""),
        (
            "opencode",
            '{"type":"text","part":{"type":"text","text":"First"}}\n{"type":"tool_use","part":{"type":"tool"}}\n'
            '{"type":"text","part":{"type":"text","text":"Done."}}\n{"type":"step_finish","part":{}}\n',
            "Done.",
        ),
        ("opencode", '{"type":"error","error":{"name":"APIError"}}\n', ""),
    ],
)
def test_the_last_message_is_found(name: str, stdout: str, text: str) -> None:
    assert find(name).final_text(stdout) == text
