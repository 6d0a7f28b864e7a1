"""How a Gemini stream is cut into events: server-sent events, or one JSON array that grows.

Pure. The non-obvious facts, tried with Google's SDKs: their readers take blank lines between events but break at a
comment (Python parses it as JSON, JavaScript never gets past it), take an error only as bare JSON outside of any
event, and JavaScript's does not see the end of a line that holds U+2028. An array's first element goes out when the
answer starts; an error that comes before it begins the array.
"""

from __future__ import annotations

from typing import Final, Protocol

BLANK: Final = b"\n\n"
"""White space, to both kinds of stream: it keeps a connection alive and says nothing."""
_SEPARATORS: Final = tuple((mark.encode(), f"\\u{ord(mark):04x}".encode()) for mark in "\x85\u2028\u2029")
"""What ends a line to one of the readers, though not to the format. Inside JSON they can only stand in strings."""


class Framing(Protocol):
    content_type: str
    opens: bool
    """An event goes out as soon as the answer starts."""

    def event(self, body: bytes, *, last: bool) -> bytes: ...

    def error(self, body: bytes, *, begun: bool) -> bytes:
        """The end of a stream that has failed; ``begun``: an event of it went out."""


class Events:
    content_type: str = "text/event-stream; charset=utf-8"
    opens: bool = False

    def event(self, body: bytes, *, last: bool) -> bytes:
        for separator, escaped in _SEPARATORS:
            body = body.replace(separator, escaped)
        return b"data: " + body + b"\n\n"

    def error(self, body: bytes, *, begun: bool) -> bytes:
        return body + b"\n\n"


class Array:
    """Of one answer."""

    content_type: str = "application/json"
    opens: bool = True

    def __init__(self) -> None:
        self._started = False

    def event(self, body: bytes, *, last: bool) -> bytes:
        before = b",\r\n" if self._started else b"["
        self._started = True
        return before + body + (b"]" if last else b"")

    def error(self, body: bytes, *, begun: bool) -> bytes:
        return (b",\r\n" if begun else b"[") + body + b"]"
