"""SGLang gives a generation up for new weights, and it goes on by chat with ids and its own parsers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.proxy.goings_on import BODIES, cut_everywhere, given_up, told, uncut
from tests.proxy.serving import calls, serving
from tests.proxy.test_continuation_vllm import EITHER, RAW, TURN, WHOLE, checked, turn
from tests.script import EOS
from tests.sglang import SglangEngine


@EITHER
@pytest.mark.parametrize("dialect", BODIES)
async def test_wherever_it_is_cut_the_client_has_what_it_would_have_had(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    """Field cases 172, 175."""
    unbroken = await uncut(tmp_path, SglangEngine(), dialect, stream=stream, turn=turn(dialect))
    engine = SglangEngine()
    step = 1 if (dialect, stream) == ("chat", True) else 4
    async with serving(tmp_path, engine) as s:
        served = await cut_everywhere(s, dialect, stream=stream, turn=turn(dialect), step=step, unbroken=unbroken)
        rows = calls(s.data)
    for row, parts in zip(rows, served, strict=True):
        checked(engine, row, parts, WHOLE if dialect != "completions" else f"one two three four{EOS}")


@EITHER
async def test_it_goes_on_however_often_it_is_given_up(tmp_path: Path, stream: bool) -> None:
    unbroken = await uncut(tmp_path, SglangEngine(), "chat", stream=stream, turn=TURN)
    async with serving(tmp_path, SglangEngine()) as s:
        s.engine.script(TURN)
        status, text = await given_up(s, "chat", stream=stream, after=3, times=3)
        assert (status, told("chat", text)) == (200, unbroken)
        (row,) = calls(s.data)
        checked(s.engine, row, s.engine.served, WHOLE)
        assert [version for version, _, _ in json.loads(row.version_spans or "")] == [0, 1, 2, 3]


@EITHER
@pytest.mark.parametrize("stop", ["three", "wo thr"])
async def test_a_stop_string_ends_it_where_it_would_have(tmp_path: Path, stream: bool, stop: str) -> None:
    unbroken = await uncut(tmp_path, SglangEngine(), "chat", stream=stream, turn=RAW, stop=stop, tools=None)
    async with serving(tmp_path, SglangEngine()) as s:
        s.engine.script(RAW)
        status, text = await given_up(s, "chat", stream=stream, after=2, stop=stop, tools=None)
        assert (status, told("chat", text)) == (200, unbroken)
        (row,) = calls(s.data)
        assert (row.finish_reason, row.trainable, len(row.output_ids)) == ("stop", True, 3)


@EITHER
async def test_one_that_ignores_ids_is_found_out(tmp_path: Path, stream: bool) -> None:
    """An older server samples from the template's prompt: its answer shows so, and is not taken."""
    async with serving(tmp_path, SglangEngine(takes_ids=False)) as s:
        s.engine.script(RAW, RAW)
        _, text = await given_up(s, "chat", stream=stream, after=2)
        assert "generation_aborted" in text
        (row,) = calls(s.data)
        assert (row.status, row.trainable, len(row.output_ids)) == (
            "aborted",
            False,
            len(s.engine.served[0].output_ids),
        )
