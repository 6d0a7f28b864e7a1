"""Launches are data: what each adapter makes of one request."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.adapters.harnesses import HARNESSES, find
from forge.adapters.harnesses.base import LaunchRequest
from forge.storage.errors import BadInput

KEY = "fs_01abc_mac"


def request(prompt: str = "Say hi", model: str = "policy") -> LaunchRequest:
    return LaunchRequest(
        base_url="http://127.0.0.1:8100/s/01abc/v1",
        api_key=KEY,
        model=model,
        prompt=prompt,
        workspace="/workspace",
        home="/home/agent",
        installs="/opt/forge",
        context_tokens=8192,
        output_tokens=2048,
        seconds=60,
    )


@pytest.mark.parametrize("name", sorted(HARNESSES))
def test_every_launch_keeps_the_rules(name: str) -> None:
    """Field case 11: and each has a key, for harnesses that do not start without one."""
    adapter = HARNESSES[name]
    launch = adapter.launch(request())
    assert launch == adapter.launch(request()), "the same request gives the same launch"
    assert adapter.name == name
    assert launch.cwd == "/workspace"
    assert launch.limits.seconds == 60
    assert any(word.startswith("/opt/forge/") for word in launch.argv)
    assert not any(KEY in word for word in launch.argv), "other users see command lines"
    assert not any(path.startswith("/") or ".." in path for path in launch.files)
    assert not {"PATH", "HOME", "TMPDIR", "LANG", "TERM"} & set(launch.env), "the runner sets these"
    assert "http://127.0.0.1:8100/s/01abc" in "".join((*launch.files.values(), *launch.env.values()))
    assert KEY in "".join((*launch.files.values(), *launch.env.values()))


def test_codex_knows_its_limits() -> None:
    """Field case 18: it asks for no websocket in the first place."""
    config = tomllib.loads(HARNESSES["codex"].launch(request()).files[".codex/config.toml"])
    assert config["model_context_window"] == 8192
    assert config["model_auto_compact_token_limit"] < 8192
    assert not any(config["features"].values())
    assert config["model_providers"]["forge"]["supports_websockets"] is False


@given(st.text(max_size=50))
def test_codex_takes_any_model_name(model: str) -> None:
    launch = HARNESSES["codex"].launch(request(model=model))
    assert tomllib.loads(launch.files[".codex/config.toml"])["model"] == model


def test_pi_knows_its_limits() -> None:
    models = json.loads(HARNESSES["pi"].launch(request()).files[".pi/agent/models.json"])
    (model,) = models["providers"]["forge"]["models"]
    assert (model["contextWindow"], model["maxTokens"], model["reasoning"]) == (8192, 2048, False)


@pytest.mark.parametrize("name", sorted(HARNESSES))
@given(prompt=st.text(min_size=1, max_size=30))
def test_a_prompt_is_never_an_option(name: str, prompt: str) -> None:
    launch = HARNESSES[name].launch(request(prompt))
    if "--" in launch.argv:
        assert launch.argv[-2] == "--"
        assert launch.argv[-1].lstrip(" ") == prompt.lstrip(" ")
    elif prompt not in launch.files.values():
        assert re.fullmatch(r"--[a-z]+= ?" + re.escape(prompt), launch.argv[-1], re.DOTALL)


@pytest.mark.parametrize(
    ("name", "stdout", "text"),
    [
        (
            "codex",
            'noise\n{"type":"item.completed","item":{"type":"agent_message","text":"One"}}\n'
            '{"type":"item.completed","item":{"type":"command_execution","aggregated_output":"x"}}\n'
            '{"type":"item.completed","item":{"type":"agent_message","text":"Two"}}\n{"broken',
            "Two",
        ),
        (
            "pi",
            '{"type":"message_end","message":{"role":"user","content":[{"type":"text","text":"ask"}]}}\n'
            '{"type":"message_end","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},'
            '{"type":"text","text":"Hel"},{"type":"text","text":"lo"}]}}\n',
            "Hello",
        ),
        (
            "codex",
            '{"type":"item.completed","item":{"type":"agent_message","text":"a\u2028b\x85c"}}\r\n',
            "a\u2028b\x85c",
        ),
        ("codex", "", ""),
        ("pi", "[1]\n{}\n", ""),
    ],
)
def test_the_last_message_is_found(name: str, stdout: str, text: str) -> None:
    assert HARNESSES[name].final_text(stdout) == text


def test_codex_says_why_a_turn_failed() -> None:
    """On stderr it says only that it reads standard input."""
    why = "Incomplete response returned, reason: max_output_tokens"
    events = [{"type": "turn.started"}, {"type": "turn.failed", "error": {"message": why}}]
    assert HARNESSES["codex"].failure("".join(json.dumps(event) + "\n" for event in events)) == why
    assert HARNESSES["codex"].failure('{"type": "turn.failed", "error": null}\n{"type": "turn.completed"}') == ""


@pytest.mark.parametrize("name", sorted(HARNESSES))
@given(stdout=st.text() | st.lists(st.dictionaries(st.text(), st.none() | st.integers())).map(json.dumps))
def test_any_output_has_a_last_message(name: str, stdout: str) -> None:
    assert isinstance(HARNESSES[name].final_text(stdout), str)
    assert isinstance(HARNESSES[name].failure(stdout), str)


def test_an_unknown_harness_is_bad_input() -> None:
    with pytest.raises(BadInput) as caught:
        find("codecks")
    assert "codex" in caught.value.hint
