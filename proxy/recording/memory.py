"""What decoding remembers of each session's last prompts, so that it looks only at what is new.

Makes it faster, never different: what was forgotten is read again. Bounded in bytes over all sessions, by a share of
the machine's memory: a machine that runs a thousand long sessions at once has the memory for their prompts, and a
decoder that forgets each before it comes again falls behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.recording.asked import Requests

CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""A container's, by version 2 and 1."""


def machine_bytes() -> int:
    """Memory of the machine, or of the container where that has less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(path.read_text()))
    return min(found)


CHAIN_BYTES: Final = max(512 << 20, machine_bytes() // 8)
"""For the chains of sessions, some 2 MB for one of 100k tokens; what falls out is read back from the parts, which takes
far longer than a call."""
PROMPT_BYTES: Final = max(128 << 20, machine_bytes() // 12)
"""For the prompts of all sessions together, some 1.5 MB for one of 100k tokens."""


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

    def __init__(self, limit: int = PROMPT_BYTES) -> None:
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
