"""What the addon does with one request, without mitmproxy: which path, which key, what is taken out."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from forge.proxy.intercept.addon import Plan, inner_path, read_plan, session_key, without_keys
from forge.proxy.intercept.hosts import PROVIDERS, Mapped, Others, default_base, mapped, rules
from forge.storage.errors import BadInput


def plan(tmp_path: Path, *hosts: Mapped) -> Plan:
    path = tmp_path / "plan.json"
    told = {"upstream": "http://127.0.0.1:1", "token": "t", "hosts": hosts or PROVIDERS, "block": True, "ready": "r"}
    path.write_text(json.dumps(told))
    return read_plan(str(path))


@pytest.mark.parametrize(
    ("host", "path", "inner"),
    [
        ("api.openai.com", "/v1/responses", "/v1/responses"),
        ("API.OpenAI.com", "/v1/models?client_version=1", "/v1/models?client_version=1"),
        ("chatgpt.com", "/backend-api/codex/responses", "/responses"),
        ("chatgpt.com", "/backend-api/codex?x=1", "?x=1"),
        ("chatgpt.com", "/backend-api/codexes", None),
        ("chatgpt.com", "/", None),
        ("openrouter.ai", "/api/v1/chat/completions", "/v1/chat/completions"),
        ("openrouter.ai", "/apis", None),
        ("generativelanguage.googleapis.com", "/v1beta/openai/chat/completions", "/chat/completions"),
        ("generativelanguage.googleapis.com", "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
        ("api.openai.com.example.com", "/v1/responses", None),
        ("openai.com", "/v1/responses", None),
    ],
)
def test_which_requests_are_the_policys(tmp_path: Path, host: str, path: str, inner: str | None) -> None:
    assert inner_path(plan(tmp_path), host, path) == inner


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/a?key=SECRET", "/a"),
        ("/a?alt=sse&key=SECRET&x=%20y", "/a?alt=sse&x=%20y"),
        ("/a?KEY=SECRET&access_token=SECRET&keys=1", "/a?keys=1"),
        ("/a?beta=true", "/a?beta=true"),
        ("/a/key=no", "/a/key=no"),
    ],
)
def test_keys_leave_the_query(path: str, left: str) -> None:
    assert without_keys(path) == left


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (basic("token:fs_1"), "fs_1"),
        (basic("token:"), None),
        (basic("other:fs_1"), None),
        (basic("tökén:fs_1"), None),
        ("Bearer fs_1", None),
        ("Basic !!!", None),
        ("Basic /w==", None),
        ("", None),
    ],
)
def test_the_credential_of_the_program(header: str, key: str | None) -> None:
    assert session_key("token", header) == key


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("llm.example.com", Mapped("llm.example.com")),
        (" LLM.Example.com=/openai/ ", Mapped("llm.example.com", "/openai")),
        ("h=/", Mapped("h")),
        ("10.0.0.7=/v1/x-y", Mapped("10.0.0.7", "/v1/x-y")),
    ],
)
def test_a_mapping_is_read(text: str, entry: Mapped) -> None:
    assert mapped(text) == entry
    assert rules(Others.PASS, [text]) == ((*PROVIDERS, entry), Others.PASS)


@pytest.mark.parametrize("text", ["", "=/x", "https://h", "h:443", "h=x", "h=/x?y", "h.*", "h|g", "-h"])
def test_a_bad_mapping_says_how(text: str) -> None:
    with pytest.raises(BadInput, match="no HOST") as caught:
        mapped(text)
    assert "--map llm.example.com" in caught.value.hint


def test_every_default_base_is_mapped(tmp_path: Path) -> None:
    for dialect in ("chat", "responses", "completions", "messages", "gemini"):
        host, _, path = default_base(dialect).removeprefix("https://").partition("/")
        assert inner_path(plan(tmp_path), host, "/" + path) == "/v1"
