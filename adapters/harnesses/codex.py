"""Codex (OpenAI), the Rust binary out of the wheel ``openai-codex-cli-bin``; speaks Responses over SSE.

The non-obvious facts, tried with this version: the model's name must be outside Codex's own catalogue, or tools and
wire change; features left on look up outside hosts at every start; compaction is driven by the usage that the server
reports, against ``model_auto_compact_token_limit``; the two kinds of retries multiply, and the proxy retries itself;
a sub-agent's thread has a record of its own, beside its parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

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
    toml_string,
)
from forge.adapters.harnesses.packages import Package, PyPI

PACKAGE = PyPI(
    name="codex",
    version="0.163.0",
    requirement="openai-codex-cli-bin==0.163.0",
    program="codex_cli_bin/bin/codex",
)
COMPACT_AT = 0.85
"""Share of the context at which Codex sums up its history: leaves room for the summary itself."""
KEY_VARIABLE = "FORGE_SESSION_KEY"
USAGE = "token_usage_record"
"""A line of the record: one for each answer. The ``token_count`` events tell of some twice."""
OFF = (
    "apps",  # the first two look up outside hosts at every start
    "plugins",
    "daemon_auto_start",
    "shell_snapshot",
    "unbounded_connection_retries",  # it would wait for ever on a proxy that is gone
    "multi_agent",
    "goals",
    "view_image",  # the policy takes text
)
"""Features that reach outside, outlive the launch, or add tools that the policy cannot use."""


class Codex(HarnessAdapter):
    name: ClassVar[str] = "codex"
    version: ClassVar[str] = PACKAGE.version
    wire: ClassVar[str] = "responses"
    packages: ClassVar[tuple[Package, ...]] = (PACKAGE,)
    transcripts: ClassVar[tuple[str, ...]] = (".codex/sessions/*.jsonl",)

    def launch(self, request: LaunchRequest) -> Launch:
        root = inside(request.installs, PACKAGE.folder, "codex_cli_bin")
        return Launch(
            argv=(
                inside(root, "bin/codex"),
                "exec",
                "--json",
                "--strict-config",
                "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox",
                "--",
                request.prompt,
            ),
            env={"CODEX_HOME": inside(request.home, ".codex"), KEY_VARIABLE: request.api_key},
            files={".codex/config.toml": _config(request)},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
            path=(inside(root, "codex-path"),),
        )

    def final_text(self, stdout: str) -> str:
        items = (event.get("item") for event in json_lines(stdout) if event.get("type") == "item.completed")
        return last(
            str(item.get("text", ""))
            for item in items
            if isinstance(item, dict) and item.get("type") == "agent_message"
        )

    def failure(self, stdout: str) -> str:
        errors = (event.get("error") for event in json_lines(stdout) if event.get("type") == "turn.failed")
        return last(str(error.get("message", "")) for error in errors if isinstance(error, dict))

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        lines = line_files(folder, "rollout-*.jsonl")
        if lines is None:
            return None
        records = (line.get("payload") for line in lines if line.get("type") == USAGE)
        usages = [record.get("usage") for record in records if isinstance(record, dict)]
        return [Heard(tokens(usage, "input_tokens"), tokens(usage, "output_tokens")) for usage in usages]


def _config(request: LaunchRequest) -> str:
    return f"""\
model = {toml_string(request.model)}
model_provider = "forge"
model_context_window = {request.context_tokens}
model_auto_compact_token_limit = {int(request.context_tokens * COMPACT_AT)}
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.forge]
name = "forge"
base_url = {toml_string(request.base_url)}
env_key = "{KEY_VARIABLE}"
wire_api = "responses"
request_max_retries = 2
stream_max_retries = 2
stream_idle_timeout_ms = 300000
supports_websockets = false

[analytics]
enabled = false

[skills]
include_instructions = false
bundled = {{ enabled = false }}

[features]
""" + "".join(f"{feature} = false\n" for feature in OFF)
