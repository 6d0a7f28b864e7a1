"""Counting tokens through a real proxy: the policy server's own number, or a clear word that there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.engine import Json, ScriptedEngine
from tests.proxy.serving import Serving, calls, serving

MESSAGES: Json = {"model": "m", "messages": [{"role": "user", "content": "count these words"}], "system": "Be brief"}
GEMINI: Json = {"contents": [{"role": "user", "parts": [{"text": "count these words"}]}]}
TOOL: Json = {"name": "run", "input_schema": {"type": "object"}}


class NoTokenizer(ScriptedEngine):
    """Takes chat, and cannot say how many tokens it has."""

    def _post(self, path: str, payload: Json, query: dict[str, str]) -> web.Response:
        return super()._post("/none" if path == "/tokenize" else path, payload, query)


class Refusing(ScriptedEngine):
    def _post(self, path: str, payload: Json, query: dict[str, str]) -> web.Response:
        if path == "/tokenize" and "messages" in payload:
            return web.json_response({"error": {"message": "no such role", "type": "BadRequestError"}}, status=400)
        return super()._post(path, payload, query)


async def ask(s: Serving, path: str, body: Json, **headers: str) -> tuple[int, Any]:
    async with s.http.post(s.proxy.deps.base_url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    "path",
    ["/v1/messages/count_tokens", "/messages/count_tokens", "/v1/messages/count_tokens?beta=true"],
)
async def test_the_count_is_that_of_the_prompt_a_call_would_have(tmp_path: Path, path: str) -> None:
    """Field cases 100 and 101: the policy's own tokenizer, template and tools; a beta is nothing to it."""
    body = MESSAGES | {"tools": [TOOL], "max_tokens": 5}
    async with serving(tmp_path) as s:
        status, said = await ask(s, path, body, **{"anthropic-beta": "token-counting-2024-11-01,made-up"})
        await ask(s, "/v1/messages", body)
        assert (status, said) == (200, {"input_tokens": len(s.engine.served[0].prompt_ids)})
    assert len(calls(s.data)) == 1


async def test_geminis_way_to_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        status, said = await ask(s, "/v1beta/models/m:countTokens", GEMINI)
        wrapped = await ask(s, "/v1beta/models/m:countTokens", {"generateContentRequest": GEMINI | {"model": "m"}})
        await ask(s, "/v1beta/models/m:generateContent", GEMINI)
        assert (status, said) == (200, {"totalTokens": len(s.engine.served[0].prompt_ids)}) == wrapped


async def test_a_count_needs_the_sessions_key_and_makes_no_session(tmp_path: Path) -> None:
    async with serving(tmp_path, implicit=False) as s:
        ticket = await s.control.open_session()
        path = f"/s/{ticket.session_id}/v1/messages/count_tokens"
        assert (await ask(s, path, MESSAGES, **{"x-api-key": ticket.api_key}))[0] == 200
        for key in ({}, {"x-api-key": "fs_wrong"}):
            status, said = await ask(s, path, MESSAGES, **key)
            assert (status, said["error"]["type"]) == (401, "authentication_error")


@pytest.mark.parametrize(
    ("engine", "status", "kind", "words"),
    [
        (NoTokenizer, 404, "not_found_error", "has no /tokenize"),
        (Refusing, 400, "invalid_request_error", "no such role"),
    ],
)
async def test_no_number_is_ever_made_up(
    tmp_path: Path, engine: type[ScriptedEngine], status: int, kind: str, words: str
) -> None:
    async with serving(tmp_path, engine()) as s:
        got, said = await ask(s, "/v1/messages/count_tokens", MESSAGES)
        assert (got, said["error"]["type"]) == (status, kind)
        assert words in said["error"]["message"]


async def test_a_count_without_a_policy_server_or_of_no_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        status, said = await ask(s, "/v1/messages/count_tokens", {"model": "m"})
        assert (status, said["error"]["message"]) == (400, "messages: Field required")
        async with s.http.get(s.proxy.deps.base_url + "/v1/messages/count_tokens") as answer:
            assert answer.status == 405
    async with serving(tmp_path / "none", upstreams=[]) as s:
        status, said = await ask(s, "/v1/messages/count_tokens", MESSAGES)
        assert (status, said["error"]["type"]) == (503, "overloaded_error")


async def test_a_refused_key_of_ours_is_no_refusal_of_the_callers(tmp_path: Path) -> None:
    """As for a call: the harness has nothing to mend, and the server's words are about our key."""
    async with serving(tmp_path) as s:
        s.engine.key = "another"
        status, said = await ask(s, "/v1/messages/count_tokens", MESSAGES)
        assert (status, said["error"]["type"]) == (502, "api_error")
        assert "proxy's own key" in said["error"]["message"]
