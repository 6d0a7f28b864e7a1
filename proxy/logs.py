"""How the log looks: a line for people, or a JSON object per line for machines. Secrets are taken out of both.

Owns the two formats and nothing of what is said. The one non-obvious fact: no call site names its fields twice. A
message's template says them already (``session not closed: session_id=%s``), so the fields of the JSON are the
``name=%s`` pairs of the template, with its arguments. What harnesses and models say is never logged.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from forge.proxy.redaction import harmless, redact

PLACES: Final = re.compile(r"(?:(\w+)=)?%(?:[-+ #0]*\d*(?:\.\d+)?)([a-zA-Z%])")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return harmless(redact(super().format(record)))


class JsonLines(logging.Formatter):
    """Members: ``time``, ``level``, ``logger``, ``message``, those of the message, ``exception`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_members(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redact(msgspec.json.encode(line, enc_hook=str).decode())


def configure(form: LogFormat) -> None:
    """Of this process, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("aiohttp.server").addFilter(_brief)


def _members(record: logging.LogRecord) -> dict[str, Any]:
    if not isinstance(record.args, tuple):
        return {}
    places = [found for found in PLACES.finditer(str(record.msg)) if found[2] != "%"]
    return {found[1]: value for found, value in zip(places, record.args, strict=False) if found[1]}


def _brief(record: logging.LogRecord) -> bool:
    """Bytes that are no HTTP are the sender's fault: one line, for anyone could fill a disk with tracebacks."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = "not HTTP, answered with 400: %s", (" ".join(error.message.split())[:200],)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = None
    return True
