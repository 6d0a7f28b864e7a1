"""Names that become parts of paths: what they may look like. And those of our environment variables."""

from __future__ import annotations

import re
from typing import Final

from forge.storage.errors import BadInput

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""No separator, no leading dot, nothing a shell or a file system reads otherwise."""
CATALOG: Final = "FORGE_CATALOG"
"""The catalog's URL: it may hold a password, which is no argument for all to see."""


def check_name(what: str, name: str) -> str:
    """``name`` as it is. Raises ``BadInput`` on one that could lead out of its folder."""
    if not NAME.fullmatch(name):
        raise BadInput(
            f"{what} {name!r} is no name", "use letters, digits, '.', '_' and '-', a letter or digit first, 128 at most"
        )
    return name
