"""Which agent of a session speaks, where its harness does not say: told by what it is told and may do.

Qwen Code, Hermes and Gemini CLI run sub-agents under their own system prompt and with fewer tools, on histories of
their own; nothing on the wire names them. The session's main agent is the one with most tools. Whoever has another
system prompt, another beginning and fewer tools is a sub-agent, and its id is made from how its history begins: so it
is the same for all of its calls, and for another proxy that sees the same session.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge.proxy.history import Fingerprint


@dataclass(frozen=True, slots=True)
class _Main:
    system: bytes
    first: bytes
    tools: int


class Agents:
    """The agents of one session."""

    def __init__(self) -> None:
        self._main: _Main | None = None

    def id_of(self, seen: Fingerprint, tools: int) -> str | None:
        """The sub-agent that asks; None for the main agent, and for a call without tools: titles and summaries."""
        if not tools:
            return None
        main = self._main
        if main is None or tools > main.tools or seen.system == main.system:
            self._main = _Main(seen.system, seen.first, max(tools, main.tools if main else 0))
            return None
        if tools == main.tools or seen.first == main.first:
            return None
        return "content-" + seen.opening.hex()[:16]
