"""The one error that commands turn into a message and an exit code.

Every boundary raises a subclass that says what was wrong, where, and what to do next.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every ``forge`` command."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    """A bad option, file, line or name."""
    UNTRAINABLE = 3
    """It ran, but the data cannot train: calls without ids, or no group with spread."""
    UNAVAILABLE = 4
    """Something needed is not there: a server, a port, a program, a lock, disk space."""
    INTERRUPTED = 130


class ForgeError(Exception):
    """``message`` says what and where; ``hint`` names the next step."""

    exit_code: Exit = Exit.FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadInput(ForgeError):
    exit_code = Exit.BAD_INPUT


class Untrainable(ForgeError):
    exit_code = Exit.UNTRAINABLE


class Unavailable(ForgeError):
    exit_code = Exit.UNAVAILABLE
