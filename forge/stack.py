"""What a run needs to talk to: a proxy, and behind it a policy server; started here unless given.

The embedded policy server gets a key of its own that only the proxy knows, so that a harness on the same loopback
cannot reach the server's own routes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from forge.children import Child
from forge.policy.weights import current
from forge.proxy.config import Record, check_upstream
from forge.storage.errors import BadInput, Unavailable

POLICY_START_S: Final = 900.0
"""The first start fetches and converts the model."""
CONNECT_S: Final = 10.0
PROXY_START_S: Final = 180.0
PROXY_STOP_S: Final = 150.0
"""Running calls are drained, then the decoder catches up: both have their own limits within this."""
POLICY_STOP_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Control:
    """A proxy's control plane."""

    url: str
    token: str


class Weights(Protocol):
    """What a policy server starts with: a model directory, as a version of a lineage."""

    @property
    def path(self) -> Path: ...

    @property
    def version(self) -> int: ...

    @property
    def lineage(self) -> str: ...


class Wanted(Protocol):
    """What a run says of its proxy and policy server; ``RunConfig`` is one."""

    @property
    def data(self) -> Path: ...

    @property
    def run_id(self) -> str: ...

    @property
    def kept(self) -> Path:
        """Where logs go."""

    @property
    def record(self) -> Record: ...

    @property
    def policy(self) -> str | None:
        """URL of a running policy server; None starts the embedded one."""

    @property
    def control(self) -> str | None:
        """URL of a running proxy's control plane; None starts a proxy."""

    @property
    def control_token_file(self) -> Path | None: ...

    @property
    def model(self) -> str | None: ...


@asynccontextmanager
async def serving(config: Wanted, scratch: Path, say: Callable[[str], None]) -> AsyncIterator[Control]:
    """Everything up; on leaving, what was started is stopped, the proxy first."""
    if config.control is not None:
        assert config.control_token_file is not None
        yield Control(config.control, _token(config.control_token_file))
        return
    async with AsyncExitStack() as started:
        upstream, key_file = config.policy, None
        if upstream is not None:
            await reached(upstream)
        else:
            say("starting the embedded policy server")
            upstream, key_file = await embedded_policy(
                current(config.data), config.kept / "policy.log", scratch, started
            )
        say(f"starting the proxy for {upstream}")
        yield await _proxy(config, scratch, upstream, key_file, started)
        say("stopping: the decoder finishes the dataset")


async def reached(policy: str) -> None:
    """Raises ``Unavailable`` if nobody answers: the proxy itself would wait minutes for a server to come up."""
    parts = urlsplit(check_upstream(policy))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"the policy server {policy} cannot be reached: {error or 'no answer'}",
            "start it, correct the URL, or leave --policy away to use the embedded one",
        ) from error
    writer.close()


async def embedded_policy(
    weights: Weights | None, log: Path, scratch: Path, started: AsyncExitStack, *, host: str = "127.0.0.1"
) -> tuple[str, Path]:
    """Starts it on ``weights``, or the default model; gives its URL and its key's file. ``started`` stops it."""
    key_file, ready = scratch / "policy.key", scratch / "policy.json"
    key_file.touch(mode=0o600)
    key_file.write_text(secrets.token_urlsafe(24))
    args = ["policy", "serve", "--host", host, "--port", "0", "--key-file", str(key_file), "--ready-file", str(ready)]
    if weights is not None:
        args += ["--model", str(weights.path), "--version", str(weights.version), "--lineage", weights.lineage]
    child = Child("policy server", args, log)
    started.push_async_callback(child.stop, POLICY_STOP_S)
    said = await child.ready(ready, POLICY_START_S)
    return str(said["base_url"]), key_file


async def _proxy(
    config: Wanted, scratch: Path, upstream: str, key_file: Path | None, started: AsyncExitStack
) -> Control:
    ready = scratch / "proxy.json"
    args = ["proxy", "--upstream", upstream, "--data", str(config.data), "--run", config.run_id, "--no-implicit"]
    args += ["--port", "0", "--control-port", "0", "--record", config.record, "--ready-file", str(ready)]
    args += ["--end-sessions"]
    if key_file is not None:
        args += ["--upstream-key-file", str(key_file)]
    if config.model is not None:
        args += ["--model", config.model]
    child = Child("proxy", args, config.kept / "proxy.log")
    started.push_async_callback(child.stop, PROXY_STOP_S)
    said = await child.ready(ready, PROXY_START_S)
    return Control(str(said["control_url"]), _token(Path(said["control_token_file"])))


def _token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise BadInput(
            f"cannot read the control token: {error}", "it is the file control.token in the data directory of the proxy"
        ) from error
