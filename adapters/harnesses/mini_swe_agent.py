"""mini-swe-agent (PyPI, on litellm); speaks chat completions, never streamed, with one tool, ``bash``.

The non-obvious facts: it ends only when the model calls bash with ``echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT``; a
text-only answer is left out of the history, and after three in a row it ends with exit code 0; a ``mini.yaml`` in the
workspace would replace its own, so that is named by its full path; what it prints is wrapped for a terminal, so the
start prints its last message once more, as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from forge.adapters.harnesses.base import (
    HarnessAdapter,
    Heard,
    Launch,
    LaunchRequest,
    Limits,
    inside,
    json_files,
    json_lines,
    last,
    tokens,
)
from forge.adapters.harnesses.packages import Package
from forge.adapters.harnesses.python import PYTHON, Environment

START: Final = """\
import json

from minisweagent.run.mini import app

agent = app(standalone_mode=False)
answers = [message.get("content") or "" for message in agent.messages if message.get("role") == "assistant"]
print(json.dumps({"last_message": answers[-1] if answers else ""}), flush=True)
"""
PACKAGE: Final = Environment(
    name="mini-swe-agent",
    version="2.4.6",
    requirement="mini-swe-agent==2.4.6",
    program="minisweagent/run/mini.py",
    start=START,
)
FOLDER: Final = ".config/mini-swe-agent"
TRAJECTORY: Final = f"{FOLDER}/last.traj.json"
ATTEMPTS: Final = "3"
"""Its own default is 10 with up to a minute between them; the proxy absorbs what can be absorbed."""


class MiniSweAgent(HarnessAdapter):
    name: ClassVar[str] = "mini-swe-agent"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = (PYTHON, PACKAGE)
    transcripts: ClassVar[tuple[str, ...]] = (TRAJECTORY,)

    def launch(self, request: LaunchRequest) -> Launch:
        folder = inside(request.installs, PACKAGE.folder)
        return Launch(
            argv=(
                inside(request.installs, PYTHON.folder, PYTHON.program),
                "-I",
                folder,
                f"--model=openai/{request.model}",
                "--model-class=litellm",
                f"--config={inside(folder, 'minisweagent/config/mini.yaml')}",
                "--yolo",
                "--exit-immediately",
                "--cost-limit=0",
                f"--output={inside(request.home, TRAJECTORY)}",
                f"--task={request.prompt}",
            ),
            env={
                "OPENAI_API_BASE": request.base_url,
                "OPENAI_API_KEY": request.api_key,
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_GLOBAL_CONFIG_DIR": inside(request.home, FOLDER),
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": ATTEMPTS,
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            files={},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        return last(str(line["last_message"]) for line in json_lines(stdout) if "last_message" in line)

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        record = next(iter(json_files(folder, PurePosixPath(TRAJECTORY).name)), None)
        messages = record.get("messages") if isinstance(record, dict) else None
        if not isinstance(messages, list):
            return None
        extras = [message.get("extra") for message in messages if isinstance(message, dict)]
        answers = [extra.get("response") for extra in extras if isinstance(extra, dict)]
        usages = [answer.get("usage") for answer in answers if isinstance(answer, dict)]
        return [Heard(tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")) for usage in usages]
