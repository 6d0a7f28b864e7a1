"""Gemini CLI (Google), from npm on Node 24; speaks Gemini's ``streamGenerateContent`` over SSE.

The non-obvious facts, tried with this version: it takes a prompt without a terminal only by ``--prompt``; it knows no
setting for the context of a model outside its catalogue, takes it to be a million tokens and so never compacts by
itself; its record holds an answer twice when a tool ran, under one id.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from forge.adapters.harnesses.base import (
    HarnessAdapter,
    Heard,
    Launch,
    LaunchRequest,
    Limits,
    inside,
    line_files,
    no_command,
    origin,
    tokens,
    whole_json,
)
from forge.adapters.harnesses.node import FOLDER, NODE
from forge.adapters.harnesses.packages import Npm, Package

PACKAGE: Final = Npm(
    name="gemini-cli",
    version="0.61.0",
    requirement="@google/gemini-cli@0.61.0",
    program="node_modules/@google/gemini-cli/bundle/gemini.js",
    node=NODE,
)
SETTINGS: Final[dict[str, Any]] = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "telemetry": {"enabled": False},
    "tools": {"exclude": ["google_web_search", "web_fetch"]},  # both ask Google's own servers
}


class GeminiCli(HarnessAdapter):
    name: ClassVar[str] = "gemini-cli"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "gemini"
    packages: ClassVar[tuple[Package, ...]] = (NODE, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (".gemini/tmp/*/chats/*.jsonl",)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                inside(request.installs, FOLDER, "node"),
                inside(request.installs, PACKAGE.folder, PACKAGE.program),
                "--yolo",
                "--skip-trust",
                f"--model={request.model}",
                "--output-format=json",
                f"--prompt={no_command(request.prompt)}",
            ),
            env={
                "GEMINI_API_KEY": request.api_key,
                "GEMINI_CLI_HOME": request.home,
                "GEMINI_TELEMETRY_ENABLED": "false",
                "GOOGLE_GEMINI_BASE_URL": origin(request.base_url),
            },
            files={".gemini/settings.json": msgspec.json.encode(SETTINGS).decode()},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
            path=(inside(request.installs, FOLDER),),
        )

    def final_text(self, stdout: str) -> str:
        return str(whole_json(stdout).get("response") or "")

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        lines = line_files(folder, "*.jsonl")
        if lines is None:
            return None
        answers = (line for line in lines if line.get("type") == "gemini")
        usages = {str(answer.get("id")): answer.get("tokens") for answer in answers}
        return [Heard(tokens(usage, "input"), tokens(usage, "output", "thoughts")) for usage in usages.values()]
