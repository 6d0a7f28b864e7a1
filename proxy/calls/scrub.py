"""An error that an engine says within an answer it had begun, without the secrets that it may quote.

Owns where such an error lies in the bytes: an event, or a whole body, that begins with it. All else passes as it came,
for it is what the tokens say. The one non-obvious fact: what may yet turn out to be an error waits until its end is
there, so that no secret slips through cut in two; nobody can use half an event anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

ERROR: Final = re.compile(
    rb'\s*(?:event:[^\n]*\n)?(?:data:)?\s*\{\s*"(?:error"|(?:object|type)"\s*:\s*"error)', re.IGNORECASE
)
SIGN: Final = b'"error'
SURE_BYTES: Final = 128
"""By then it is clear whether an event is an error."""
HELD_BYTES: Final = 64 << 10
"""Of an error; what is longer is let go in pieces."""
END: Final = re.compile(rb"\n\r?\n")


class Scrub:
    """Of one answer. ``whole``: one document, and no stream of events."""

    def __init__(self, redact: Callable[[bytes], bytes], *, whole: bool) -> None:
        self._redact = redact
        self._whole = whole
        self._held = b""
        self._passes = False
        """An event that is no error has begun to pass."""
        self._errs = False
        """The beginning of a very long error has passed."""

    def feed(self, chunk: bytes) -> bytes:
        """What may pass of what has come."""
        if self._whole and self._passes:
            return chunk
        if not (self._whole or self._held or self._passes) and chunk.endswith(b"\n\n") and SIGN not in chunk:
            return chunk
        data, self._held = self._held + chunk, b""
        at, passed = 0, []
        while not self._whole and (end := _end(data, at)):
            passed.append(self._event(data[at:end]))
            at = end
        passed.append(self._begun(data[at:]))
        return b"".join(passed)

    def end(self) -> bytes:
        """Nothing more comes."""
        held, self._held = self._held, b""
        return self._event(held)

    def _event(self, event: bytes) -> bytes:
        is_error = self._errs or (not self._passes and ERROR.match(event) is not None)
        self._passes = self._errs = False
        return self._redact(event) if is_error else event

    def _begun(self, event: bytes) -> bytes:
        """Its end has not come."""
        if not self._passes and (len(event) < SURE_BYTES or self._errs or ERROR.match(event) is not None):
            if len(event) <= HELD_BYTES:
                self._held = event
                return b""
            self._errs = True
            return self._redact(event)
        self._passes = True
        # The first half of an empty line waits for the other.
        whole = len(event) if self._whole else len(event.rstrip(b"\r\n"))
        self._held = event[whole:]
        return event[:whole]


def _end(data: bytes, at: int) -> int:
    """Behind the next empty line; 0: there is none."""
    if b"\r" not in data:
        place = data.find(b"\n\n", at)
        return place + 2 if place >= 0 else 0
    found = END.search(data, at)
    return found.end() if found is not None else 0
