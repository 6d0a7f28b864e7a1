"""``forge decode`` as a process: once, beside a living writer, killed at random, told to end, orphaned."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forge.cli import build
from forge.option_values import size_in_bytes
from forge.proxy.recording.decoder import Decoder
from forge.storage import checkpoint
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from tests.storage.frames_kit import Kit, story
from tests.storage.test_decoder import check

pytestmark = pytest.mark.process

DEADLINE_S = 60.0


def until(true: Callable[[], bool]) -> None:
    """Waits for something another process does; looks often, ends with an error."""
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, "it did not happen"
        select.select([], [], [], 0.02)


@contextmanager
def decoder(data: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    line = [sys.executable, "-m", "forge", "decode", "--data", str(data), *arguments]
    with subprocess.Popen(line, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def test_once_decodes_seals_and_ends(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit)
    dead = kit.next_turn("s00100000000")
    kit.begin("s00100000000", dead)
    kit.close()
    with decoder(tmp_path, "--once") as child:
        assert child.wait(DEADLINE_S) == 0, child.stderr
    found = {c.call_id: c.status for c in Dataset(tmp_path).calls()}
    assert found[dead.call_id] == "interrupted"
    assert len(found) == 14


def test_killed_at_random_beside_a_living_writer_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open_session("s00000000001")
    last = None
    for number in range(3):
        with decoder(tmp_path, "--journal-keep", "0") as child:
            for _ in range(5):
                last = kit.call("s00000000001", parent=last, stream=number % 2 == 0)
                kit.cut()
            if number:
                until(lambda: checkpoint.decoded(tmp_path, 0).offset > 0)
            else:
                until(lambda: (tmp_path / "calls").exists())
            child.kill()
    kit.close_session("s00000000001", reward=1.0)
    kit.cut()
    kit.close()
    with decoder(tmp_path, "--once") as child:
        assert child.wait(DEADLINE_S) == 0
    check(kit)


def test_told_to_end_it_decodes_what_is_there_and_exits_0(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    with decoder(tmp_path) as child:
        until(lambda: (tmp_path / "catalog.db").exists() or (tmp_path / "samples").exists())
        story(kit)
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE_S) == 0
    check(kit)
    kit.close()


def test_a_second_decoder_says_who_holds_the_directory(tmp_path: Path) -> None:
    first = Decoder(tmp_path)
    with decoder(tmp_path, "--once") as second:
        assert second.wait(DEADLINE_S) == 4
        assert second.stderr is not None
        assert f"is being decoded by pid {os.getpid()}" in second.stderr.read().decode()
    first.close()


_PROXY = """
import os, subprocess, sys
from pathlib import Path
from forge.proxy.recording.decoding import command
child = subprocess.Popen(command(Path(sys.argv[1])))
print(child.pid, flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_a_proxys_decoder_ends_with_it_and_the_next_one_takes_over(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    line = [sys.executable, "-c", _PROXY, str(tmp_path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        pid = int(proxy.stdout.readline())
        until(lambda: (tmp_path / "samples").exists())
        story(kit)
        proxy.kill()
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        other = int(proxy.stdout.readline())
        until(lambda: not Path(f"/proc/{pid}").exists())
        until(lambda: checkpoint.decoded(tmp_path, 0) == kit.journal.end)
        os.kill(other, signal.SIGTERM)
        proxy.communicate(b"", timeout=DEADLINE_S)
    check(kit)
    kit.close()


def test_a_decoder_whose_proxy_died_before_it_began_decodes_and_ends(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit)
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait(DEADLINE_S)
    with decoder(tmp_path, "--follow-parent", str(dead.pid)) as child:
        assert child.wait(DEADLINE_S) == 0
    check(kit)
    kit.close()


def test_sizes() -> None:
    sizes = {"0": 0, "512M": 512 << 20, "4G": 4 << 30, "1 kib": 1024, "10b": 10}
    assert {text: size_in_bytes("--keep", text) for text in sizes} == sizes
    with pytest.raises(BadInput, match="'much' is no size"):
        size_in_bytes("--keep", "much")


def test_help_teaches_and_a_missing_directory_is_named(tmp_path: Path) -> None:
    runner = CliRunner()
    text = runner.invoke(build(), ["decode", "--help"]).output
    assert "forge decode --data ./data --once" in text
    assert "--follow-parent" not in text
    missing = runner.invoke(build(), ["decode", "--data", str(tmp_path / "none")])
    assert missing.exit_code == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="is no data directory"):
        build()(["decode", "--once", "--data", str(tmp_path / "empty")], standalone_mode=False)
    assert not any((tmp_path / "empty").iterdir())
