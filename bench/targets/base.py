"""What the measurement asks of a target. Knows no program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bench import process
from bench.setting import Setting

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@dataclass(slots=True)
class Running:
    """A target that serves."""

    name: str
    port: int
    roots: list[int]
    """Its processes; what they start belongs to it. None: there is no target."""
    prefix: str = ""
    """Before ``/v1`` in its URLs."""
    version: str = ""
    calls: int = 0
    """Served so far."""

    def pids(self) -> list[int]:
        """All that works on the path of a call."""
        return process.tree(self.roots)

    def headers(self, clients: int) -> list[str]:
        """A header line for each client: who it is."""
        return ["authorization: Bearer sk-bench"]

    def settle(self) -> None:
        """Returns when nothing is left to do behind the path."""

    def check(self) -> None:
        """Raises if it did not do what it is for."""

    def aside(self) -> list[int]:
        """Processes of it that are not on the path of a call."""
        return []


Start = Callable[[Setting, int], AbstractContextManager[Running]]
"""Starts a target before the policy server on this port. Raises ``Missing``."""
