"""Pause, reload, clients that go away, the queue's bound, and the process itself."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest

from forge.policy.scheduler import Scheduler
from forge.policy.weights import weight_digest
from tests.policy.served import Json, Served, serving

pytestmark = pytest.mark.model

Tiny = Callable[[int], Path]
PROMPT = [5, 6, 7, 8] * 30
LONG: Json = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "logprobs": 0, "return_token_ids": True}


@pytest.fixture
async def served(tiny: Tiny) -> AsyncIterator[Served]:
    async with serving(tiny(0)) as running:
        yield running


async def until_idle(scheduler: Scheduler) -> None:
    """Passes once nothing is in flight: that is when a waiting pause is answered."""
    async with asyncio.timeout(20):
        await asyncio.wrap_future(scheduler.pause("wait"))
    await asyncio.wrap_future(scheduler.resume())


async def reload(served: Served, directory: Path, version: str) -> None:
    status, body = await served.post("/reload_weights", {"path": str(directory)})
    assert (status, body) == (200, {"weight_digest": weight_digest(directory)})
    await served.post("/update_weight_version", {"new_version": version})


def near(found: list[float], expected: list[float]) -> bool:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-4


async def test_keep_goes_on_under_new_weights_with_new_kv(
    served: Served, tiny: Tiny, score: Callable[..., list[float]]
) -> None:
    stream = served.events("/v1/completions", LONG)
    choices = [(await anext(stream))["choices"][0] for _ in range(3)]
    assert (await served.post("/pause?mode=keep"))[0] == 200
    assert await served.get("/is_paused") == {"is_paused": True}
    await reload(served, tiny(2), "1")
    assert (await served.post("/resume"))[0] == 200
    choices += [event["choices"][0] async for event in stream]
    output = [i for c in choices for i in c["token_ids"]]
    log_probs = [p for c in choices for p in c["logprobs"]["token_logprobs"]]
    assert len(output) == len(log_probs) == 400
    old, new = choices[-1]["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == ("0", 0, "1", 400)
    change = old["end"]
    assert change == new["start"] >= 3
    assert near(log_probs[:change], score(tiny(0), PROMPT, output)[:change])
    assert near(log_probs[change:], score(tiny(2), PROMPT, output)[change:]), "the old KV is not used"


async def test_keep_without_new_weights_changes_nothing(served: Served) -> None:
    asked = LONG | {"seed": 5}
    whole = await served.ask(PROMPT, max_tokens=400, seed=5, ignore_eos=True)
    stream = served.events("/v1/completions", asked)
    choices = [(await anext(stream))["choices"][0]]
    await served.post("/pause?mode=keep")
    await served.post("/resume")
    choices += [event["choices"][0] async for event in stream]
    assert [i for c in choices for i in c["token_ids"]] == whole["token_ids"]


async def test_abort_ends_streams_with_what_they_have(served: Served) -> None:
    stream = served.events("/v1/completions", LONG)
    choices = [(await anext(stream))["choices"][0]]
    await served.post("/pause?mode=abort")
    choices += [event["choices"][0] async for event in stream]
    output = [i for c in choices for i in c["token_ids"]]
    assert choices[-1]["finish_reason"] == "abort"
    assert choices[-1]["token_ids"] == []
    assert 0 < len(output) < 400
    assert choices[-1]["weight_versions"] == [{"version": "0", "start": 0, "end": len(output)}]


async def test_wait_lets_answers_end_and_holds_new_ones(served: Served) -> None:
    async with asyncio.TaskGroup() as group:
        stream = served.events("/v1/completions", LONG)
        await anext(stream)
        paused = group.create_task(served.post("/pause?mode=wait"))
        choices = [event["choices"][0] async for event in stream]
        assert choices[-1]["finish_reason"] == "length"
        assert (await paused)[0] == 200
        held = group.create_task(served.ask(PROMPT, max_tokens=3))
        await asyncio.wrap_future(served.server.scheduler.order(lambda: None))
        assert not held.done()
        await served.post("/resume")
    assert len(held.result()["token_ids"]) == 3


async def test_new_weights_drop_every_cached_prefix(
    served: Served, tiny: Tiny, score: Callable[..., list[float]]
) -> None:
    await served.ask(PROMPT, max_tokens=1)
    assert (await served.ask(PROMPT, max_tokens=1))["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    await served.post("/pause?mode=wait")
    await reload(served, tiny(2), "1")
    await served.post("/resume")
    after = await served.ask(PROMPT, max_tokens=8, ignore_eos=True)
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert near(after["logprobs"]["token_logprobs"], score(tiny(2), PROMPT, after["token_ids"]))
    await served.post("/reset_prefix_cache")
    assert (await served.ask(PROMPT, max_tokens=1))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_reload_that_fails_keeps_the_old_weights(
    served: Served, tiny: Tiny, smollm2: Path, tmp_path: Path
) -> None:
    before = await served.get("/weight_info")
    broken = tmp_path / "broken"
    shutil.copytree(tiny(0), broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    empty = tmp_path / "empty"
    empty.mkdir()
    await served.post("/pause?mode=wait")
    for path, says in (
        (smollm2, "architecture"),
        (broken, "safetensors"),
        (empty, "configuration"),
        (Path("x"), "absolute"),
    ):
        status, body = await served.post("/reload_weights", {"path": str(path)})
        assert status == 400
        assert says in body["error"]["message"]
    await served.post("/resume")
    assert await served.get("/weight_info") == before
    assert len((await served.ask(PROMPT, max_tokens=2, ignore_eos=True))["token_ids"]) == 2


async def _body(request: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> bytes:
    async with request as answer:
        return await answer.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_ends_its_generation(served: Served, stream: bool) -> None:
    asked = LONG | {"max_tokens": 1900, "stream": stream}
    scheduler = served.server.scheduler
    async with aiohttp.ClientSession() as other, asyncio.TaskGroup() as group:
        request = other.post(served.base + "/v1/completions", json=asked)
        if stream:
            async with request as answer:
                await answer.content.readline()  # leaving the block cuts the connection
        else:
            whole = group.create_task(_body(request))
            await served.ask(PROMPT, max_tokens=3)  # behind the other in the queue, so that one runs by now
            whole.cancel()
    await until_idle(scheduler)
    made = max(row.length for row in scheduler.rows.idle) - len(PROMPT)
    assert made < 1900 - 1


async def test_more_than_the_queue_holds_is_429(served: Served) -> None:
    served.server.scheduler.queue_limit = 0
    status, body = await served.post("/v1/completions", {"prompt": PROMPT})
    assert (status, body["error"]["code"]) == (429, 429)


def forge(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "forge", "policy", "serve", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


async def test_the_process(tiny: Tiny, tmp_path: Path) -> None:
    ready, key = tmp_path / "ready.json", tmp_path / "key"
    key.write_text("secret\n")
    process = forge(
        "--port", "0", "--model", str(tiny(0)), "--ready-file", str(ready), "--key-file", str(key), "--version", "3"
    )
    try:
        assert process.stderr is not None
        while "serves on" not in (line := await asyncio.to_thread(process.stderr.readline)):
            assert line, "it ended before it served"
        state = json.loads(ready.read_text())
        assert state["pid"] == process.pid
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as http:
            async with http.get(state["base_url"] + "/weight_info") as answer:
                assert (await answer.json())["weight_version"] == "3"
            port = state["base_url"].rpartition(":")[2]
            second = forge("--port", port, "--model", str(tiny(0)))
            assert "cannot listen" in second.communicate(timeout=60)[1]
            assert second.returncode == 4
            async with http.post(state["base_url"] + "/v1/completions", json=LONG | {"stream": True}) as answer:
                await answer.content.readline()
                process.send_signal(signal.SIGTERM)
                rest = (await answer.content.read()).decode()
        assert '"finish_reason":"length"' in rest, "what was in flight is finished"
        assert rest.endswith("data: [DONE]\n\n")
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert not ready.exists()
    finally:
        process.kill()
        process.wait()


def test_bad_options_end_at_once(tmp_path: Path) -> None:
    for arguments, says in (
        (("--model", "gpt-9"), "known names"),
        (("--model", str(tmp_path)), "config.json"),
        (("--key-file", str(tmp_path / "none")), "--key-file"),
    ):
        process = forge("--port", "0", *arguments)
        error = process.communicate(timeout=60)[1]
        assert says in error
        assert "next:" in error
        assert process.returncode == 2


def test_a_taken_port_is_told_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = forge("--port", str(taken.getsockname()[1]), "--model", str(tmp_path))
        assert "cannot listen" in process.communicate(timeout=60)[1]
        assert process.returncode == 4
