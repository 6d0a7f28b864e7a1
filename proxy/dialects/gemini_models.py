"""The one model there is, as Gemini's clients list and look up models. Pure."""

from __future__ import annotations

from typing import Any, Final

METHODS: Final = ("generateContent", "streamGenerateContent", "countTokens")


def gemini_model(name: str, context_len: int | None) -> dict[str, Any]:
    """``context_len``: tokens of prompt and answer together; None where the engine does not say."""
    model: dict[str, Any] = {"name": f"models/{name}", "version": "1", "displayName": name}
    if context_len is not None:
        model |= {"inputTokenLimit": context_len, "outputTokenLimit": context_len}
    return model | {"supportedGenerationMethods": list(METHODS)}
