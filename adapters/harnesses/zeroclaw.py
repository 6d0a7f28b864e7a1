"""ZeroClaw (Rust); speaks chat completions, not streamed. Written from its sources: no package registry has it.

A ``zeroclaw`` of this version on PATH is copied into the cache, where every runner sees it. The non-obvious facts: it
wants an agent's alias; an agent works in a folder of its own unless told; it stamps the time to the second before the
user's text, so that the prompts of a group part there; it reads how long to wait out of an error's text, not from the
header, and takes any number from 400 to 499 there for a permanent error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from forge.adapters.harnesses.base import HarnessAdapter, Launch, LaunchRequest, Limits, inside, toml_string
from forge.adapters.harnesses.packages import Package
from forge.storage.errors import Unavailable

PROGRAM: Final = "zeroclaw"
VERSION: Final = "0.8.4"
SOURCE: Final = "https://github.com/zeroclaw-labs/zeroclaw"
BUILD: Final = (
    f"take its release v{VERSION}, or build it with Rust 1.96 or newer and put it on PATH: "
    f"git clone --branch v{VERSION} {SOURCE} && cargo install --locked --path zeroclaw"
)
VERSION_LIMIT_S: Final = 30
FOLDER: Final = ".zeroclaw"
ITERATIONS: Final = 1000
"""Tool turns; its default of 10 is for chats. The time limit is what ends an agent here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPath(Package):
    """A copy of a program that the user has built."""

    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        found = shutil.which(self.program)
        if found is None:
            raise Unavailable(f"{self.requirement} is in no package registry, and there is none on PATH", BUILD)
        try:
            done = subprocess.run(
                [found, "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{found} does not say its version: {error}", BUILD) from error
        version = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
        if version is None or version[0] != self.version:
            said = version[0] if version else done.stdout.strip()
            raise Unavailable(f"{found} is {said or 'without a version'}, not {self.version}", BUILD)
        shutil.copy2(Path(found).resolve(), into / self.program)


PACKAGE: Final = OnPath(name=PROGRAM, version=VERSION, requirement=f"zeroclaw {VERSION}", program=PROGRAM)


class ZeroClaw(HarnessAdapter):
    name: ClassVar[str] = "zeroclaw"
    version: ClassVar[str] = VERSION
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = (PACKAGE,)
    transcripts: ClassVar[tuple[str, ...]] = (f"{FOLDER}/*.jsonl", f"{FOLDER}/*.db")

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                inside(request.installs, PACKAGE.folder, PROGRAM),
                "agent",
                "-a",
                "main",
                f"--message={request.prompt}",
            ),
            env={"ZEROCLAW_CONFIG_DIR": inside(request.home, FOLDER)},
            files={f"{FOLDER}/config.toml": _config(request)},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        return stdout.strip()


def _config(request: LaunchRequest) -> str:
    return f"""\
schema_version = 3

[providers.models.custom.forge]
uri = {toml_string(request.base_url)}
api_key = {toml_string(request.api_key)}
model = {toml_string(request.model)}
native_tools = true
max_tokens = {request.output_tokens}
timeout_secs = {int(request.seconds)}

[agents.main]
enabled = true
model_provider = "custom.forge"
risk_profile = "forge"
runtime_profile = "forge"

[agents.main.workspace]
path = {toml_string(request.workspace)}
unrestricted_filesystem = true

[agents.main.memory]
backend = "none"

[risk_profiles.forge]
level = "full"
workspace_only = false
require_approval_for_medium_risk = false
block_high_risk_commands = false
allowed_commands = ["*"]
auto_approve = ["*"]
sandbox_enabled = false

[runtime_profiles.forge]
agentic = true
max_tool_iterations = {ITERATIONS}
max_actions_per_hour = 4294967295
max_context_tokens = {request.context_tokens}
shell_timeout_secs = {int(request.seconds)}
"""
