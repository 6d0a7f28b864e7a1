"""A command line as a harness: what is put in is a value, never a word more."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.adapters.harnesses import find
from forge.adapters.harnesses.command import PLACEHOLDERS, Command
from forge.storage.errors import BadInput
from tests.adapters.test_harnesses import KEY, request

TEMPLATE = "agent --url={base_url} -m {model} -C {workspace} --state {home}/state '{prompt}'"


def test_every_placeholder_is_filled_in() -> None:
    launch = Command(TEMPLATE + " {api_key}").launch(request("Say 'hi'"))
    assert launch.argv == (
        "agent",
        "--url=http://127.0.0.1:8100/s/01abc/v1",
        "-m",
        "policy",
        "-C",
        "/workspace",
        "--state",
        "/home/agent/state",
        "Say 'hi'",
        KEY,
    )
    assert (launch.cwd, launch.limits.seconds, launch.files) == ("/workspace", 60, {})


def test_the_environment_serves_the_sdks_of_every_wire() -> None:
    launch = Command("agent {prompt}").launch(request())
    root = "http://127.0.0.1:8100/s/01abc"
    assert launch.env["OPENAI_BASE_URL"] == f"{root}/v1"
    assert launch.env["ANTHROPIC_BASE_URL"] == launch.env["GOOGLE_GEMINI_BASE_URL"] == root
    assert {launch.env[f"{vendor}_API_KEY"] for vendor in ("OPENAI", "ANTHROPIC", "GEMINI")} == {KEY}
    assert not any(KEY in word for word in launch.argv), "the key is on the command line only where it is asked for"


@given(prompt=st.text(max_size=60))
def test_a_prompt_is_one_word_and_is_not_read_again(prompt: str) -> None:
    argv = Command(TEMPLATE).launch(request(prompt)).argv
    assert argv[-1] == prompt
    assert len(argv) == len(shlex.split(TEMPLATE))


@pytest.mark.parametrize("prompt", ["{api_key}", "{{model}}", "x' --yolo 'y", "$(touch /tmp/x)", "a\nb", "--help"])
def test_a_prompt_that_looks_like_a_template_stays_text(prompt: str) -> None:
    assert Command("agent -p={prompt}").launch(request(prompt)).argv == ("agent", f"-p={prompt}")


def test_other_braces_are_the_programs_own() -> None:
    template = """agent '{"a": {"b": 1}}' '${HOME}' {} '{{prompt}}' '{ model }'"""
    assert Command(template).launch(request()).argv[1:] == (
        '{"a": {"b": 1}}',
        "${HOME}",
        "{}",
        "{prompt}",
        "{ model }",
    )


def test_unknown_placeholders_are_named() -> None:
    with pytest.raises(BadInput) as caught:
        Command("agent {prompt} {url} {token} {url}")
    assert caught.value.message.endswith("{url}, {token}")
    assert all(f"{{{name}}}" in caught.value.hint for name in PLACEHOLDERS)


@pytest.mark.parametrize("template", ["", "  ", "agent 'x"])
def test_a_template_without_words_is_bad_input(template: str) -> None:
    with pytest.raises(BadInput) as caught:
        Command(template)
    assert "--command" in caught.value.hint


def test_it_is_found_by_its_word_with_a_template() -> None:
    assert find("command", "agent {prompt}").launch(request()).argv == ("agent", "Say hi")
    with pytest.raises(BadInput, match="needs the command line"):
        find("command")
    with pytest.raises(BadInput) as caught:
        find("comand")
    assert "command" in caught.value.hint


@given(stdout=st.text())
def test_what_it_printed_is_its_last_message(stdout: str) -> None:
    assert Command("agent").final_text(stdout) == stdout.strip()
