"""Secrets of every kind, planted wherever one can be, and then looked for in everything that a proxy leaves or says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest

from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.process import ProxyProcess, proxy_process, run_to_end
from tests.proxy.serving import USER

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEplantedpem0123456789\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "bearer": "sk-ant-oat01-planted0bearer",
    "x-api-key": "planted-0xapikey-77",
    "google": "AIzaSyPlanted0google0key0000000000000000",
    "cookie": "planted-0cookie-88",
    "query key": "planted-0query-99",
    "basic": "cGxhbnRlZDA6cGxhbnRlZA==",
    "aws id": "AKIAPLANTED000000000",
    "aws secret": "wJalrXUtnPlanted0FEMIK7MDENGbPxRfiCYEXAM",
    "github": "ghp_planted0github0token0000000000000000",
    "pem": "MIIEplantedpem0123456789",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJwbGFudGVkIjoxfQ.c2lnbmF0dXJlMDA",
    "hugging face": "hf_planted0huggingface0token0000",
    "engine's key": "engine-own-planted-0key",
    "password in a URL": "planted-0urlpassword",
}
HEADERS = {
    "Authorization": f"Bearer {SECRETS['bearer']}",
    "x-api-key": SECRETS["x-api-key"],
    "x-goog-api-key": SECRETS["google"],
    "Cookie": f"session={SECRETS['cookie']}",
    "Proxy-Authorization": f"Basic {SECRETS['basic']}",
    "X-Amz-Security-Token": SECRETS["jwt"],
    "User-Agent": "codex_exec/1.0",
}
QUOTES = (
    f"aws_secret_access_key = {SECRETS['aws secret']} of {SECRETS['aws id']}",
    f"git clone with {SECRETS['github']} failed",
    PEM,
    f"Authorization: Bearer {SECRETS['jwt']}",
    f"key {SECRETS['engine' + chr(39) + 's key']} and {SECRETS['hugging face']} are over quota",
    f"postgresql://admin:{SECRETS['password in a URL']}@db/x cannot be reached; api_key={SECRETS['query key']}",
    f"Cookie: session={SECRETS['cookie']}; {SECRETS['google']}",
)
"""What engines and runners say in their errors."""
OWN_FILES = ("secret", "control.token")


@pytest.mark.process
async def test_no_output_holds_a_planted_secret(tmp_path: Path) -> None:
    """Field cases 185, 186, 187, 188, 189, 190: every log, metric, row, frame, answer and command of a real process."""
    key_file = tmp_path / "engine.key"
    key_file.write_text(SECRETS["engine's key"])
    heard: list[str] = []
    async with (
        ScriptedEngine(key=SECRETS["engine's key"]) as engine,
        proxy_process(
            tmp_path / "data", engine.url, "--upstream-key-file", str(key_file), "--log-format", "json"
        ) as proxy,
        aiohttp.ClientSession() as http,
    ):
        engine.served.clear()
        keys = await _speak(proxy, engine, http, heard)
        for served in engine.served:
            heard.append(repr({n: v for n, v in served.headers.items() if n != "Authorization"}))
        top = ["top", "--once", "--control", proxy.control_url, "--data", str(tmp_path / "data")]
        heard.append((await run_to_end([sys.executable, "-m", "forge", *top]))[1])
        assert await proxy.stop() == 0
    heard.append(proxy.log.read_text())
    for line in proxy.log.read_text().splitlines():
        assert not line.startswith("{") or json.loads(line)["message"]
    heard += [text async for text in _commands(tmp_path / "data")]
    files = [f for f in (tmp_path / "data").rglob("*") if f.is_file() and f.name not in OWN_FILES]
    everything = "\n".join(heard) + "\n".join(f.read_bytes().decode(errors="replace") for f in files)
    cells = list(_cells(tmp_path / "data"))
    assert len(files) > 4
    assert len(cells) > 100
    for name, secret in {**SECRETS, **keys}.items():
        assert secret not in everything, name
        assert not [column for column, text in cells if secret in text], name


async def _speak(
    proxy: ProxyProcess, engine: ScriptedEngine, http: aiohttp.ClientSession, heard: list[str]
) -> dict[str, str]:
    """Asks in every way that goes wrong; gives the keys that were given out."""
    token = {"Authorization": f"Bearer {proxy.token}"}

    async def ask(method: str, url: str, **request: Any) -> Any:
        async with http.request(method, url, **request) as answer:
            text = await answer.text()
            heard.append(f"{text} {dict(answer.headers)!r}" if answer.status != 201 else "")
            return json.loads(text) if answer.status == 201 else None

    ticket = await ask("POST", f"{proxy.control_url}/sessions", headers=token, json={"task_id": "t"})
    forged = ticket["api_key"][:-4] + "0000"
    ours = HEADERS | {"Authorization": f"Bearer {ticket['api_key']}"}
    chat = {"url": f"{proxy.base_url}/chat/completions", "json": {"messages": [USER]}}
    query = f"?key={SECRETS['query key']}&access_token={SECRETS['query key']}"
    for headers in (HEADERS, ours, HEADERS | {"Authorization": f"Bearer {forged}"}):
        await ask("POST", chat["url"] + query, json=chat["json"], headers=headers)
        await ask("POST", proxy.base_url + "/nowhere" + query, headers=headers)
        await ask("GET", proxy.base_url + "/models" + query, headers=headers)
    for dialect, body in (
        ("/chat/completions", {"messages": [USER]}),
        ("/responses", {"input": "hi"}),
        ("/messages", {"messages": [USER], "max_tokens": 5}),
    ):
        for text in QUOTES:
            for status in (400, 401, 500):
                said = json.dumps({"error": {"message": text, "type": text, "code": status}})
                engine.script(Turn(fault=Fault(status=status, body=said, headers=(("Set-Cookie", SECRETS["cookie"]),))))
                await ask("POST", proxy.base_url + dialect, json=body, headers=ours)
            engine.script(Turn(fault=Fault(status=404, body=text)))
            await ask("POST", proxy.base_url + dialect, json=body, headers=ours)
    for path in ("/metrics", "/readyz", f"/sessions/{ticket['session_id']}/calls", "/upstreams", "/capacity"):
        await ask("GET", proxy.control_url + path, headers=token)
    wrong = f"http://user:{SECRETS['password in a URL']}@127.0.0.1:9"
    await ask("POST", f"{proxy.control_url}/upstreams", headers=token, json={"url": wrong})
    outcome = {"status": "failed", "reward": None, "error": "\n".join(QUOTES)}
    await ask("POST", f"{proxy.control_url}/sessions/{ticket['session_id']}/close", headers=token, json=outcome)
    await ask("POST", **chat, headers=ours)
    return {"session key": ticket["api_key"], "forged key": forged, "control token": proxy.token}


async def _commands(data: Path) -> Any:
    """What our own commands say of the data, and how they fail."""
    forge = [sys.executable, "-m", "forge"]
    for command in (
        ["sessions", "--data", str(data), "--json"],
        ["sessions", "--data", str(data)],
        ["stats", "run", "--data", str(data), "--json"],
        ["delete", "run", "--data", str(data)],
        ["decode", "--once", "--data", str(data), "--catalog", f"nodb://u:{SECRETS['password in a URL']}@h/d"],
        ["proxy", "--upstream", f"http://u:{SECRETS['password in a URL']}@h", "--data", str(data / "x")],
        ["proxy", "--upstream", f"http://h/?key={SECRETS['query key']}", "--data", str(data / "x")],
    ):
        code, said = await run_to_end([*forge, *command])
        assert (code == 0) == (command[0] in ("sessions", "stats", "delete")), said
        yield said


def _cells(data: Path) -> Iterator[tuple[str, str]]:
    for path in data.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        for name in table.column_names:
            yield from ((name, str(value)) for value in table.column(name).to_pylist())


@pytest.mark.process
async def test_a_secret_in_a_prompt_is_in_the_prompt_alone(tmp_path: Path) -> None:
    """Scrubbing would break the tokens' truth: it stands where the prompt stands, and nowhere else."""
    secret = SECRETS["github"]
    async with (
        ScriptedEngine() as engine,
        proxy_process(tmp_path / "data", engine.url) as proxy,
        aiohttp.ClientSession() as http,
    ):
        body = {"messages": [{"role": "user", "content": f"use {secret}"}], "user": "u"}
        engine.script(Turn("done"))
        async with http.post(f"{proxy.base_url}/chat/completions", json=body) as answer:
            assert answer.status == 200
        assert await proxy.stop() == 0
    assert {column for column, text in _cells(tmp_path / "data") if secret in text} == {"messages"}
    assert secret not in proxy.log.read_text()
    for file in (tmp_path / "data").rglob("*"):
        assert file.is_dir() or file.suffix in (".parquet", ".seg") or secret.encode() not in file.read_bytes(), file
    assert os.stat(tmp_path / "data" / "secret").st_mode & 0o077 == 0
