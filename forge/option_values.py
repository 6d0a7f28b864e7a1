"""What option texts mean: sizes and JSON objects, checked at the door."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from forge.storage.errors import BadInput

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_in_bytes(option: str, text: str) -> int:
    """``512M``, ``4G``, ``0``: a size in bytes, with a binary unit."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise BadInput(f"{option}: {text!r} is no size", "write it as 512M or 4G")
    return int(found[1]) * _UNITS[found[2]]


def json_object(option: str, text: str) -> dict[str, Any]:
    """A JSON object, as for ``--sampling``."""
    hint = """write it as '{"temperature": 1.0}'"""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{option} is not JSON: {error}", hint) from error
    if not isinstance(value, dict):
        raise BadInput(f"{option} is not a JSON object", hint)
    return value
