"""A writer in a process of its own, that says what it has been promised; and what the journal holds of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forge.storage.frames import Data
from forge.storage.journal import JournalReader, JournalWriter, journal_dir

WRITER = """
import asyncio, sys
from pathlib import Path
from forge.storage.frames import Data
from forge.storage.journal import JournalFull, JournalWriter, journal_dir, segments
from forge.storage.journal_spares import give_back

async def main(data, first, count):
    journal = JournalWriter.open(data, 0, run_id="r", durability=sys.argv[4], segment_bytes=700)
    for number in range(first, first + count):
        try:
            await journal.durable(journal.append(Data(call_id=f"c{number}"), b"%d" % number * 200))
            print(number, flush=True)
        except JournalFull:
            print("refused", number, flush=True)
        if number % 6 == 5:  # as the decoder does with what it has decoded
            done = segments(journal_dir(data, 0))
            if len(done) > 4:
                give_back(journal_dir(data, 0), done[0])
    journal.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
"""


def write(
    data: Path,
    first: int,
    count: int,
    *,
    wrapper: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    durability: str = "disk",
) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, sys.executable, "-c", WRITER, str(data), str(first), str(count), durability]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)


def said(output: str) -> list[int]:
    return [int(line) for line in output.splitlines() if line.isdigit()]


def held(data: Path) -> list[int]:
    """The numbers in the journal, each with its own bytes."""
    reader = JournalReader(journal_dir(data, 0))
    found: list[int] = []
    while entries := reader.read(max_frames=5):
        for entry in entries:
            if isinstance(entry.frame, Data):
                number = int(entry.frame.call_id[1:])
                assert entry.blobs == b"%d" % number * 200
                found.append(number)
    reader.close()
    return found


def reopen(data: Path) -> None:
    """As the next start does."""
    JournalWriter.open(data, 0, run_id="r").close()
