"""Harness adapters by name: the one word that ``forge run --harness`` takes."""

from __future__ import annotations

from forge.adapters.harnesses.base import HarnessAdapter
from forge.adapters.harnesses.claude_code import ClaudeCode
from forge.adapters.harnesses.codex import Codex
from forge.adapters.harnesses.command import EXAMPLE, Command
from forge.adapters.harnesses.gemini_cli import GeminiCli
from forge.adapters.harnesses.hermes import Hermes
from forge.adapters.harnesses.mini_swe_agent import MiniSweAgent
from forge.adapters.harnesses.openclaw import OpenClaw
from forge.adapters.harnesses.opencode import OpenCode
from forge.adapters.harnesses.pi import Pi
from forge.adapters.harnesses.qwen_code import QwenCode
from forge.adapters.harnesses.zeroclaw import ZeroClaw
from forge.storage.errors import BadInput

HARNESSES: dict[str, HarnessAdapter] = {
    adapter.name: adapter
    for adapter in (
        ClaudeCode(),
        Codex(),
        GeminiCli(),
        Hermes(),
        MiniSweAgent(),
        OpenClaw(),
        OpenCode(),
        Pi(),
        QwenCode(),
        ZeroClaw(),
    )
}
"""Those with a pinned version; ``command`` is made by ``find``, from what the user writes."""


def find(name: str, command: str | None = None) -> HarnessAdapter:
    """The adapter called ``name``; raises ``BadInput`` with the names there are. ``command``: the template of the
    harness of that name, which no other one reads."""
    if name == Command.name:
        if command is None:
            raise BadInput("the harness 'command' needs the command line to run", EXAMPLE)
        return Command(command)
    if name not in HARNESSES:
        names = ", ".join(sorted([*HARNESSES, Command.name]))
        raise BadInput(f"unknown harness {name!r}", f"choose one of: {names}")
    return HARNESSES[name]
