"""What clients ask before they call: which models there are, and who is there. Pure: values in, JSON values out.

One model list serves every wire format but Gemini's: the members of OpenAI's, vLLM's, OpenRouter's and Anthropic's
lists stand side by side. The non-obvious facts, both tried. Codex wants a member ``models`` and logs an error without
it; but an entry there replaces Codex's own prompt by what the entry says, while an empty list leaves it, so it stays
empty. And a server that answers Ollama's, LM Studio's or llama.cpp's probes is taken for one and then asked to manage
models (Hermes): those paths are unknown here, and quickly so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forge import __version__

OWNER: Final = "forge"
MODEL_OWNER: Final = "forge-proxy"
"""By this another proxy knows that it was pointed at one of us, and not at a policy server."""
EPOCH: Final = "1970-01-01T00:00:00Z"
"""No list says when the policy was made."""
PROBES: Final[dict[str, dict[str, str]]] = {
    "": {"name": OWNER, "version": __version__},
    "version": {"version": __version__},
}
"""What a probe reads; the others only look at the status."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The one model there is. Any other name is served by it too."""

    name: str
    context: int | None
    """In tokens; None where the policy server does not say."""

    def entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": MODEL_OWNER,
            "type": "model",
            "display_name": self.name,
            "created_at": EPOCH,
        }
        if self.context is not None:
            names = ("max_model_len", "context_length", "context_window", "max_input_tokens")
            entry |= dict.fromkeys(names, self.context)
        return entry


def model_list(card: ModelCard, *, codex: bool) -> dict[str, Any]:
    """``codex``: the client says its version, as only Codex does."""
    ends = {"has_more": False, "first_id": card.name, "last_id": card.name}
    return {"object": "list", "data": [card.entry()], **ends} | ({"models": []} if codex else {})


def probe(name: str) -> dict[str, str]:
    return PROBES.get(name, {})
