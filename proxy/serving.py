"""What a proxy that serves says of itself, to whoever started it: one process or several."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forge.proxy.config import TOKEN_FILE, ProxyConfig
from forge.proxy.door.keys import private_file
from forge.storage.errors import BadInput, Unavailable
from forge.storage.files import write_whole

TOKEN_BYTES: Final = 32
TOKEN_CHARS_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A proxy that serves."""

    config: ProxyConfig
    base_url: str
    """Of the data plane, with ``/v1``: what a harness is pointed at."""
    control_url: str
    control_token: str
    control_token_file: Path
    failed: asyncio.Event
    """A background job died: the proxy should be stopped."""

    def ready(self) -> dict[str, object]:
        """What the ready file says."""
        return {
            "pid": os.getpid(),
            "base_url": self.base_url,
            "control_url": self.control_url,
            "control_token_file": str(self.control_token_file.resolve()),
            "data": str(self.config.data.resolve()),
            "run_id": self.config.run_id,
        }

    def say_ready(self) -> None:
        """Writes the ready file, where one is wanted."""
        path = self.config.ready_file
        if path is not None:
            said = msgspec.json.encode(self.ready())
            write_whole(path, lambda temporary: temporary.write_bytes(said))


def make_folder(config: ProxyConfig) -> None:
    """Raises ``Unavailable``."""
    try:
        config.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make the data directory {config.data}: {error.strerror}", "choose another"
        ) from error


def control_token(config: ProxyConfig) -> tuple[str, Path]:
    """The control plane's token, made if it is not there, and its file. Raises ``BadInput`` and ``Unavailable``."""
    path = config.control_token_file or config.data / TOKEN_FILE
    token = private_file(path, secrets.token_urlsafe(TOKEN_BYTES).encode()).decode(errors="replace").strip()
    if len(token) < TOKEN_CHARS_MIN or not token.isprintable():
        raise BadInput(f"the control token in {path} is too short or no text", f"remove {path}; a new one is made")
    return token, path
