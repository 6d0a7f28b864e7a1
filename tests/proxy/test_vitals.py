"""What a proxy says of itself: metrics, readiness, the state that ``forge top`` shows, the disk's budget."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forge.client import NoCapacity
from forge.proxy.recording.decoder import Decoder
from forge.proxy.vitals import measure
from forge.top import age, frame
from tests.engine import Fault, Gate, Turn
from tests.proxy.serving import USER, WAIT_S, Serving, serving

NUMBER = re.compile(r"(forge_\w+)(?:\{(.*)\})? ([-+.\de]+|NaN)")


async def metrics(s: Serving) -> dict[str, float]:
    """``name{labels}`` to value."""
    headers = {"Authorization": f"Bearer {s.proxy.control_token}"}
    async with s.http.get(f"{s.proxy.control_url}/metrics", headers=headers) as answer:
        assert answer.status == 200
        lines = [NUMBER.fullmatch(line) for line in (await answer.text()).splitlines() if not line.startswith("#")]
    assert all(lines)
    return {f"{m[1]}{{{m[2] or ''}}}": float(m[3]) for m in lines if m is not None}


async def ready(s: Serving) -> tuple[int, dict[str, Any]]:
    async with s.http.get(f"{s.proxy.control_url}/readyz") as answer:
        return answer.status, await answer.json()


def decode(s: Serving) -> None:
    s.proxy.deps.recorder.cut()
    decoder = Decoder(s.data)
    decoder.catch_up()
    decoder.close()


async def test_every_metric_has_its_number(tmp_path: Path) -> None:
    """Counts by dialect, status and kind; what streams; what the proxy added; what the decoder counted; the replica."""
    async with serving(tmp_path) as s:
        gate = Gate(is_open=False)
        s.engine.script(Turn("one two three"), Turn(fault=Fault(status=500)), Turn("four", gate=gate))
        for _ in range(2):
            async with s.chat(stream=True, temperature=0) as answer:
                await answer.read()
        streaming = asyncio.ensure_future(_read(s))
        async with asyncio.timeout(WAIT_S):
            while len(s.engine.served) < 3:
                await asyncio.sleep(0.005)
        now = await metrics(s)
        assert now["forge_calls_in_flight{}"] == now["forge_streams_open{}"] == 1
        replica = f'{{replica="{s.engine.url}"}}'
        assert now[f"forge_replica_in_flight{replica}"] == 1
        gate.open()
        await streaming
        decode(s)
        await s.proxy.deps.vitals.look(3)
        await s.proxy.deps.vitals.look_at_disk()
        now = await metrics(s)
    assert now['forge_calls_total{dialect="chat",kind="main",status="ok"}'] == 2
    assert now['forge_calls_total{dialect="chat",kind="main",status="error"}'] == 1
    assert now["forge_streams_open{}"] == now["forge_calls_in_flight{}"] == now["forge_calls_unrecorded{}"] == 0
    assert now["forge_added_first_token_seconds_count{}"] == now["forge_first_byte_seconds_count{}"] - 1 == 2
    assert 0 < now["forge_added_first_token_seconds_sum{}"] < WAIT_S
    assert now["forge_rows_total{}"] == 3
    assert now['forge_tokens_total{of="output"}'] == 4 + 2
    assert now['forge_tokens_total{of="prompt"}'] > 0
    assert now['forge_untrainable_total{reason="constrained"}'] == now['forge_untrainable_total{reason="status"}'] == 1
    assert (now[f"forge_replica_up{replica}"], now[f"forge_policy_version{replica}"]) == (1, 0)
    assert now["forge_journal_bytes{}"] == now['forge_disk_bytes{folder="journal"}'] > 0
    assert now['forge_disk_bytes{folder="calls"}'] > 0
    assert now["forge_disk_free_bytes{}"] > 0
    assert now["forge_decoder_lag_bytes{}"] == now["forge_decoder_lag_seconds{}"] == now["forge_decoder_up{}"] == 0


async def _read(s: Serving) -> bytes:
    async with s.chat(stream=True) as answer:
        body: bytes = await answer.read()
        return body


async def test_a_decoder_that_falls_behind_shows(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        async with s.chat() as answer:
            assert answer.status == 200
        s.proxy.deps.recorder.cut()
        vitals = s.proxy.deps.vitals
        await vitals.look(1)
        first = vitals.decoded
        await vitals.look(1)
        assert first.lag_bytes > 0
        assert vitals.decoded.lag_s > first.lag_s
        decode(s)
        await vitals.look(1)
        assert (vitals.decoded.lag_s, vitals.decoded.lag_bytes) == (0, 0)
        assert vitals.decoded.counts.rows == 1


async def test_ready_says_what_is_amiss(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        status, said = await ready(s)
        assert (status, said["ready"], said["why"], said["warnings"]) == (200, True, [], [])
        assert said["policy_servers"]["up"] == 1
        assert said["disk"] | {"writes": True, "used": 1, "free": 1} == {"writes": True, "used": 1, "free": 1}
        await s.control.pause()
        status, said = await ready(s)
        assert (status, said["open"]) == (503, False)
        assert "paused" in said["why"][0]
        await s.control.resume()
        replica = s.proxy.deps.pool.all()[0]
        replica.bad_weights = True
        s.proxy.deps.pool.down(replica, "gone")
        status, said = await ready(s)
        assert (status, said["policy_servers"]["down"]) == (503, 1)
        assert said["why"] == ["no policy server is up"]


async def test_a_full_data_directory_takes_no_new_sessions_and_loses_nothing(tmp_path: Path) -> None:
    """429 at the control plane, 503 for what would be an implicit session; open sessions go on to their end."""
    async with serving(tmp_path, disk_budget=200_000) as s:
        ticket = await s.control.open_session()
        ballast = s.data / "media" / "ballast"
        ballast.parent.mkdir(exist_ok=True)
        ballast.write_bytes(bytes(200_000))
        await s.proxy.deps.vitals.look_at_disk()
        with pytest.raises(NoCapacity, match="of a budget of 200000"):
            await s.control.open_session()
        assert (await s.control.capacity())["free"] == 0
        async with s.chat() as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "too_many_sessions"
        async with s.chat(key=ticket.api_key, base=ticket.base_url) as answer:
            assert answer.status == 200
        closed = await s.control.close_session(ticket.session_id, reward=1.0)
        assert closed.calls.statuses == {"ok": 1}
        status, said = await ready(s)
        assert (status, said["warnings"][0][:15]) == (200, "no new sessions")
        ballast.unlink()
        await s.proxy.deps.vitals.look_at_disk()
        await s.control.open_session()


async def test_top_shows_the_state_of_a_proxy_at_work(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for number in range(3):
            ticket = await s.control.open_session(harness="codex", task_id=f"[task] {number}")
            async with s.chat([USER], key=ticket.api_key, base=ticket.base_url) as answer:
                assert answer.status == 200
        decode(s)
        await s.proxy.deps.vitals.look(0)
        await s.proxy.deps.vitals.look(3)
        state = await s.control.status()
        assert state["calls_per_s"] > 0
        text = _drawn(state, rows=2)
        for words in ("3 of 4,096 sessions, 1 not shown", "codex", "[task] 2", "ready", s.engine.url, "0 unrecorded"):
            assert words in text, text
        assert "[task] 0" not in text
        assert "not ready" not in text
        await s.control.pause()
        assert "calls wait: paused" in _drawn(await s.control.status(), rows=10)


def _drawn(state: dict[str, Any], *, rows: int) -> str:
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(frame(state, rows=rows))
    return out.getvalue()


async def test_the_operations_page_names_every_metric(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.proxy.deps.vitals.look_at_disk()
        text = s.proxy.deps.metrics.text().decode()
    there = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (forge_\w+) ", text, re.MULTILINE)}
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    named = {name.removesuffix("_total") for name in re.findall(r"`(forge_\w+)", page)}
    assert {name for name in there if not name.endswith("_created")} == named


def test_ages_are_short() -> None:
    assert [age(s) for s in (0, 59.9, 60, 3599, 3600, 86399, 86400, 1e7)] == [
        "0s",
        "59s",
        "1m",
        "59m",
        "1h",
        "23h",
        "1d",
        "115d",
    ]


def test_what_vanishes_while_it_is_measured_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "a").write_bytes(b"12345")
    (tmp_path / "calls" / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "secret").write_bytes(b"123")
    disk = measure(tmp_path)
    assert disk.used == {"calls": 5, "other": 3}
    assert disk.free
    assert measure(tmp_path / "missing").total == 0
