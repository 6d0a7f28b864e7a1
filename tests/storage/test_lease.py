"""One decoder at a time: a stopped one loses its claim to the next, and publishes nothing when it wakes up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forge.proxy.recording import decode_process
from forge.proxy.recording.decoder import Decoder, lease_path
from forge.storage import checkpoint
from forge.storage.errors import Unavailable
from forge.storage.lease import Fenced, Lease, Watch
from tests.faults.soak import LONG, rounds
from tests.storage.frames_kit import Kit, story
from tests.storage.test_decoder import check, snapshot

_DECODE_WHEN_TOLD = """
import sys
from pathlib import Path
from forge.proxy.recording.decoder import Decoder
decoder = Decoder(Path(sys.argv[1]))
print("ready", flush=True)
from forge.storage import checkpoint
for line in sys.stdin:
    with checkpoint.turn(Path(sys.argv[1]), checkpoint.DECODER):  # as in the middle of a step
        print("in a step", flush=True)
        sys.stdin.readline()
    decoder.catch_up()
    print("done", flush=True)
"""


def test_a_claim_is_one_process_s_and_a_silent_one_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lease = Lease.take(path, "taken")
    with pytest.raises(Unavailable, match=f"taken by pid {os.getpid()}"):
        Lease.take(path, "taken")
    patient, hasty = Watch(path, silent_s=3600), Watch(path, silent_s=0)
    hasty.is_silent()
    assert hasty.is_silent()
    assert not patient.is_silent()
    other = Lease.take_over(path)
    with pytest.raises(Fenced):
        lease.sign()
    other.sign()
    lease.release()
    with pytest.raises(Unavailable):
        Lease.take(path, "still taken")
    other.release()
    Lease.take(path, "free").release()


@pytest.mark.process
@pytest.mark.timeout(LONG)
def test_a_stopped_decoder_writes_nothing_after_the_takeover(tmp_path: Path) -> None:
    for number in range(rounds(1, 100)):
        _take_over(tmp_path / str(number))


def _take_over(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit)
    kit.close()
    command = [sys.executable, "-c", _DECODE_WHEN_TOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("begin\n")
        child.stdin.flush()
        assert child.stdout.readline() == "in a step\n"
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(Unavailable, match=f"pid {child.pid}"):
            Decoder(tmp_path)
        # What a living proxy's decoder does that stands by; it stays long enough silent at once.
        opened = decode_process._open(tmp_path, 0, None, threading.Event(), os.getppid(), silent_s=0.0)
        assert opened is not None
        opened.catch_up()
        check(kit)
        before, mark = snapshot(tmp_path), checkpoint.load(tmp_path)
        files = {path: path.stat().st_mtime_ns for path in (tmp_path / "calls").rglob("*.parquet")}
        child.send_signal(signal.SIGCONT)
        _, said = child.communicate("go\n", timeout=60)
        assert "Fenced" in said
        assert child.returncode != 0
        assert (snapshot(tmp_path), checkpoint.load(tmp_path)) == (before, mark)
        assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "calls").rglob("*.parquet")}
        opened.step()
        opened.close()
    assert lease_path(tmp_path).exists()
