"""Calls that stay open: the decoder does not hold what they said, and reads it again when they end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forge.proxy.recording.assembly import Assembly, ClosedCall
from forge.storage.frames import Boot, Close, Cut, Data, Open
from forge.storage.journal import JournalReader, JournalWriter, journal_dir
from forge.storage.records import Call

LIMIT = 20_000


def opened(call_id: str, size: int) -> Open:
    return Open(call_id=call_id, session_id="s", run_id="r", boot=1, mono_us=1, writer=0, wall_us=1, dialect="chat",
                path="/v1/chat/completions", stream=True, request_len=size)  # fmt: skip


def write(data: Path, seed: int) -> None:
    """Many calls that overlap, some of several attempts, some closed twice, some never."""
    chance, writer = random.Random(seed), JournalWriter.open(data, 0, run_id="r")
    writer.append(Boot(boot=1, run_id="r", wall_us=1, forge_version="0"))
    open_: list[str] = []
    for number in range(150):
        size = chance.randrange(3000)
        writer.append(opened(f"c{number}", size), b"%d" % (number % 10) * size)
        open_.append(f"c{number}")
        for call_id in chance.sample(open_, min(4, len(open_))):
            attempt = chance.randrange(2)
            writer.append(
                Data(call_id=call_id, attempt=attempt), f"{call_id} {attempt} ".encode() * chance.randrange(200)
            )
        if len(open_) > 20 or chance.random() < 0.3:
            ended = open_.pop(chance.randrange(len(open_)))
            for status in ("ok",) if chance.random() < 0.8 else ("error", "ok"):
                writer.append(Close(call_id=ended, status=status, attempt=chance.randrange(2)))
        if chance.random() < 0.1:
            writer.append(Cut(number=number, wall_us=number))
    writer.append(Cut(number=1000, wall_us=1))
    writer.close()


def row(closed: ClosedCall) -> Call:
    return Call(call_id=closed.open.call_id, run_id="r", session_id="s", seq=1, status=closed.close.status,
                messages=closed.request.decode(), response=closed.answer.decode())  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_let_go_of_is_read_again(tmp_path: Path, seed: int, at_once: bool) -> None:
    write(tmp_path, seed)
    reader = JournalReader(journal_dir(tmp_path, 0))
    free, bound = Assembly(0), Assembly(0, decode=row_list if at_once else None, read=reader.blobs, held_bytes=LIMIT)
    most, made = 0, 0
    while entries := reader.read(max_frames=7):
        for entry in entries:
            one, other = free.feed(entry), bound.feed(entry)
            most = max(most, bound.held)
            if one is None or other is None:
                assert one is other
                continue
            rows = [call.rows[0] if call.rows else row(call) for call in other.calls]
            assert list(map(said, rows)) == [said(row(call)) for call in one.calls]
            made += len(rows)
    reader.close()
    assert made > 50
    assert free.held > most, "more was open than may be held"
    assert most <= LIMIT + 3000


def said(call: Call) -> tuple[str, str, str, str | None]:
    return call.call_id, call.status, call.messages, call.response


def row_list(closed: ClosedCall) -> list[Call]:
    return [row(closed)]
