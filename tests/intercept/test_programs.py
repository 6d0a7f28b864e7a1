"""Real programs that call a provider by themselves: their calls are rows of the session, streamed as they are made.

In each test the engine is held in the middle of its answer until the program has shown the first half: whatever
buffered on the way would make it wait for ever.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.adapters.harnesses.codex import PACKAGE as CODEX
from forge.adapters.harnesses.node import NODE
from forge.adapters.harnesses.packages import Npm, cache_folder
from forge.storage.records import CallStatus
from tests.engine import Turn
from tests.intercept.kit import KEY, There, holding, intercepted, program, stores

pytestmark = pytest.mark.harness

TURN = Turn("The first half, then the second half.")
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
HALF = 5
"""Chunks that are let out before the program must have shown something."""
BODY = json.dumps({"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "hello"}]})
PYTHON = """
from openai import OpenAI
for chunk in OpenAI().chat.completions.create(
    model="gpt-5", stream=True, messages=[{"role": "user", "content": "hello"}]
):
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, flush=True)
"""
ANTHROPIC = """
from anthropic import Anthropic
with Anthropic().messages.stream(
    model="claude-9", max_tokens=50, messages=[{"role": "user", "content": "hello"}]
) as stream:
    for text in stream.text_stream:
        print(text, flush=True)
"""
GEMINI = """
from google import genai
client = genai.Client()
for chunk in client.models.generate_content_stream(model="gemini-9", contents="hello"):
    print(chunk.text, flush=True)
"""
FETCH = """
const answer = await fetch("https://api.openai.com/v1/chat/completions", {
  method: "POST",
  headers: {"content-type": "application/json", authorization: "Bearer " + process.env.OPENAI_API_KEY},
  body: process.argv.at(-1),
});
for await (const piece of answer.body) process.stdout.write(piece);
"""
UNDICI = Npm(
    name="undici",
    version="7.16.0",
    requirement="undici@7.16.0",
    program="node_modules/undici/index.js",
    node=NODE,
)
AGENT = """
const {fetch, setGlobalDispatcher, EnvHttpProxyAgent} = require(process.argv.at(-2));
setGlobalDispatcher(new EnvHttpProxyAgent());
(async () => {
%s
})();
"""


def curl() -> list[str]:
    command = ["curl", "-sS", "-N", "https://api.openai.com/v1/chat/completions?key=" + KEY]
    command += ["-H", f"Authorization: Bearer {KEY}", "-H", f"x-api-key: {KEY}", "-H", f"x-goog-api-key: {KEY}"]
    return [*command, "-H", "Content-Type: application/json", "-H", f"Cookie: k={KEY}", "-d", BODY]


def node() -> str:
    NODE.install(cache_folder(), print)
    return str(cache_folder() / NODE.folder / NODE.program)


def node_fetch() -> list[str]:
    return [node(), "--input-type=module", "-e", FETCH, BODY]


def node_undici() -> list[str]:
    """The npm package's own agent, so that a Node before 24 works too."""
    program = node()
    UNDICI.install(cache_folder(), print)
    return [program, "-e", AGENT % FETCH, str(cache_folder() / UNDICI.folder / "node_modules/undici"), BODY]


def openai_sdk() -> list[str]:
    return [sys.executable, "-c", PYTHON]


def anthropic_sdk() -> list[str]:
    return [sys.executable, "-c", ANTHROPIC]


def gemini_sdk() -> list[str]:
    return [sys.executable, "-c", GEMINI]


@pytest.mark.parametrize("command", [curl, openai_sdk, anthropic_sdk, gemini_sdk, node_fetch, node_undici])
async def test_a_program_is_streamed_to_and_recorded(tmp_path: Path, command: Callable[[], list[str]]) -> None:
    argv = command()
    environment, before = dict(os.environ), stores()
    async with intercepted(tmp_path) as there:
        engine = there.serving.engine
        engine.script(TURN)
        engine.gate.shut()
        engine.gate.release(HALF)
        async with program(argv, there.env(**dict.fromkeys(KEYS, KEY))) as running:
            await running.line("first")
            await engine.gate.waiting.wait()
            assert not engine.served[0].ended
            engine.gate.open()
            assert "second" in await running.end()
        await recorded(there, tmp_path)
    assert dict(os.environ) == environment
    assert stores() == before


async def recorded(there: There, tmp_path: Path) -> None:
    """The one call is a row as the engine served it, and the provider's key is nowhere."""
    (call,) = await there.calls()
    (served,) = there.serving.engine.served
    assert (call.status, call.session_id) == (CallStatus.OK, there.ticket.session_id)
    assert call.trainable
    assert call.prompt_ids.tolist() == served.prompt_ids
    assert call.output_ids.tolist() == served.output_ids
    assert KEY not in repr((served.headers, served.body, call))
    assert not holding(tmp_path, KEY)


CODEX_CONFIG = """
model = "policy"
check_for_update_on_startup = false
web_search = "disabled"
[analytics]
enabled = false
[features]
apps = false
plugins = false
daemon_auto_start = false
"""


async def test_codex_with_its_built_in_provider(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No base URL is set. It asks for a websocket first; its own log shows each event as it comes."""
    home = tmp_path_factory.mktemp("home")
    (home / "config.toml").write_text(CODEX_CONFIG)
    CODEX.install(cache_folder(), print)
    codex = str(cache_folder() / CODEX.folder / CODEX.program)
    logs = {"HOME": str(home), "CODEX_HOME": str(home), "RUST_LOG": "codex_otel=info"}
    (home / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": KEY}))
    argv = [codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "hello"]
    async with intercepted(tmp_path) as there:
        engine = there.serving.engine
        engine.script(TURN)
        engine.gate.shut()
        engine.gate.release(HALF)
        async with program(argv, there.env(**logs), cwd=home) as running:
            await running.line("response.output_text.delta")
            await engine.gate.waiting.wait()
            assert not engine.served[0].ended
            engine.gate.open()
            assert "then the second half." in await running.end()
        await recorded(there, tmp_path)
        (call,) = await there.calls()
        assert (call.dialect, call.harness, call.harness_version) == ("responses", "codex", CODEX.version)
        assert b'code="websocket_not_supported"' in there.serving.proxy.deps.metrics.text()
