"""The doors beside calls: paths and their mistakes, models, probes, telemetry, websockets, other origins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from forge.proxy.door.routes import Kind, route
from forge.storage.frames import Open
from tests.proxy.serving import USER, calls, serving

SID = "abcdefghijkl"
UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}


@pytest.mark.parametrize(
    ("path", "kind", "dialect", "session"),
    [
        ("/v1/chat/completions", Kind.CALL, "chat", None),
        ("/chat/completions", Kind.CALL, "chat", None),
        ("/v1/chat/completions/", Kind.CALL, "chat", None),
        ("//v1//chat/completions", Kind.CALL, "chat", None),
        (f"/s/{SID}/v1/chat/completions", Kind.CALL, "chat", SID),
        (f"/s/{SID}/chat/completions", Kind.CALL, "chat", SID),
        (f"/s/{SID}/v1/responses", Kind.CALL, "responses", SID),
        ("/v1/chat/completions/chat/completions", Kind.CALL, "chat", None),
        ("/v1/responses/v1/responses", Kind.CALL, "responses", None),
        ("/v1/chat/completions/responses", Kind.CALL, "responses", None),
        ("/v1/chat/completions/models", Kind.MODELS, "chat", None),
        ("/v1/chat/completions/v1/chat/completions/v1/models", Kind.MODELS, "chat", None),
        ("/v1/v1/responses", Kind.CALL, "responses", None),
        ("/v1/completions", Kind.CALL, "completions", None),
        ("/v1/models", Kind.MODELS, "chat", None),
        (f"/s/{SID}/v1/models", Kind.MODELS, "chat", SID),
        ("/v1/models/policy", Kind.MODELS, "chat", None),
        ("/v1/models/org/policy", Kind.MODELS, "chat", None),
        ("/v1beta/models", Kind.MODELS, "gemini", None),
        ("/", Kind.PROBE, "chat", None),
        ("/v1", Kind.PROBE, "chat", None),
        ("/api/hello", Kind.PROBE, "chat", None),
        (f"/s/{SID}", Kind.PROBE, "chat", SID),
        (f"/s/{SID}/api/hello", Kind.PROBE, "chat", SID),
        ("/api/event_logging/batch", Kind.DROP, "chat", None),
        ("/api/event_logging/v2/batch", Kind.DROP, "chat", None),
        (f"/s/{SID}/api/claude_code/metrics", Kind.DROP, "chat", SID),
        ("/v1/traces", Kind.DROP, "chat", None),
        ("/telemetryx", Kind.UNKNOWN, "chat", None),
        ("/api/v1/models", Kind.UNKNOWN, "chat", None),
        ("/api/tags", Kind.UNKNOWN, "chat", None),
        ("/s/short/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        ("/s/UPPERCASEISNOT/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        (f"/s/{SID}%2f..%2f/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        (f"/s/../{SID}/v1/chat/completions", Kind.UNKNOWN, "chat", None),
        ("/sessions", Kind.UNKNOWN, "chat", None),
        ("/v1/gpt-4", Kind.UNKNOWN, "chat", None),
        ("/v1/gpt-4/chat/completions", Kind.UNKNOWN, "chat", None),
        ("/v1/chat/completions/gpt-4", Kind.UNKNOWN, "chat", None),
        ("/pause", Kind.UNKNOWN, "chat", None),
    ],
)
def test_paths(path: str, kind: Kind, dialect: str, session: str | None) -> None:
    """Field cases 7, 8, 9, 10."""
    found = route(path)
    assert (found.kind, found.dialect, found.session_id) == (kind, dialect, session)


async def test_probes_are_cheap_answers_and_no_calls(tmp_path: Path) -> None:
    """Field cases 12, 13, 14, 15."""
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        for method, path in [
            ("HEAD", "/"),
            ("GET", "/"),
            ("HEAD", "/v1"),
            ("HEAD", "/api/hello"),
            ("GET", "/version"),
            ("GET", "/v1/models"),
            ("HEAD", "/v1/models"),
            ("POST", "/api/event_logging/batch"),
            ("POST", "/v1/traces"),
            ("GET", "/health"),
        ]:
            async with s.http.request(method, root + path) as answer:
                assert answer.status == 200, (method, path)
                assert await answer.read() or method == "HEAD"
        assert not s.frames(Open)
        assert not s.engine.served


@pytest.mark.parametrize("path", ["/api/v1/models", "/api/tags", "/api/show", "/api/pull", "/props", "/v1/props"])
async def test_we_are_no_other_server(tmp_path: Path, path: str) -> None:
    """Field cases 12, 16: a 200 here makes Hermes and Codex ``--oss`` manage models; ``/version`` says enough."""
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        for method in ("GET", "POST", "HEAD"):
            async with s.http.request(method, root + path) as answer:
                assert answer.status == 404
                assert answer.content_type == "application/json"
        async with s.http.get(f"{root}/version") as answer:
            assert "version" in await answer.json()
        assert not s.frames(Open)


async def test_models_for_everyone(tmp_path: Path) -> None:
    """Field cases 23, 24, 25, 114: the context window under every name that clients look for."""
    async with serving(tmp_path) as s:
        async with s.http.get(f"{s.proxy.base_url}/models") as answer:
            plain = await answer.json()
        (entry,) = plain["data"]
        assert entry["id"] == "policy"
        assert {entry[n] for n in ("max_model_len", "context_length", "context_window", "max_input_tokens")} == {4096}
        assert "models" not in plain, "Ollama's clients would take us for one"
        async with s.http.get(f"{s.proxy.base_url}/models?client_version=0.163.0") as answer:
            codex = await answer.json()
        assert codex == plain | {"models": []}, "an entry would replace Codex's own prompt"
        async with s.http.get(f"{s.proxy.base_url.removesuffix('/v1')}/v1beta/models") as answer:
            (model,) = (await answer.json())["models"]
        assert (model["name"], model["inputTokenLimit"]) == ("models/policy", 4096)


async def test_models_through_the_sdks(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        async with openai.AsyncOpenAI(base_url=s.proxy.base_url, api_key="none") as client:
            assert [m.id for m in (await client.models.list()).data] == ["policy"]
            assert (await client.models.retrieve("org/any name")).id == "org/any name"
        async with anthropic.AsyncAnthropic(base_url=s.proxy.base_url.removesuffix("/v1"), api_key="none") as claude:
            assert [m.id async for m in claude.models.list()] == ["policy"]
            assert (await claude.models.retrieve("policy")).display_name == "policy"


async def test_any_model_name_is_served(tmp_path: Path) -> None:
    """Field case 10: in a run with one policy a name is mapped, never refused."""
    async with serving(tmp_path) as s:
        body = {"model": "some/other-model", "messages": [USER]}
        async with s.http.post(f"{s.proxy.base_url}/chat/completions", json=body) as answer:
            assert (await answer.json())["model"] == "some/other-model"
        assert s.engine.served[0].json["model"] == "policy"
    (row,) = calls(s.data)
    assert row.model_requested == "some/other-model"


async def test_unknown_paths_name_the_right_base_url(tmp_path: Path) -> None:
    """Field cases 7, 9."""
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        session = await s.control.open_session()
        wrong = ("/v1/gpt-4", "/openai/deployments", "/v1/gpt-4/chat/completions", "/s/abc/v1/chat/completions")
        places = [(root + path, s.proxy.base_url) for path in wrong]
        for url, right in [*places, (f"{session.base_url}/gpt-4", session.base_url)]:
            async with s.http.post(url, json={}) as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["message"].endswith(f" {right}")
        assert not s.frames(Open)


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/completions/chat/completions", "/v1/chat/completions/"])
async def test_a_whole_endpoint_as_base_url_still_calls(tmp_path: Path, path: str) -> None:
    """Field cases 8, 10."""
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        async with s.http.post(root + path, json={"messages": [USER]}) as answer:
            assert answer.status == 200


async def test_methods_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH"):
            async with s.http.request(method, f"{s.proxy.base_url}/chat/completions") as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST, OPTIONS")
        async with s.http.post(f"{s.proxy.base_url}/models", json={}) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        for path, allowed in (("/chat/completions", "POST"), ("/models", "GET"), ("", "GET")):
            headers = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
            async with s.http.options(s.proxy.base_url + path, headers=headers) as answer:
                assert answer.status == 204
                assert allowed in answer.headers["Allow"]
                assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert not s.frames(Open)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://example.com", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
    ],
)
async def test_a_web_page_from_elsewhere_cannot_write_into_the_record(tmp_path: Path, origin: str, status: int) -> None:
    async with serving(tmp_path) as s:
        session = await s.control.open_session()
        request: dict[str, Any] = {"data": json.dumps({"messages": [USER]}), "headers": {"Origin": origin}}
        async with s.http.post(f"{s.proxy.base_url}/chat/completions", **request) as answer:
            assert answer.status == status
        assert len(s.frames(Open)) == (status == 200)
        request["headers"]["Authorization"] = f"Bearer {session.api_key}"
        async with s.http.post(f"{s.proxy.base_url}/chat/completions", **request) as answer:
            assert answer.status == 200, "a key is what a page cannot guess"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/models", "/", "/anything"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_websocket_is_426_at_once(tmp_path: Path, path: str, method: str) -> None:
    """Field cases 17, 19, 20, 21: at once, no call, and the connection ends: what follows may be no HTTP."""
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        async with s.http.request(method, root + path, headers=UPGRADE) as answer:
            assert answer.status == 426
            assert answer.headers["Connection"].lower() == "close"
        async with s.chat() as answer:
            assert answer.status == 200
        assert len(s.frames(Open)) == 1


async def test_an_offer_of_another_protocol_is_an_ordinary_request(tmp_path: Path) -> None:
    """Java's client offers HTTP/2 on every plain request."""
    async with serving(tmp_path) as s:
        headers = {"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAMAAABk"}
        body = {"messages": [USER]}
        async with s.http.post(f"{s.proxy.base_url}/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
