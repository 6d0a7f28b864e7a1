"""Claude Code (Anthropic), the native program out of its npm package; speaks Anthropic messages over SSE.

The non-obvious facts, tried with this version: a model outside its catalogue is taken to have a million tokens of
context unless ``CLAUDE_CODE_MAX_CONTEXT_TOKENS`` says otherwise, and it compacts by that; without the switches below
the first system block and the ``cache_control`` marks differ in every call; every block of an answer is a line of its
own in the record, with the usage of the whole answer.
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
    json_lines,
    last,
    line_files,
    no_command,
    origin,
    tokens,
)
from forge.adapters.harnesses.node import NODE
from forge.adapters.harnesses.packages import Npm, Package

PACKAGE: Final = Npm(
    name="claude-code",
    version="2.1.332",
    requirement="@anthropic-ai/claude-code@2.1.332",
    program="node_modules/@anthropic-ai/claude-code/bin/claude.exe",
    node=NODE,
)
FOLDER: Final = ".claude"
MODELS: Final = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
"""So that no other model's name appears, whatever asks."""
OFF: Final = (
    "CronCreate",
    "CronDelete",
    "CronList",
    "EnterWorktree",  # the grader looks at the workspace, not at a copy of it
    "ExitWorktree",
    "Monitor",
    "ScheduleWakeup",
    "WebFetch",
    "WebSearch",
    "Workflow",
)
"""Tools that outlive the launch, reach outside or leave the workspace: half of the first prompt."""
ATTEMPTS: Final = "2"
"""Beside the first; its own default takes minutes. The proxy absorbs what can be absorbed."""
PROMPT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
SETTINGS: Final[dict[str, Any]] = {"permissions": {"deny": list(OFF)}}


class ClaudeCode(HarnessAdapter):
    name: ClassVar[str] = "claude-code"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "messages"
    packages: ClassVar[tuple[Package, ...]] = (NODE, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (f"{FOLDER}/projects/*.jsonl",)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                inside(request.installs, PACKAGE.folder, PACKAGE.program),
                "--print",
                "--output-format=json",
                "--dangerously-skip-permissions",
                "--",
                no_command(request.prompt),
            ),
            env={
                "ANTHROPIC_BASE_URL": origin(request.base_url),
                "ANTHROPIC_API_KEY": request.api_key,
                **dict.fromkeys(MODELS, request.model),
                "CLAUDE_CONFIG_DIR": inside(request.home, FOLDER),
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
                "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(request.context_tokens),
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(request.output_tokens),
                "CLAUDE_CODE_MAX_RETRIES": ATTEMPTS,
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_ERROR_REPORTING": "1",
                "DISABLE_PROMPT_CACHING": "1",
                "DISABLE_TELEMETRY": "1",
                "IS_SANDBOX": "1",  # or it does not skip permissions for root, whom an unconfined run may serve
            },
            files={f"{FOLDER}/settings.json": msgspec.json.encode(SETTINGS).decode()},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        return last(str(event.get("result") or "") for event in json_lines(stdout) if event.get("type") == "result")

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        lines = line_files(folder, "*.jsonl")
        if lines is None:
            return None
        usages: dict[str, Any] = {}
        for event in lines:
            message = event.get("message")
            if event.get("type") == "assistant" and isinstance(message, dict):
                usages[str(message.get("id"))] = message.get("usage")
        return [Heard(tokens(usage, *PROMPT), tokens(usage, "output_tokens")) for usage in usages.values()]
