"""Which agent of a session speaks, where its harness does not say: told by what it is told and may do.

Qwen Code, Hermes and Gemini CLI run sub-agents under their own system prompt and with other tools (Hermes' has fewer,
Qwen Code's has more), on histories of their own; nothing on the wire names them. The session's main agent is the first
to come with tools. Whoever differs from it in all three is a sub-agent; one alone does not tell: a main agent's system
prompt changes with its mode and when it compacts, its history begins anew then, and its tools come and go. The id of a
sub-agent is made from how its history begins, so it is the same for all of its calls and in every proxy.
"""

from __future__ import annotations

from forge.proxy.sessions.history import Fingerprint


class Agents:
    """The agents of one session."""

    def __init__(self) -> None:
        self._main: Fingerprint | None = None

    def id_of(self, seen: Fingerprint, *, helper: bool) -> str | None:
        """The sub-agent that asks; None for the main agent, and for a call without tools: titles and summaries.
        ``helper``: its system prompt calls it a sub-agent."""
        if not seen.tools:
            return None
        main = self._main
        if not helper and (
            main is None or seen.system == main.system or seen.first == main.first or seen.tools == main.tools
        ):
            self._main = seen
            return None
        return "content-" + seen.opening.hex()[:16]
