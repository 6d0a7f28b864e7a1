"""OpenCode, the native program out of its npm package; speaks chat completions over SSE.

The non-obvious facts, tried with this version: it puts an argument with a blank in it into quotes and breaks down over
one that is a number, so that only standard input brings a prompt unchanged; a session without a title asks the model
for one; every folder of configuration is turned into an npm project with a package from the registry, unless it looks
like one that has it; its record is a SQLite file, most of which is still in the write-ahead log at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
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
from forge.adapters.harnesses.sqlite import rows

PACKAGE: Final = Npm(
    name="opencode",
    version="1.18.33",
    requirement="opencode-ai@1.18.33",
    program="node_modules/opencode-ai/bin/opencode.exe",
    node=NODE,
)
FOLDER: Final = ".config/opencode"
PROMPT: Final = ".forge/prompt"
RECORD: Final = ".local/share/opencode/opencode.db"
MESSAGES: Final = "SELECT data FROM message ORDER BY time_created, id"
PLUGIN: Final = {"dependencies": {"@opencode-ai/plugin": PACKAGE.version}}
"""What it would install into ``FOLDER`` at every start: for plugins, of which there are none."""
INSTALLED: Final = {
    f"{FOLDER}/node_modules/.package-lock.json": {},
    f"{FOLDER}/package.json": PLUGIN,
    f"{FOLDER}/package-lock.json": {"packages": {"": PLUGIN}},
}


class OpenCode(HarnessAdapter):
    name: ClassVar[str] = "opencode"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = (NODE, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (RECORD, f"{RECORD}-wal")

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                "/bin/sh",
                "-c",
                'exec "$@" < "$0"',
                inside(request.home, PROMPT),
                inside(request.installs, PACKAGE.folder, PACKAGE.program),
                "run",
                "--auto",
                "--format=json",
                "--title=forge",
            ),
            env={
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_SHARE": "1",
            },
            files={
                f"{FOLDER}/opencode.json": _config(request),
                PROMPT: request.prompt,
                **{path: msgspec.json.encode(what).decode() for path, what in INSTALLED.items()},
            },
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        parts = (event.get("part") for event in json_lines(stdout) if event.get("type") == "text")
        return last(str(part.get("text", "")) for part in parts if isinstance(part, dict))

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        record = next(folder.rglob(PurePosixPath(RECORD).name), None)
        found = rows(record, MESSAGES) if record is not None else None
        if found is None:
            return None
        messages = (message for (data,) in found for message in json_lines(str(data)))
        return [_heard(message.get("tokens")) for message in messages if message.get("role") == "assistant"]


def _heard(usage: object) -> Heard:
    """It counts reasoning apart from the output, and what the engine's cache gave apart from the prompt."""
    prompt = tokens(usage, "input")
    cache = usage.get("cache") if isinstance(usage, dict) else None
    if prompt is not None:
        prompt += tokens(cache, "read", "write") or 0
    return Heard(prompt, tokens(usage, "output", "reasoning"))


def _config(request: LaunchRequest) -> str:
    model = {"name": request.model, "limit": {"context": request.context_tokens, "output": request.output_tokens}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # within the program: nothing is fetched
        "name": "forge",
        # Without a limit of its own for an answer to begin, which would have it generated twice: the runner's stands.
        "options": {"baseURL": request.base_url, "apiKey": request.api_key, "headerTimeout": False},
        "models": {request.model: model},
    }
    config: dict[str, Any] = {
        "model": f"forge/{request.model}",
        "small_model": f"forge/{request.model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny"},
        "provider": {"forge": provider},
    }
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()
