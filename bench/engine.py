"""What the policy server itself pays for giving ids and log probabilities: the embedded one, asked and not asked.

No bar: it is the price of exactness before any proxy is there.
"""

from __future__ import annotations

import http.client
import json
import sys
from typing import Any

from bench import process
from bench.figures import Figures, of_rounds
from bench.setting import Missing, Setting, started

TOKENS = 48
CALLS = 3
ASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ids": {"return_token_ids": True},
    "ids and log probs": {"return_token_ids": True, "logprobs": True},
}


def run(set_: Setting, figures: Figures) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise Missing("torch is not installed", "make setup") from None
    ready = set_.work / "policy.ready"
    command = [sys.executable, "-m", "forge", "policy", "serve", "--port", "0", "--ready-file", str(ready)]
    with started(command, set_.work / "policy.log") as running:
        process.until(lambda: ready.exists() or running.poll() is not None, "the policy server is ready", 300)
        said = json.loads(ready.read_bytes())
        connection = http.client.HTTPConnection(said["base_url"].split("/")[2], timeout=300)
        calls, tokens = (1, 4) if set_.quick else (CALLS, TOKENS)
        costs: dict[str, list[float]] = {name: [] for name in ASKS}
        _calls(connection, said["model"], ASKS["plain"], 1, tokens)
        for number in range(set_.rounds):
            set_.say(f"engine: round {number + 1} of {set_.rounds}")
            for name in list(ASKS)[:: 1 if number % 2 else -1]:
                before = process.cpu_ns(process.tree([running.pid]))
                size = _calls(connection, said["model"], ASKS[name], calls, tokens)
                took = process.cpu_ns(process.tree([running.pid])) - before
                costs[name].append(took / 1000 / (calls * tokens))
                figures.add(f"answer, {name}: bytes per token", of_rounds([size / calls / tokens]))
        connection.close()
    for name, values in costs.items():
        figures.add(f"{name}: CPU µs per token", of_rounds(values))
        if name != "plain":
            figures.add(f"{name} / plain", of_rounds(values, costs["plain"]))


def _calls(connection: http.client.HTTPConnection, model: str, asks: dict[str, Any], calls: int, tokens: int) -> int:
    """Bytes of all answers."""
    messages = [{"role": "user", "content": "Count from one to one hundred in words."}]
    body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **asks}
    size = 0
    for _ in range(calls):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        said = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {said[:200]!r}")
        size += len(said)
    return size
