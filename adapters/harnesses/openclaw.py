"""OpenClaw, from npm on Node 24; speaks Responses over SSE.

The non-obvious facts, tried with this version: over chat completions it moves a state message to the end of every
call, over Responses it leaves it where it was; ``agent exec`` is the entry that needs no gateway and lays nothing into
the workspace, and it can spawn no sub-agents; its prompt holds an id of the session and the minute of its start, which
nothing turns off; its start takes most of its time; a longer event of its record is compressed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
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
    tokens,
    whole_json,
)
from forge.adapters.harnesses.node import FOLDER, NODE
from forge.adapters.harnesses.packages import Npm, Package
from forge.adapters.harnesses.sqlite import VALUE_MAX, rows

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKAGE: Final = Npm(
    name="openclaw",
    version="2026.9.6",
    requirement="openclaw@2026.9.6",
    program="node_modules/openclaw/openclaw.mjs",
    node=NODE,
)
STATE: Final = ".openclaw"
CONFIG: Final = f"{STATE}/openclaw.json"
RECORD: Final = f"{STATE}/agents/main/agent/openclaw-agent.sqlite"
EVENTS: Final = "SELECT event_json, event_zstd FROM transcript_events ORDER BY created_at, session_id, seq"
PROMPT: Final = ("input", "cacheRead", "cacheWrite")
"""Of its usage: what makes up the prompt."""
GRACE_S: Final = 60
OFF: Final = ("web_fetch", "web_search")
"""Tools that reach outside."""


class OpenClaw(HarnessAdapter):
    name: ClassVar[str] = "openclaw"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "responses"
    packages: ClassVar[tuple[Package, ...]] = (NODE, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (RECORD, f"{RECORD}-wal")

    def launch(self, request: LaunchRequest) -> Launch:
        config, state = inside(request.home, CONFIG), inside(request.home, STATE)
        return Launch(
            argv=(
                inside(request.installs, FOLDER, "node"),
                inside(request.installs, PACKAGE.folder, PACKAGE.program),
                "agent",
                "exec",
                "--json",
                f"--config={config}",
                f"--state-dir={state}",
                f"--cwd={request.workspace}",
                f"--timeout={_own_limit(request)}",
                "--",
                request.prompt,
            ),
            env={
                "DO_NOT_TRACK": "1",
                "OPENCLAW_CONFIG_PATH": config,
                "OPENCLAW_NO_AUTO_UPDATE": "1",
                "OPENCLAW_STATE_DIR": state,
                "OPENCLAW_TELEMETRY": "0",
            },
            files={CONFIG: _config(request)},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
            path=(inside(request.installs, FOLDER),),
        )

    def final_text(self, stdout: str) -> str:
        return str(whole_json(stdout).get("final") or "")

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        record = next(folder.rglob(PurePosixPath(RECORD).name), None)
        found = rows(record, EVENTS) if record is not None else None
        if found is None:
            return None
        messages = (event.get("message") for event in _events(found) if event.get("type") == "message")
        answers = [each for each in messages if isinstance(each, dict) and each.get("role") == "assistant"]
        usages = [answer.get("usage") for answer in answers]
        return [Heard(tokens(usage, *PROMPT), tokens(usage, "output")) for usage in usages]


def _events(found: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for text, packed in found:
        try:
            if text is None:
                text = zstd.ZstdDecompressor().decompress(packed, max_length=VALUE_MAX)
            event = msgspec.json.decode(text)
        except (TypeError, zstd.ZstdError, msgspec.DecodeError):
            continue
        if isinstance(event, dict):
            yield event


def _own_limit(request: LaunchRequest) -> int:
    """Later than the runner's, which then says how the session ended."""
    return math.ceil(request.seconds) + GRACE_S


def _config(request: LaunchRequest) -> str:
    model = {
        "id": request.model,
        "name": request.model,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": request.context_tokens,
        "maxTokens": request.output_tokens,
    }
    provider = {
        "baseUrl": request.base_url,
        "apiKey": request.api_key,
        "api": "openai-responses",
        "timeoutSeconds": _own_limit(request),  # else a server that is silent for two minutes is asked again
        "models": [model],
    }
    config: dict[str, Any] = {
        "agents": {"defaults": {"model": {"primary": f"forge/{request.model}"}, "workspace": request.workspace}},
        "models": {"mode": "replace", "providers": {"forge": provider}},
        "tools": {"deny": list(OFF)},
    }
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()
