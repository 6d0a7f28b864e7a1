"""What a journal's last writer left behind, and the count of starts.

Looks at one segment in all ordinary cases: its head names the calls that were open before it began.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forge.storage.frames import Close, Open, decode
from forge.storage.journal_segment import head_of, payloads, segment_path, segments


@dataclass(frozen=True, slots=True)
class LeftBehind:
    opens: list[str]
    """Calls without a ``close``, in the order they were opened."""
    segment: int
    """The last segment; 0 if there is none."""
    size: int
    clean: bool
    """Every frame in it is whole, so that it can be written on: a reader stops at damage in the newest segment."""


@dataclass(slots=True)
class _Scan:
    """What one segment says of open and closed calls."""

    size: int
    clean: bool
    headed: bool = False
    opens: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)


def left_behind(directory: Path) -> LeftBehind:
    """Reads segments from the newest back to the first one whose head is whole."""
    scans: list[_Scan] = []
    numbers = segments(directory)
    for number in reversed(numbers):
        scans.append(_scan(segment_path(directory, number), number))
        if scans[-1].headed:
            break
    closed = {call for scan in scans for call in scan.closed}
    opens = dict.fromkeys(call for scan in reversed(scans) for call in scan.opens if call not in closed)
    last = scans[0] if scans else _Scan(0, clean=False)
    return LeftBehind(list(opens), numbers[-1] if numbers else 0, last.size, last.clean)


def _scan(path: Path, number: int) -> _Scan:
    data = path.read_bytes()
    scan = _Scan(len(data), clean=True)
    for offset, payload in payloads(data, number):
        if payload is None:
            scan.clean = False
            continue
        head = head_of(payload, path) if offset == 0 else None
        if head is None:
            _scan_frame(scan, payload)
        else:
            scan.headed = True
            scan.opens += head.opens
    scan.clean = scan.clean and scan.headed
    return scan


def _scan_frame(scan: _Scan, payload: memoryview) -> None:
    try:
        frame, _ = decode(payload)
    except (msgspec.DecodeError, ValueError):
        return
    if isinstance(frame, Open):
        scan.opens.append(frame.call_id)
    elif isinstance(frame, Close):
        scan.closed.add(frame.call_id)


def next_boot(data: Path) -> int:
    """Counts the starts over a data directory, over all writers."""
    fd = os.open(data / "journal" / "boot", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        boot = (int(text) if text.isdigit() else _last_boot(data)) + 1
        os.pwrite(fd, f"{boot:016d}\n".encode(), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return boot


def _last_boot(data: Path) -> int:
    """The highest boot number that names a part: parts of a lost journal must never be written over."""
    names = [p.name.split("-") for p in data.glob("calls/*/part-*.parquet")]
    return max((int(n[2]) for n in names if len(n) == 5 and n[2].isdigit()), default=0)
