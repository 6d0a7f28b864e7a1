"""How frames lie in a segment file: names, frame headers, checksums, and reading frames out of bytes.

A frame is ``length u32 | crc32c u32 | generation u32 | payload``, little endian. The generation is the segment's
number, so bytes left over from another life of a file never read as valid. The first frame of every segment is its
head: it names the calls that were open when the segment began, so a restart needs to look at one segment only.
Knows nothing of writers, threads or the decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from forge.storage.errors import BadInput

SEGMENT_BYTES: Final = 64 << 20
"""A segment that has reached this size is followed by a new one."""
FRAME_BYTES_MAX: Final = 1 << 30
"""No frame is longer; a length above it is damage."""
READ_HEAD_BYTES: Final = 1 << 20
"""More than any head: it holds an id of some 30 bytes per open call."""
FORMAT: Final = 1
"""Format of segments; a newer one is refused."""

_HEADER: Final = struct.Struct("<III")
_CHECKED: Final = struct.Struct("<II")
HEADER_BYTES: Final = _HEADER.size
_MAGIC: Final = b"FORGEJ"
_SUFFIX: Final = ".seg"


class Position(NamedTuple):
    """A place in one writer's journal: between two frames. Ordered."""

    segment: int
    offset: int

    def __str__(self) -> str:
        return f"{self.segment:08d}:{self.offset}"


START: Final = Position(0, 0)
"""Before the first segment that is there."""
OFFSET_BITS: Final = 40
"""Of a packed position; the segment's number stands above them."""


def packed(segment: int, offset: int) -> int:
    """A position in 64 bits, of the same order: a session of many frames remembers where each stands."""
    return segment << OFFSET_BITS | offset


def unpacked(position: int) -> Position:
    return Position(position >> OFFSET_BITS, position & ((1 << OFFSET_BITS) - 1))


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the first frame of a segment says."""

    format: int
    segment: int
    writer: int
    boot: int
    run_id: str
    opens: list[str]
    """Calls accepted earlier and not closed when the segment began."""

    def payload(self) -> bytes:
        return _MAGIC + msgspec.msgpack.encode(self)


class Span(NamedTuple):
    """A whole frame found in bytes: where its payload lies, and where the next frame would begin."""

    start: int
    end: int


def journal_dir(data: Path, writer: int) -> Path:
    return data / "journal" / f"w{writer:02d}"


def segment_path(directory: Path, segment: int) -> Path:
    return directory / f"{segment:08d}{_SUFFIX}"


def segments(directory: Path) -> list[int]:
    """The numbers of the segments that are there, ascending."""
    if not directory.is_dir():
        return []
    return sorted(int(p.stem) for p in directory.iterdir() if p.suffix == _SUFFIX and p.stem.isdigit())


def writers(data: Path) -> list[int]:
    """The writers that have a journal in a data directory, ascending."""
    folder = data / "journal"
    if not folder.is_dir():
        return []
    return sorted(int(p.name[1:]) for p in folder.iterdir() if p.name[:1] == "w" and p.name[1:].isdigit())


def frame_header(pieces: Iterable[bytes | bytearray | memoryview], length: int, generation: int) -> bytes:
    """The header of a frame whose payload is ``pieces``, ``length`` bytes in all."""
    crc = crc32c(_CHECKED.pack(length, generation))
    for piece in pieces:
        crc = crc32c(piece, crc)
    return _HEADER.pack(length, crc, generation)


def frame_length(view: memoryview, offset: int) -> int | None:
    """Payload length that the header at ``offset`` states; None if there is no header or no such frame can be."""
    if offset + HEADER_BYTES > len(view):
        return None
    length = _HEADER.unpack_from(view, offset)[0]
    return length if 0 < length <= FRAME_BYTES_MAX else None


def frame_generation(head: bytes | memoryview) -> int:
    """The generation that a frame's header states."""
    generation: int = _HEADER.unpack_from(head)[2]
    return generation


def is_stale(view: memoryview, generation: int) -> bool:
    """Whether what stands here may be left over from the file's earlier life. What a writer began to write says its
    own segment's number, however torn it is."""
    return len(view) >= HEADER_BYTES and frame_generation(view) != generation


def frame_at(view: memoryview, offset: int, generation: int) -> Span | None:
    """The whole, valid frame at ``offset``, or None."""
    length = frame_length(view, offset)
    if length is None or offset + HEADER_BYTES + length > len(view):
        return None
    _, crc, found = _HEADER.unpack_from(view, offset)
    start = offset + HEADER_BYTES
    end = start + length
    if found != generation or crc32c(view[start:end], crc32c(_CHECKED.pack(length, found))) != crc:
        return None
    return Span(start, end)


def head_of(payload: memoryview, path: Path) -> SegmentHead | None:
    """The segment head that a payload is, or None if it is another frame."""
    if bytes(payload[: len(_MAGIC)]) != _MAGIC:
        return None
    known = msgspec.msgpack.decode(payload[len(_MAGIC) :], type=dict[str, object])
    if known.get("format") != FORMAT:
        raise BadInput(
            f"journal segment {path} has format {known.get('format')}; this forge reads format {FORMAT}",
            "read it with the forge that wrote it, or a newer one",
        )
    return msgspec.convert(known, SegmentHead)


def read_head(path: Path) -> SegmentHead | None:
    """The head of a segment file, or None where it cannot be read."""
    with path.open("rb") as file:
        view = memoryview(file.read(READ_HEAD_BYTES))
    span = frame_at(view, 0, int(path.stem))
    return head_of(view[span.start : span.end], path) if span is not None else None


def payloads(data: bytes, generation: int) -> Iterator[tuple[int, memoryview | None]]:
    """Every frame of a whole segment: (offset, payload), payload None for one damaged frame that was stepped over.

    Ends with (offset, None) where the rest holds no frame; gives nothing for it when nothing is left.
    """
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        span = frame_at(view, offset, generation)
        if span is not None:
            yield offset, view[span.start : span.end]
            offset = span.end
            continue
        yield offset, None
        following = step_over(view, offset, generation)
        if following is None:
            return
        offset = following


def step_over(view: memoryview, offset: int, generation: int) -> int | None:
    """Where the next frame begins if only the payload at ``offset`` is damaged: its stated length must lead to a
    valid frame. Never searched for: a payload may hold anything, also bytes that look like frames."""
    length = frame_length(view, offset)
    if length is None:
        return None
    following = offset + HEADER_BYTES + length
    return following if frame_at(view, following, generation) is not None else None
