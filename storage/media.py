"""Media by content: each is stored once, at ``DATA/media/<sha256>``, before a frame refers to it.

Owns the files, and the two ways back from a reference: the very bytes that a request had, or the file's place. Knows
no wire format; how references stand in text is ``media_text.py``'s. Each use renews a file's time: what cleans up can
leave alone what a call that is being accepted may be about to name.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from forge.storage import media_text
from forge.storage.dataset_calls import UNREADABLE
from forge.storage.errors import BadInput
from forge.storage.files import write_whole
from forge.storage.frames import Open
from forge.storage.journal import JournalFull, JournalReader, journal_dir, writers
from forge.storage.parts import parts_in, read_part, table_dir

TEXTS = ("messages", "tools", "request_raw")
"""Columns of calls whose text refers to media."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A request whose media are stored."""

    body: bytes
    """The request with references."""
    known: Mapping[bytes, bytes] = field(default_factory=dict)
    """Base64 text to its reference."""
    whole: bool = False
    """It is as it came."""

    def again(self, body: bytes) -> bytes:
        """Another form of the request (what the engine is sent), by the same references."""
        return media_text.cut(body, self.known.get) if self.known else media_text.escaped(body)


class MediaStore:
    def __init__(self, data: Path) -> None:
        self.folder = data / "media"

    def path(self, sha256: str) -> Path:
        return self.folder / sha256

    def take(self, body: bytes) -> Taken:
        """Stores what is in a request. Reads and writes files: large ones belong in a thread. Raises
        ``JournalFull``."""
        known: dict[bytes, bytes] = {}
        for piece in media_text.pieces(body):
            if piece.text in known:
                continue
            content = media_text.content_of(piece.text)
            if content is None:
                self._keep_odd(piece.text)
            else:
                self._put(content.sha256, content.data)
                # A translated request may spell it otherwise than the harness did.
                known[media_text.encoded(content.data, media_text.STANDARD)] = media_text.reference(content.sha256)
                known[piece.text] = media_text.reference(content.sha256, content.spelling)
        return Taken(media_text.cut(body, known.get), known)

    def read(self, name: str) -> bytes:
        """Raises ``BadInput`` if it is gone, or not what was stored."""
        path = self.path(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}", "put it back; calls refer to it") from error
        if sha256(data).hexdigest() != name:
            raise BadInput(f"{path} is damaged: its content has another sha256 than its name", "put it back")
        return data

    def whole(self, text: bytes) -> bytes:
        """What the harness sent (``request_raw``) or the engine got (``messages``), to the byte. Raises ``BadInput``
        for media that are gone."""
        if media_text.MARK not in text:
            return text
        return media_text.restored(text, lambda name, spelling: media_text.encoded(self.read(name), spelling))

    def linked(self, text: bytes) -> bytes:
        """The same for other programs to read: a file's URL in place of each ``data:`` URL, all else as it was."""
        return self.whole(media_text.linked(text, lambda name: self.path(name).absolute().as_uri().encode()))

    def _keep_odd(self, text: bytes) -> None:
        """Stores what stays in its request because of its spelling too: it is known by its hash all the same."""
        with suppress(ValueError):
            data = media_text.loosely(json.loads(b'"' + text + b'"'))
            if data is not None:
                self._put(sha256(data).hexdigest(), data)

    def _put(self, name: str, data: bytes) -> None:
        path = self.path(name)
        try:
            with suppress(FileNotFoundError):
                os.utime(path)
                return
            author = f"-{os.getpid()}-{threading.get_ident()}"
            write_whole(path, lambda unfinished: unfinished.write_bytes(data), crash_name="media", author=author)
        except OSError as error:
            raise JournalFull(f"media {path} cannot be written: {error.strerror or error}") from error


def references(data: Path, run_id: str) -> set[str]:
    """The sha256 of all media that a run's calls refer to, in the dataset and in what is not decoded yet. Raises
    ``BadInput`` if a file cannot be read: what it refers to is not known then."""
    found: set[str] = set()
    for path in parts_in(table_dir(data, "calls"), run_id):
        try:
            table = read_part(path, "calls", TEXTS)
        except UNREADABLE as error:
            raise BadInput(f"{path} cannot be read: {error}", "forge decode --rebuild makes it anew") from error
        for column in table.columns:
            for text in column.to_pylist():
                found |= media_text.references(text.encode() if isinstance(text, str) else text or b"")
    for writer in writers(data):
        reader = JournalReader(journal_dir(data, writer))
        try:
            while entries := reader.read():
                for entry in entries:
                    if isinstance(entry.frame, Open) and entry.frame.run_id == run_id:
                        found |= media_text.references(entry.blobs)
        finally:
            reader.close()
    return found
