"""By what name an adapter is called that was published to a policy server, beside its base weights.

Owns that name. It tells the base, the version and the weights, so that whoever meets it, in a server's list or in an
answer, knows which policy it is. The one non-obvious fact: each version has a name of its own. An adapter exchanged
under its name would leave open which of the two a running call samples from; and vLLM (0.32) reads one that was loaded
with ``load_inplace`` from the disk again at every step, for a running call that of the older version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from forge.proxy.engines.base import Tokens

_NAME: Final = re.compile(r"(?P<base>.+):forge-(?P<version>\d{1,19})-[0-9a-f]{12}")
_MARK: Final = ":forge-"


def name_of(base: str, version: int, weights: str) -> str:
    """``weights``: what tells them from others of that version, a digest or where they lie."""
    return f"{base}{_MARK}{version}-{hashlib.blake2b(weights.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Listed:
    """What a server's list of models says."""

    base: str | None = None
    root: str | None = None
    """The directory or name that the server was started with."""
    adapters: tuple[str, ...] = ()
    """Those that were published, as they were loaded."""

    def of(self, version: int | None) -> str | None:
        """The adapter of that version, the last one that was loaded; None: there is none."""
        return next((name for name in reversed(self.adapters) if _version(name) == version), None)


def listed(models: Mapping[str, Any]) -> Listed:
    """Of the body of ``/v1/models``: the base comes first."""
    entries = [entry for entry in models.get("data") or () if isinstance(entry, dict)]
    names = [str(entry.get("id")) for entry in entries]
    first = entries[0] if entries else {}
    return Listed(first.get("id"), first.get("root"), tuple(name for name in names[1:] if _version(name) is not None))


def by_base(tokens: Tokens) -> Tokens:
    """Of an answer that names an adapter: the model is its base, and its version that of every token."""
    found = _NAME.fullmatch(tokens.model) if tokens.model and _MARK in tokens.model else None
    return tokens if found is None else replace(tokens, model=found["base"], version=int(found["version"]))


def _version(name: str) -> int | None:
    found = _NAME.fullmatch(name)
    return int(found["version"]) if found is not None else None
