"""R14: the wall clock jumps an hour back, a day ahead, and stands still: order and durations are not its."""

from __future__ import annotations

from pathlib import Path

from forge.storage.dataset import Dataset
from tests.storage import frames_kit
from tests.storage.frames_kit import Kit, Turn
from tests.storage.test_decoder import decode

HOUR_US = 3_600_000_000
JUMPS = (0, -HOUR_US, 24 * HOUR_US, 1_000_000, 0, -HOUR_US)


def test_order_and_durations_do_not_follow_the_wall_clock(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open_session("s00000000001")
    last: Turn | None = None
    made = []
    for jump in JUMPS:
        kit.wall_us = frames_kit.WALL_US + jump
        last = kit.call("s00000000001", parent=last)
        made.append(last.call_id)
        kit.cut()
    kit.close_session("s00000000001", reward=1.0)
    kit.cut()
    kit.close()
    decode(tmp_path)
    rows = list(Dataset(tmp_path).calls())
    assert [row.call_id for row in rows] == made
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    assert [row.join for row in rows] == ["none", *["exact"] * (len(JUMPS) - 1)]
    assert all(0 <= (row.first_byte_us or 0) <= (row.end_us or 0) for row in rows)
    (sample,) = Dataset(tmp_path).samples()
    assert sample.turn_call_ids == made
