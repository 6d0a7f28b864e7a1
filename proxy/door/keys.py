"""Session keys: ``fs_<session id>_<MAC>``, checked without a look-up.

The MAC is keyed by ``DATA/secret`` (made once, mode 0600), so any worker, or the same proxy after a restart, can
check a key. A key opens its session's door and nothing else; rows and logs hold the id, never the key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

from forge.proxy.ids import base32
from forge.storage.errors import Unavailable

PREFIX: Final = "fs_"
SECRET_FILE: Final = "secret"
SESSION_ID: Final = re.compile(r"[a-z0-9]{12,32}")
REMEMBERED: Final = 8192
"""Right keys that are not computed again."""
_SECRET_BYTES: Final = 32
_MAC_CHARS: Final = 32
_ID_CHARS: Final = 26


def private_file(path: Path, make: bytes) -> bytes:
    """The content of ``path``, which is made with ``make`` (mode 0600) if it is not there; safe against a race."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        if not path.exists():
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(make)
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass  # another process was first: its content counts
            finally:
                temporary.unlink()
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"cannot read or make {path}: {error.strerror}", "check the directory's owner") from error


class Keys:
    """Makes and checks session keys."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._right: dict[str, str] = {}
        """Keys that were found right, and their sessions."""

    @classmethod
    def of(cls, data: Path) -> Keys:
        """The keys of a data directory."""
        secret = private_file(data / SECRET_FILE, secrets.token_bytes(_SECRET_BYTES))
        if len(secret) < _SECRET_BYTES:
            raise Unavailable(f"{data / SECRET_FILE} is too short", "remove it; keys given so far become invalid")
        return cls(secret)

    def _mac(self, label: str, text: str) -> bytes:
        return hmac.new(self._secret, f"{label}:{text}".encode(), hashlib.sha256).digest()

    def make(self, session_id: str) -> str:
        return f"{PREFIX}{session_id}_{self._mac('key', session_id).hex()[:_MAC_CHARS]}"

    def session_of(self, key: str) -> str | None:
        """The session that ``key`` opens; None for a key that is not ours or was forged."""
        session_id = self._right.get(key)
        if session_id is None and (session_id := self._checked(key)) is not None:
            if len(self._right) >= REMEMBERED:
                self._right.clear()
            self._right[key] = session_id
        return session_id

    def _checked(self, key: str) -> str | None:
        session_id, _, mac = key.removeprefix(PREFIX).partition("_")
        if not key.startswith(PREFIX) or not SESSION_ID.fullmatch(session_id) or not mac.isascii():
            return None
        right = self._mac("key", session_id).hex()[:_MAC_CHARS]
        return session_id if hmac.compare_digest(mac, right) else None

    def session_id_for(self, idempotency_key: str) -> str:
        """The one session id of an idempotency key: the same after a restart, without a table."""
        return base32(int.from_bytes(self._mac("idempotency", idempotency_key), "big"), _ID_CHARS)
