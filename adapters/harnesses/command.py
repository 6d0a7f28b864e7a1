"""Any program as a harness: a command line with placeholders, for what has no adapter here.

It owns the template's rules. The non-obvious fact: the template is split into words before anything is put in, so
that a prompt with quotes, blanks or ``$(...)`` is one word of the program's command line, never an option or command.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from forge.adapters.harnesses.base import HarnessAdapter, Launch, LaunchRequest, Limits, origin
from forge.adapters.harnesses.packages import Package
from forge.storage.errors import BadInput

PLACEHOLDERS: Final = ("base_url", "api_key", "model", "prompt", "workspace", "home")
PLACEHOLDER: Final = re.compile(r"\{\{([a-z_]+)\}\}|\{([a-z_]+)\}")
"""``{word}`` is replaced, ``{{word}}`` stands for ``{word}``; other braces (JSON, ``${HOME}``) are the program's."""
EXAMPLE: Final = "--command 'myagent --url {base_url} --model {model} -p {prompt}'"


class Command(HarnessAdapter):
    """``template``: a command line as a shell would take it. No shell runs it; for one, write ``sh -c '...'``."""

    name: ClassVar[str] = "command"
    version: ClassVar[str] = "unknown"
    wire: ClassVar[str] = "any"
    packages: ClassVar[tuple[Package, ...]] = ()
    transcripts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, template: str) -> None:
        try:
            self._words = tuple(shlex.split(template))
        except ValueError as error:
            raise BadInput(f"the command {template!r} cannot be split into words: {error}", EXAMPLE) from error
        if not self._words:
            raise BadInput("the command is empty", EXAMPLE)
        named = (match[2] for word in self._words for match in PLACEHOLDER.finditer(word) if match[2])
        unknown = list(dict.fromkeys(name for name in named if name not in PLACEHOLDERS))
        if unknown:
            raise BadInput(
                f"the command has unknown placeholders: {_listed(unknown)}",
                f"there are {_listed(PLACEHOLDERS)}; write {{{{word}}}} for a plain {{word}}",
            )

    def launch(self, request: LaunchRequest) -> Launch:
        values = {name: str(getattr(request, name)) for name in PLACEHOLDERS}
        return Launch(
            argv=tuple(_filled(word, values) for word in self._words),
            env=_environment(request),
            files={},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        return stdout.strip()

    def installed(self, cache: Path) -> bool:
        """A program given by a path may lie in the workspace; one given by name is looked for on this PATH."""
        program = self._words[0]
        return "/" in program or bool(PLACEHOLDER.search(program)) or shutil.which(program) is not None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _filled(word: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], word)


def _environment(request: LaunchRequest) -> dict[str, str]:
    """What the SDKs of the three vendors read by themselves, so that many programs need no placeholder at all."""
    root = origin(request.base_url)
    return {
        "OPENAI_BASE_URL": request.base_url,
        "OPENAI_API_KEY": request.api_key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": request.api_key,
        "GOOGLE_GEMINI_BASE_URL": root,
        "GEMINI_API_KEY": request.api_key,
    }
