"""What a client gets through the proxy is what it gets directly, byte for byte, but for what only we asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import USER, serving

QUOTED = 'keys: "token_ids":[1,2], {"prompt_token_ids":[3],"logprobs":null} and \\"token_ids\\":[4]'
ARGUMENTS = '{"cmd": "echo \\"token_ids\\":[1]", "logprobs": null, "prompt_token_ids": [1, 2]}'
TURNS = {
    "text": Turn("Hello there, you."),
    "quoted": Turn(QUOTED),
    "tools": Turn("Let me look.", tool_calls=[("run", ARGUMENTS), ("run", "{}")]),
    "reasoning": Turn("Paris.", reasoning='capital? "token_ids":[5]'),
    "unicode": Turn("naïve café ✓ 漢字 👩‍🚀 line\nnext\ttab"),
    "empty": Turn(""),
}
ASKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "log probs": {"logprobs": True, "top_logprobs": 1},
    "ids": {"return_token_ids": True},
    "all": {"logprobs": True, "return_token_ids": True},
}
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def normal(body: bytes) -> bytes:
    """Without the engine's counting ids."""
    return re.sub(rb"chatcmpl-(tool-)?\d+", b"chatcmpl-N", body)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_bytes_are_the_engines(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path) as s:
        for name, turn in TURNS.items():
            for asks, members in ASKS.items():
                for options in [{}, {"stream_options": {"include_usage": True}}] if stream else [{}]:
                    body = {"model": "policy", "messages": [USER], "tools": TOOLS, "stream": stream} | members | options
                    got = []
                    for base in (f"{s.engine.url}/v1", s.proxy.base_url):
                        s.engine.script(turn)
                        async with s.http.post(f"{base}/chat/completions", json=body) as answer:
                            assert answer.status == 200
                            kind = answer.headers["Content-Type"]
                            got.append((kind, normal(await answer.read())))
                    assert got[0] == got[1], (name, asks, options)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_everything_is_recorded_that_the_client_did_not_see(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(task_id="t")
        s.engine.script(*TURNS.values())
        for _ in TURNS:
            async with s.chat(key=ticket.api_key, base=ticket.base_url, stream=stream) as answer:
                assert b'"token_ids":[' not in (await answer.read()).replace(b'\\"token_ids\\":[', b"")
        closed = await s.control.close_session(ticket.session_id, reward=1.0)
        calls = await s.control.calls(ticket.session_id)
        served = s.engine.served
    assert [c.output_ids.tolist() for c in calls] == [x.output_ids for x in served]
    assert [c.prompt_ids.tolist() for c in calls] == [x.prompt_ids for x in served]
    assert [c.output_log_probs.tolist() for c in calls] == [x.log_probs for x in served]
    assert all(c.status == "ok" and c.trainable and c.completion_tokens == len(c.output_ids) for c in calls)
    assert closed.calls.calls == len(TURNS)
    assert closed.calls.untrainable == {}
    assert sum(sum(x.response_mask.tolist()) for x in closed.samples) > 0


async def test_the_harness_own_model_name_comes_back_and_the_engines_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(model="served-name")) as s:
        async with s.chat(model="what-the-harness-says") as answer:
            assert (await answer.json())["model"] == "what-the-harness-says"
        assert s.engine.served[0].json["model"] == "served-name"


async def test_the_runs_sampling_is_laid_over_and_recorded(tmp_path: Path) -> None:
    async with serving(tmp_path, sampling={"temperature": 1.0, "top_p": 1.0, "top_k": -1}) as s:
        ticket = await s.control.open_session(sampling={"temperature": 0.7})
        async with s.chat(temperature=0.1, top_p=0.5) as answer:
            await answer.read()
        async with s.chat(temperature=0.1, key=ticket.api_key, base=ticket.base_url) as answer:
            await answer.read()
        implicit, explicit = s.engine.served
        assert (implicit.json["temperature"], implicit.json["top_p"], implicit.json["top_k"]) == (1.0, 1.0, -1)
        assert explicit.json["temperature"] == 0.7
        opens = await s.opened(2)
        assert [o.sampling_asked for o in opens] == ['{"temperature":0.1,"top_p":0.5}', '{"temperature":0.1}']


async def test_client_credentials_do_not_reach_the_engine_and_its_own_key_does(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("engine-key\n")
    async with serving(tmp_path, ScriptedEngine(key="engine-key"), upstream_key_file=key_file) as s:
        headers = {"Authorization": "Bearer sk-client-secret", "x-api-key": "another-secret", "Cookie": "c=secret"}
        url = f"{s.proxy.base_url}/chat/completions"
        async with s.http.post(url, json={"messages": [USER]}, headers=headers) as answer:
            assert answer.status == 200
        s.engine.script(Turn(fault=Fault(status=403, body='{"error":{"message":"bad key engine-key"}}')))
        async with s.http.post(url, json={"messages": [USER]}, headers=headers) as answer:
            assert "bad key [redacted]" in await answer.text()
        sent = s.engine.served[0].headers
        assert sent["Authorization"] == "Bearer engine-key"
        assert "secret" not in str(sent)
        journal = b"".join(p.read_bytes() for p in (s.data / "journal").rglob("*.seg"))
        assert b"secret" not in journal
        assert b"engine-key" not in journal
