"""What ``forge doctor`` looks at: what is installed, which policy server answers, what it can give, one real call.

A finding is a fact with a verdict and, where something is missing, the next command. Nothing is changed: the proxy it
starts for the call keeps its data in a folder that is removed again.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from forge.adapters.harnesses import HARNESSES
from forge.adapters.harnesses.packages import cache_folder
from forge.client import ControlClient
from forge.proxy.app import Running, serve
from forge.proxy.config import Limits, ProxyConfig, Record
from forge.proxy.engines.base import Abilities
from forge.proxy.upstreams.pool import Replica
from forge.runners import find as find_runner
from forge.scratch import scratch as temporary
from forge.stack import embedded_policy, reached
from forge.storage.errors import ForgeError

START_S: Final = 15.0
"""For a policy server that was named: one that is still loading shows as not up."""
CALL_S: Final = 120.0
QUESTION: Final = "Say hello."
PACKAGES: Final = {
    "torch": "make setup",
    "transformers": "pip install 'rollout-forge[train]'",
    "ray": "pip install 'rollout-forge[train]'",
}


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    good: bool
    detail: str
    hint: str = ""
    """The next command, where it is not good."""


def installed() -> Iterator[Finding]:
    """Programs and packages on this machine."""
    yield Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], "use Python 3.11 or newer")
    for name, hint in PACKAGES.items():
        try:
            yield Finding(name, True, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, False, "not installed", hint)
    try:
        find_runner("local").check()
        yield Finding("confinement", True, "bubblewrap works")
    except ForgeError as error:
        yield Finding("confinement", False, error.message, error.hint)
    for adapter in HARNESSES.values():
        there = adapter.installed(cache_folder())
        detail = f"{adapter.version}, speaks {adapter.wire}"
        yield Finding(
            f"harness {adapter.name}",
            there,
            detail if there else f"{detail}: not installed yet",
            f"forge harness install {adapter.name} (forge run does it too)",
        )


async def policy(url: str | None, key_file: Path | None, say: Callable[[str], None]) -> list[Finding]:
    """The policy server and one call through a proxy of our own. Raises ``ForgeError`` if it cannot be reached."""
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(temporary("doctor"))
        if url is None:
            say("starting the embedded policy server")
            url, key_file = await embedded_policy(None, scratch / "policy.log", scratch, stack)
        await reached(url)
        config = ProxyConfig(
            data=scratch / "data",
            run_id="doctor",
            upstreams=(url,),
            port=0,
            control_port=0,
            upstream_key_file=key_file,
            record=Record.BEST_EFFORT,
            decoder=False,
            limits=Limits(start_s=START_S),
        )
        running = await stack.enter_async_context(serve(config))
        replica = running.deps.pool.all()[0]
        return [*_abilities(replica), await _one_call(running)]


def _abilities(replica: Replica) -> Iterator[Finding]:
    can: Abilities = replica.abilities
    where = f"{replica.engine.name} at {replica.url}"
    yield Finding("policy server", True, f"{where}, model {can.model}, context {can.max_model_len}")
    yield Finding(
        "token ids",
        can.ids and can.stream_ids,
        f"whole: {_yes(can.ids)}, streamed: {_yes(can.stream_ids)}",
        "serve it with vLLM 0.11 or newer, or the embedded server",
    )
    processed = can.logprobs_mode == "processed"
    yield Finding(
        "log probs",
        can.log_probs and processed,
        can.logprobs_mode or _yes(can.log_probs),
        "start vLLM with --logprobs-mode processed_logprobs",
    )
    yield Finding(
        "tools in the prompt",
        can.tools_rendered is not False,
        _yes(can.tools_rendered),
        "give vLLM a --chat-template that renders tools",
    )
    yield Finding(
        "turns append-only",
        can.append_only is not False,
        _yes(can.append_only) + (f", first difference: {can.first_divergence}" if can.first_divergence else ""),
        "turns will be separate training rows; a template that keeps history as it was avoids it",
    )
    yield Finding(
        "weights can be loaded", can.weight_update, _yes(can.weight_update), "start vLLM with VLLM_SERVER_DEV_MODE=1"
    )


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "could not be told"}[value]


async def _one_call(running: Running) -> Finding:
    """A call as a harness makes it, and what was recorded of it."""
    async with ControlClient(running.control_url, running.control_token) as control:
        ticket = await control.open_session(purpose="eval", sampling={"temperature": 1.0, "max_tokens": 16})
        begun = time.monotonic()
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_S)) as http,
            http.post(
                f"{ticket.base_url}/chat/completions",
                json={"model": "policy", "messages": [{"role": "user", "content": QUESTION}]},
                headers={"Authorization": f"Bearer {ticket.api_key}"},
            ) as answer,
        ):
            status, text = answer.status, await answer.text()
        seconds = time.monotonic() - begun
        calls = await control.calls(ticket.session_id)
    if status != 200 or not calls:
        return Finding("one real call", False, f"HTTP {status}: {text[:200]}", "look at the policy server's log")
    call = calls[0]
    tokens = f"{len(call.prompt_ids)} prompt and {len(call.output_ids)} output tokens recorded in {seconds:.1f} s"
    return Finding(
        "one real call",
        call.trainable,
        tokens if call.trainable else f"{tokens}, not trainable: {call.untrainable_reason}",
        "see the findings above",
    )
