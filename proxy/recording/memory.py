"""What decoding remembers of each session's last prompts, so that it looks only at what is new.

Makes it faster, never different: what was forgotten is read again. Bounded in bytes over all sessions.
"""

from __future__ import annotations

from typing import Final

from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.recording.asked import Requests

LIMIT: Final = 128 << 20
"""Bytes of prompts, of all sessions together."""


class SessionMemory:
    """Of one session."""

    def __init__(self) -> None:
        self.prompts = PromptIds()
        self.requests = Requests()

    @property
    def size(self) -> int:
        return self.prompts.size + self.requests.size


class Memory:
    """Of many sessions: of those seen last, as many as fit."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._held: dict[str, SessionMemory] = {}
        """The latest last."""
        self._sizes: dict[str, int] = {}
        self.held = 0
        """Bytes, less what the session in hand has grown by."""

    def of(self, session_id: str) -> SessionMemory:
        """The session's; what the one before it has grown to is counted now."""
        self._forget()
        session = self._held.pop(session_id, None) or SessionMemory()
        self._held[session_id] = session
        return session

    def _forget(self) -> None:
        if not self._held:
            return
        latest = next(reversed(self._held))
        size = self._held[latest].size
        self.held += size - self._sizes.get(latest, 0)
        self._sizes[latest] = size
        while self.held > self._limit:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self.held -= self._sizes.pop(oldest)
