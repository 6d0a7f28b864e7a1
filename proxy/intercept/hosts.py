"""Which hosts are the policy's: those that programs call by themselves, and what ``--map`` adds. Pure.

Only hosts and path prefixes are known here; what a path below means is the data plane's matter. The non-obvious fact:
a host has several entries where it serves the same wire under several prefixes, and the longest one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from forge.storage.errors import BadInput


class Others(StrEnum):
    """What becomes of requests to hosts that are not the policy's."""

    PASS = "pass"
    """They go through untouched: TLS to them is not opened."""
    BLOCK = "block"


class Mapped(NamedTuple):
    """Requests to ``host`` below ``prefix`` are the policy's; the prefix is cut off."""

    host: str
    prefix: str = ""


class Rules(NamedTuple):
    """Where requests go."""

    hosts: tuple[Mapped, ...]
    others: Others


PROVIDERS: Final = (
    Mapped("api.openai.com"),
    Mapped("chatgpt.com", "/backend-api/codex"),
    Mapped("api.anthropic.com"),
    Mapped("generativelanguage.googleapis.com"),
    Mapped("generativelanguage.googleapis.com", "/v1beta/openai"),
    Mapped("openrouter.ai", "/api"),
)
DEFAULT_BASE: Final = {
    "messages": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1",
}
"""Where a program that speaks a dialect calls when nothing is set; OpenAI for every dialect that is not here."""
OPENAI_BASE: Final = "https://api.openai.com/v1"
HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
PREFIX: Final = re.compile(r"(/[\w.~%@:-]+)*")


def default_base(dialect: str) -> str:
    """The base URL, with ``/v1``, that a program of this dialect has by itself."""
    return DEFAULT_BASE.get(dialect, OPENAI_BASE)


def rules(others: Others, more: Iterable[str] = ()) -> Rules:
    """The providers, and ``HOST`` or ``HOST=PREFIX`` for each of ``more``, are the policy's."""
    return Rules((*PROVIDERS, *(mapped(text) for text in more)), others)


def mapped(text: str) -> Mapped:
    host, _, prefix = text.strip().partition("=")
    host, prefix = host.lower(), prefix.rstrip("/")
    if not HOST.fullmatch(host) or not PREFIX.fullmatch(prefix):
        raise BadInput(
            f"--map {text!r} is no HOST or HOST=PREFIX",
            "name a host without scheme and port, e.g. --map llm.example.com or --map llm.example.com=/openai",
        )
    return Mapped(host, prefix)
