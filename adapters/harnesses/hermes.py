"""Hermes (Nous Research, PyPI); speaks chat completions over SSE.

The non-obvious facts: it refuses to start below 64,000 tokens of context, so a smaller policy is announced as that and
ends a long history by its overflow error instead; unasked it wants 65,536 output tokens; it exits 0 after failed calls
too, as long as there is some last text; and what it counts, it counts per session, not per call.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from forge.adapters.harnesses.base import HarnessAdapter, Heard, Launch, LaunchRequest, Limits, inside
from forge.adapters.harnesses.packages import Package
from forge.adapters.harnesses.python import PYTHON, Environment

PACKAGE: Final = Environment(
    name="hermes",
    version="0.19.0",
    requirement="hermes-agent==0.19.0",
    program="hermes_cli/main.py",
    start="from hermes_cli.main import main\n\nmain()\n",
)
FOLDER: Final = ".hermes"
CONTEXT_MIN: Final = 64_000
"""Its own ``MINIMUM_CONTEXT_LENGTH``."""
USAGE: Final = "SELECT coalesce(sum(api_call_count), 0), sum(input_tokens), sum(output_tokens) FROM session_model_usage"


class Hermes(HarnessAdapter):
    name: ClassVar[str] = "hermes"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = (PYTHON, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (
        f"{FOLDER}/state.db",
        f"{FOLDER}/state.db-wal",
        f"{FOLDER}/usage.json",
    )

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=(
                inside(request.installs, PYTHON.folder, PYTHON.program),
                "-I",
                inside(request.installs, PACKAGE.folder),
                "--yolo",
                "--accept-hooks",
                f"--usage-file={inside(request.home, FOLDER, 'usage.json')}",
                f"--oneshot={request.prompt}",
            ),
            env={"HERMES_HOME": inside(request.home, FOLDER)},
            # YAML takes JSON.
            files={f"{FOLDER}/config.yaml": msgspec.json.format(msgspec.json.encode(_config(request))).decode()},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        return stdout.strip()

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        """As many calls as it counted; their tokens only where there was one."""
        path, log = folder / FOLDER / "state.db", folder / FOLDER / "state.db-wal"
        if not path.exists():
            return None
        # Its database keeps a log, which is empty once Hermes has ended well; unless told, SQLite would make one here.
        how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as record:
                calls, prompt, output = record.execute(USAGE).fetchone()
        except sqlite3.Error:  # a model can write there too
            return None
        one = Heard(prompt, output) if calls == 1 else Heard(None, None)
        return [one] * calls


def _config(request: LaunchRequest) -> dict[str, Any]:
    return {
        "model": {
            "default": request.model,
            "provider": "custom",
            "base_url": request.base_url,
            "api_key": request.api_key,
            "context_length": max(request.context_tokens, CONTEXT_MIN),
            "max_tokens": request.output_tokens,
        },
        "agent": {"environment_probe": False},
        "memory": {"nudge_interval": 0},
        "skills": {"creation_nudge_interval": 0},
        "curator": {"enabled": False},
        "model_catalog": {"enabled": False},
        "security": {"tirith_enabled": False, "allow_lazy_installs": False},
    }
