"""Data can also end: a run goes with everything of it, nothing of any other goes, whatever the moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from forge.deletion import delete, seconds
from forge.proxy.recording.decoder import Decoder
from forge.storage import crash
from forge.storage.catalog import Catalog
from forge.storage.dataset import Dataset
from forge.storage.deletion import TRASH
from forge.storage.errors import BadInput, Unavailable
from forge.storage.records import Call
from tests.engine import Turn
from tests.proxy.serving import Serving, calls, entries, serving

OWN = {"one": "a-word-of-one", "two": "a-word-of-two"}
PIXEL = {
    name: f"data:image/png;base64,{'iVBORw0KGgo' + letter * 4093}" for name, letter in (("one", "B"), ("two", "C"))
}
SHARED = f"data:image/png;base64,{'iVBORw0KGgo' + 'D' * 4093}"


async def talk(s: Serving, run_id: str, *, close: bool = True) -> str:
    ticket = await s.control.open_session(run_id=run_id, task_id=OWN[run_id])
    for turn in range(2):
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in (PIXEL[run_id], SHARED)]
        messages = [{"role": "user", "content": [{"type": "text", "text": f"{OWN[run_id]} {turn}"}, *pictures]}]
        s.engine.script(Turn(OWN[run_id]))
        async with s.chat(messages, key=ticket.api_key, base=ticket.base_url) as answer:
            assert answer.status == 200
    if close:
        await s.control.close_session(ticket.session_id, reward=1.0)
    return ticket.session_id


async def recorded(tmp_path: Path) -> Path:
    """Two runs in one journal and one dataset, decoded; harness outputs beside them."""
    async with serving(tmp_path, run_id="proxy") as s:
        for run_id in ("one", "two", "one"):
            await talk(s, run_id)
        data = s.data
    decode(data)
    for run_id in OWN:
        (data / "harness" / run_id / "s").mkdir(parents=True)
        (data / "harness" / run_id / "s" / "stdout").write_text(OWN[run_id])
    for file in (data / "media").iterdir():
        os.utime(file, (0, 0))
    return data


def decode(data: Path) -> None:
    decoder = Decoder(data)
    try:
        decoder.catch_up()
    finally:
        decoder.close()


def holders(data: Path, text: str) -> list[Path]:
    """Files that hold a text: in their bytes, or as a Parquet value."""
    found = [file for file in data.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]
    for pattern in ("calls", "sessions", "samples"):
        for file in (data / pattern).rglob("*.parquet"):
            rows = duckdb.sql(f"select * from read_parquet('{file}', hive_partitioning=false)").fetchall()
            found += [file] if text in repr(rows) else []
    return found


def all_calls(data: Path) -> list[Call]:
    return list(Dataset(data).calls())


async def test_a_run_goes_with_all_that_is_its(tmp_path: Path) -> None:
    data = await recorded(tmp_path)
    before = {name: [repr(c) for c in all_calls(data) if c.run_id == name] for name in OWN}
    assert (len(before["one"]), len(before["two"])) == (4, 2)
    assert holders(data, OWN["one"])
    frames = len(entries(data))

    told, _ = delete(data, "one", None, catalog_url=None, really=False)
    assert [repr(c) for c in all_calls(data) if c.run_id == "one"] == before["one"], "a preview changes nothing"
    assert (len(told[0].sessions), len(told[0].media)) == (2, 1)

    delete(data, "one", None, catalog_url=None, really=True)
    assert holders(data, OWN["one"]) == []
    assert [repr(c) for c in all_calls(data)] == before["two"]
    assert {s.run_id for s in Dataset(data).sessions()} == {"two"}
    assert {s.run_id for s in Dataset(data).samples()} == {"two"}
    assert [row["run_id"] for row in Catalog(data).runs()] == ["two"]
    assert not (data / "harness" / "one").exists()
    assert (data / "harness" / "two" / "s" / "stdout").read_text() == OWN["two"]
    assert len(list((data / "media").iterdir())) == 2, "its own picture is gone, the shared one stays"
    assert not list(data.rglob(f"{TRASH}*"))
    assert len(entries(data)) == frames, "every place in the journal keeps its meaning"
    with pytest.raises(BadInput, match="no run 'one'"):
        delete(data, "one", None, catalog_url=None, really=True)


async def test_what_is_left_can_be_made_anew_and_gone_on_with(tmp_path: Path) -> None:
    data = await recorded(tmp_path)
    delete(data, "one", None, catalog_url=None, really=True)
    names = sorted(str(path.relative_to(data)) for path in data.rglob("part-*.parquet"))
    kept = [repr(c) for c in all_calls(data)]
    decoder = Decoder(data)
    decoder.start_over()
    decoder.catch_up()
    decoder.close()
    assert sorted(str(path.relative_to(data)) for path in data.rglob("part-*.parquet")) == names
    assert [repr(c) for c in all_calls(data)] == kept
    async with serving(tmp_path, run_id="proxy") as s:
        await talk(s, "one")
    decode(data)
    assert sorted(c.run_id for c in all_calls(data)) == ["one"] * 2 + ["two"] * 2


async def test_beside_a_live_proxy_and_its_decoder(tmp_path: Path) -> None:
    """The run of the proxy, and one with an open session, are live; a closed one goes, also frames not decoded yet."""
    async with serving(tmp_path, run_id="proxy") as s:
        decoder = Decoder(s.data)
        try:
            done = await talk(s, "one")
            decoder.catch_up()
            late = await talk(s, "one")  # in the journal only
            still = await talk(s, "two", close=False)
            with pytest.raises(Unavailable, match="sessions are open"):
                await asyncio.to_thread(delete, s.data, "two", None, catalog_url=None, really=True)
            async with s.chat() as answer:
                assert answer.status == 200
            with pytest.raises(Unavailable, match="run of a proxy that is up"):
                await asyncio.to_thread(delete, s.data, "proxy", None, catalog_url=None, really=True)
            await asyncio.to_thread(delete, s.data, "one", None, catalog_url=None, really=True)
            assert await s.control.calls(done) == await s.control.calls(late) == []
            await s.control.close_session(still, reward=0.5)
            s.proxy.deps.recorder.cut()
            decoder.catch_up()
        finally:
            decoder.close()
    assert {c.run_id for c in all_calls(s.data)} == {"two", "proxy"}
    assert holders(s.data, OWN["one"]) == []
    assert [c.session_id for c in calls(s.data) if c.run_id == "two"] == [still] * 2
    decode(s.data)
    assert {c.run_id for c in all_calls(s.data)} == {"two", "proxy"}


@pytest.mark.process
@pytest.mark.parametrize("at", ["run-renamed", "run-forgotten", "run-voided"])
async def test_killed_anywhere_it_is_ended_by_doing_it_again(tmp_path: Path, at: str) -> None:
    data = await recorded(tmp_path)
    command = [sys.executable, "-m", "forge", "delete", "one", "--data", str(data), "--yes"]
    killed = subprocess.run(command, env={**os.environ, crash.VARIABLE: at}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert {c.run_id for c in all_calls(data)} == {"two"}, "for readers it is gone at once"
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == (2 if at == "run-voided" else 0), again.stderr
    assert holders(data, OWN["one"]) == []
    assert not list(data.rglob(f"{TRASH}*"))
    assert len(list((data / "media").iterdir())) == 2
    assert {c.run_id for c in all_calls(data)} == {"two"}


async def test_a_name_or_a_link_never_leads_out(tmp_path: Path) -> None:
    """A run's folder that is a link goes as a link; names that could be paths are refused."""
    data = await recorded(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    for name in ("../outside", "..", ".", "/etc", "a/b", "run_id=one", "", "\0"):
        with pytest.raises(BadInput):
            delete(data, name, None, catalog_url=None, really=True)
    (data / "harness" / "one" / "s" / "link").symlink_to(outside)
    (data / "calls" / "run_id=linked").symlink_to(outside)
    delete(data, "linked", None, catalog_url=None, really=True)
    delete(data, "one", None, catalog_url=None, really=True)
    assert not (data / "calls" / "run_id=linked").is_symlink()
    assert (outside / "precious").read_text() == "kept"


async def test_old_runs_go_by_age_and_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = await recorded(tmp_path)
    assert delete(data, None, seconds("--older-than", "1h"), catalog_url=None, really=True)[0] == []
    gone, _ = delete(data, None, 0.0, catalog_url=None, really=True)
    assert [each.run_id for each in gone] == ["one", "two"]
    assert (all_calls(data), list((data / "media").iterdir())) == ([], [])
    for wrong in ("", "30", "d", "-1d", "1y", "1.5d"):
        with pytest.raises(BadInput, match="no age"):
            seconds("--older-than", wrong)


async def test_what_files_hold_of_earlier_lives_goes_too(tmp_path: Path) -> None:
    """A spare, the rest of a segment that was written over, and a torn tail."""
    data = await recorded(tmp_path)
    folder = data / "journal" / "w00"
    newest = max(folder.glob("*.seg"))
    (folder / "spare-00000007").write_bytes(OWN["one"].encode())
    before = newest.read_bytes()
    newest.write_bytes(before + b"torn" + OWN["one"].encode())
    delete(data, "one", None, catalog_url=None, really=True)
    assert holders(data, OWN["one"]) == []
    assert newest.stat().st_size == len(before)
    assert {c.run_id for c in all_calls(data)} == {"two"}
    async with serving(tmp_path, run_id="proxy") as s:
        await talk(s, "two")
    decode(data)
    assert len(all_calls(data)) == 4


async def test_media_that_were_used_a_moment_ago_stay(tmp_path: Path) -> None:
    """A call that is being accepted may be about to name them."""
    data = await recorded(tmp_path)
    for file in (data / "media").iterdir():
        os.utime(file)
    delete(data, "one", None, catalog_url=None, really=True)
    assert len(list((data / "media").iterdir())) == 3
