"""Server-sent events, cut anywhere, without I/O.

Owns one thing: where an event ends. It keeps every byte as it came (joined, the events' ``raw`` and ``rest`` are the
input), knows nothing of JSON or of any wire format, and never decodes text, so a character cut in two stays whole.
Lines end with LF, CRLF or CR; an event ends at an empty line. The one non-obvious fact: token ids ride in the events,
so a single line of a megabyte is normal, and searching must not start over with each chunk.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_EVENT_BYTES: Final = 64 << 20
"""One event. A 1M-token prompt's ids take about 7 MB."""

_BOM: Final = b"\xef\xbb\xbf"
_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_END: Final = 4


class EventTooLarge(Exception):
    """An event is larger than the cap; the stream cannot be read on."""


class Event(NamedTuple):
    raw: bytes
    """As it came, its empty line included."""
    data: bytes | None
    """Its data lines joined with LF; None for a comment or an empty event."""
    name: bytes = b""
    """Its ``event`` field."""
    start: int = -1
    """Where ``data`` lies in ``raw``, when it is one line; else -1."""

    def with_data(self, data: bytes) -> bytes:
        """The event's bytes with other data, everything else as it came."""
        if self.start >= 0 and self.data is not None:
            return self.raw[: self.start] + data + self.raw[self.start + len(self.data) :]
        name = b"event: " + self.name + b"\n" if self.name else b""
        return name + b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


class Splitter:
    """Bytes in any cut in, whole events out."""

    def __init__(self, *, cap: int = MAX_EVENT_BYTES) -> None:
        self._cap = cap
        self._buffer = bytearray()
        self._searched = 0
        self._at_start = True
        self._lf_only = True
        """No CR seen yet: the search is one memmem."""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes. Raises ``EventTooLarge``."""
        if self._lf_only and b"\r" in chunk:
            self._lf_only = False
        if not self._buffer and self._lf_only and _is_one(chunk) and len(chunk) <= self._cap:
            self._at_start = False
            return [Event(chunk, chunk[6:-2], b"", 6)]
        if self._buffer:
            self._buffer += chunk
            source: bytes | bytearray = self._buffer
        else:
            source = chunk
        events: list[Event] = []
        start = 0
        search = self._searched
        while (end := self._end(source, search)) > 0:
            self._check(end - start)
            events.append(self._event(bytes(source[start:end])))
            start = search = end
        self._check(len(source) - start)
        self._searched = max(0, len(source) - start - _LONGEST_END)
        if source is self._buffer:
            del self._buffer[:start]
        else:
            self._buffer += memoryview(chunk)[start:]
        return events

    @property
    def between(self) -> bool:
        """No event has begun."""
        return not self._buffer

    @property
    def rest(self) -> bytes:
        """What has come since the last whole event."""
        return bytes(self._buffer)

    def last(self) -> Event | None:
        """The event in ``rest``, ended as it should have been, for a stream that just stopped; takes it."""
        rest, self._buffer, self._searched = self.rest, bytearray(), 0
        return self._event(rest.rstrip(b"\r\n") + b"\n\n") if rest else None

    def _end(self, source: bytes | bytearray, search: int) -> int:
        """Where the first event after ``search`` ends; 0 if it has not ended."""
        if self._lf_only:
            at = source.find(b"\n\n", search)
            return at + 2 if at >= 0 else 0
        match = _END.search(source, search)
        return match.end() if match else 0

    def _check(self, size: int) -> None:
        if size > self._cap:
            raise EventTooLarge(f"an event of the engine's stream is larger than {self._cap >> 20} MiB")

    def _event(self, raw: bytes) -> Event:
        if self._at_start:
            self._at_start = False
            if raw.startswith(_BOM):
                event = parse(raw[len(_BOM) :])
                return event._replace(raw=raw, start=event.start + len(_BOM) if event.start >= 0 else -1)
        return parse(raw)


def parse(raw: bytes) -> Event:
    """One event's fields."""
    if _is_one(raw) and b"\r" not in raw:
        return Event(raw, raw[6:-2], b"", 6)
    lines: list[tuple[int, bytes]] = []
    name = b""
    at = 0
    for end, next_at in [*(m.span() for m in _LINE_END.finditer(raw)), (len(raw), len(raw))]:
        field, colon, value = raw[at:end].partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append((end - len(value) if colon else -1, value))
        elif field == b"event":
            name = value
        at = next_at
    if not lines:
        return Event(raw, None, name)
    if len(lines) == 1:
        start, data = lines[0]
        return Event(raw, data, name, start)
    return Event(raw, b"\n".join(data for _, data in lines), name)


def _is_one(raw: bytes) -> bool:
    """Nearly every event, and nearly every chunk: a single ``data`` line and an empty one."""
    return raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.find(b"\n") == len(raw) - 2
