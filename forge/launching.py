"""A harness's launch as a job for a runner: where it lies, what it may read, what it is told of the policy.

Between an adapter, which knows the harness and no machine, and a runner, which knows the machine and no harness.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from forge.adapters.harnesses.base import HarnessAdapter, LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.client import Ticket
from forge.intercept.mitmproxy import Interception
from forge.proxy.intercept.hosts import default_base
from forge.run_config import RunConfig
from forge.runners.base import Folders, Job, Mount

MODEL: Final = "policy"
"""What harnesses call the model: in no harness's catalogue. The proxy puts the policy server's own name there."""
CONTEXT_TOKENS: Final = 32768
"""Assumed when no policy server says how much it takes."""
NO_KEY: Final = "sk-intercepted"
"""What a harness is given for its provider when it is led away from it: worth nothing wherever it goes."""
CA_FILE: Final = ".forge-ca.pem"
"""In a led harness's HOME."""
OUTPUT_TOKENS: Final = 4096
OUTPUT_SHARE: Final = 4
"""A harness that must name a limit asks for a quarter of the context at most."""


class Launching:
    """Makes the jobs of one run; ``context_tokens``: what every policy server takes, where they say it."""

    def __init__(self, config: RunConfig, context_tokens: int | None, interception: Interception | None) -> None:
        self._config = config
        self._interception = interception
        self._context_tokens = context_tokens or CONTEXT_TOKENS

    def job(self, adapter: HarnessAdapter, prompt: str, ticket: Ticket, folders: Folders, kept: Path) -> Job:
        """Writes the launch's files into HOME; what it prints goes to ``kept``."""
        config = self._config
        cache = cache_folder()
        places = config.runner.places(folders, cache)
        launch = adapter.launch(
            LaunchRequest(
                base_url=default_base(adapter.wire) if self._interception else ticket.base_url,
                api_key=NO_KEY if self._interception else ticket.api_key,
                model=MODEL,
                prompt=prompt,
                workspace=places.workspace,
                home=places.home,
                installs=places.installs,
                context_tokens=self._context_tokens,
                output_tokens=self._output_tokens(),
                seconds=config.seconds,
            )
        )
        files, led = dict(launch.files), {}
        if self._interception is not None:
            files[CA_FILE] = self._interception.ca
            led = self._interception.variables(ticket.api_key, f"{places.home}/{CA_FILE}")
        for name, text in files.items():
            path = folders.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        packages = (package.folder for package in adapter.packages)
        return Job(
            argv=launch.argv,
            env={**launch.env, **led},
            cwd=launch.cwd,
            seconds=launch.limits.seconds,
            folders=folders,
            stdout=kept / "stdout",
            stderr=kept / "stderr",
            path=launch.path,
            mounts=tuple(Mount(cache / folder, f"{places.installs}/{folder}") for folder in packages),
            resolv=config.resolv,
        )

    def config_hash(self, adapter: HarnessAdapter) -> str:
        """Of what the harness is told and given, less what differs by session or place: the same of every session of a
        run, and of another run that configures it alike."""
        launch = adapter.launch(
            LaunchRequest(
                base_url="http://session/v1",
                api_key=NO_KEY,
                model=MODEL,
                prompt="prompt",
                workspace="/workspace",
                home="/home",
                installs="/installs",
                context_tokens=self._context_tokens,
                output_tokens=self._output_tokens(),
                seconds=self._config.seconds,
            )
        )
        said = msgspec.json.encode([launch.argv, launch.env, launch.files, launch.path], order="sorted")
        return hashlib.blake2b(said, digest_size=16).hexdigest()

    def _output_tokens(self) -> int:
        """The run's own limit where it has one; the proxy puts it into every call anyway."""
        asked = self._config.sampling.get("max_tokens")
        return asked if isinstance(asked, int) else min(OUTPUT_TOKENS, self._context_tokens // OUTPUT_SHARE)
