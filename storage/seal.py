"""The seal of a part: checksums that are checked before anything parses the file.

Parquet's own page checksums leave out the footer, and a flipped byte there is another column name, another count, or
the end of the process that parses it. So a sealed file has 16 bytes between its last page and its footer, where no
reader looks: a mark, the crc32c of what stands before it, and that of what stands after. Knows no tables.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final

import crc32c

from forge.storage.errors import BadInput

MARK: Final = b"forgesum"
_SEAL: Final = struct.Struct("<8sII")
_TAIL: Final = struct.Struct("<I4s")
"""Ends every Parquet file: the footer's length and the format's mark."""
_PARQUET: Final = b"PAR1"
_CHUNK: Final = 1 << 20


def seal(path: Path) -> None:
    """Puts the seal into a whole file that nobody reads yet."""
    with path.open("r+b") as file:
        end, footer = _footer(path, file)
        body = _checksum(file, end)
        file.seek(end)
        file.write(_SEAL.pack(MARK, body, crc32c.crc32c(footer)) + footer)


def check(path: Path, *, owner: bytes, body: bool) -> bool:
    """Is the file sealed? Raises ``BadInput`` if it is not as it was when it was sealed, or its footer does not name
    ``owner``. ``body``: check the pages too, for which the whole file is read."""
    with path.open("rb") as file:
        end, footer = _footer(path, file)
        file.seek(max(0, end - _SEAL.size))
        found = file.read(_SEAL.size)
        sealed = len(found) == _SEAL.size and found.startswith(MARK)
        if not sealed and MARK in path.read_bytes():
            raise _damaged(path, "its last bytes")
        if sealed:
            _, body_sum, footer_sum = _SEAL.unpack(found)
            if crc32c.crc32c(footer) != footer_sum:
                raise _damaged(path, "its last bytes")
            if body and _checksum(file, end - _SEAL.size) != body_sum:
                raise _damaged(path, "its pages")
    if owner not in footer:
        raise BadInput(f"{path} was not written by forge: it has no schema version", "move it out of the dataset")
    return sealed


def _footer(path: Path, file: BinaryIO) -> tuple[int, bytes]:
    """Where the footer begins, and the file from there to its end."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL.size))
    tail = file.read(_TAIL.size)
    if len(tail) < _TAIL.size:
        raise BadInput(f"{path} is no Parquet file: it has {size} bytes", _NEXT)
    length, mark = _TAIL.unpack(tail)
    if mark != _PARQUET or length > size - _TAIL.size:
        raise BadInput(f"{path} is no whole Parquet file: its end is not one's", _NEXT)
    start = size - _TAIL.size - length
    file.seek(start)
    return start, file.read()


def _checksum(file: BinaryIO, end: int) -> int:
    file.seek(0)
    total = 0
    while end > 0:
        chunk = file.read(min(_CHUNK, end))
        if not chunk:
            break
        total = crc32c.crc32c(chunk, total)
        end -= len(chunk)
    return total


def _damaged(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} is damaged: {what} are not what was written", _NEXT)


_NEXT: Final = "forge decode --rebuild makes it anew from the journal"
