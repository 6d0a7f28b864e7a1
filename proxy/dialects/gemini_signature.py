"""Thought signatures: the opaque value that Gemini's clients send back unread beside a text or a call.

Owns what stands in ours: the engine's own reasoning, so that it comes back in the next turn without a store, also from
harnesses that drop thoughts from their history. The one non-obvious fact: it is bytes to the SDKs, and some write
bytes back in the URL's alphabet of base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

MARK: Final = b"forge1."
_URL_SAFE: Final = str.maketrans("-_", "+/")


def standard_base64(text: str) -> str:
    """The same bytes in the standard alphabet, padded."""
    text = text.translate(_URL_SAFE).rstrip("=")
    return text + "=" * (-len(text) % 4)


def sign(reasoning: str) -> str:
    return base64.b64encode(MARK + reasoning.encode()).decode()


def signed(signature: str) -> str | None:
    """The reasoning in a signature of ours; None for any other."""
    try:
        value = base64.b64decode(standard_base64(signature), validate=True)
        return value.removeprefix(MARK).decode() if value.startswith(MARK) else None
    except (binascii.Error, ValueError):
        return None
