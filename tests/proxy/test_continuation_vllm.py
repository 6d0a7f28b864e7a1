"""vLLM gives a generation up for new weights, and it goes on by render, generate and derender (or, raw, by its ids)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge.storage.records import Call
from tests.engine import Turn
from tests.proxy.goings_on import BODIES, cut_everywhere, given_up, told, uncut
from tests.proxy.serving import calls, serving
from tests.scale_out import DEFAULT_LIMIT, DERENDER, GENERATE, RENDER, ScaleOutEngine
from tests.script import EOS, Served

THOUGHT, SAID, ARGUMENTS = "so it", "one two three four", '{"cmd": "ls"}'
TURN = Turn(SAID, reasoning=THOUGHT, tool_calls=[("run", ARGUMENTS)])
RAW = Turn(SAID)
LONG = f"{SAID} five six seven eight nine ten eleven twelve"
WHOLE = f'<think>{THOUGHT}</think>{SAID}<tool_call>\n{{"name": "run", "arguments": {ARGUMENTS}}}\n</tool_call>{EOS}'
EITHER = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def turn(dialect: str) -> Turn:
    return RAW if dialect == "completions" else TURN


def checked(engine: ScaleOutEngine, row: Call, served: list[Served], whole: str) -> None:
    """Nothing sampled twice, nothing lost, nothing made up."""
    sampled = [token for one in served for token in one.output_ids]
    assert engine.tokenizer.decode(sampled) == whole
    assert row.output_ids.tolist() == sampled
    assert row.output_log_probs.tolist() == pytest.approx([p for one in served for p in one.log_probs])
    assert row.prompt_ids.tolist() == served[0].prompt_ids
    assert (row.status, row.trainable, row.untrainable_reason) == ("ok", True, None)
    assert row.completion_tokens == len(sampled)


@EITHER
@pytest.mark.parametrize("dialect", BODIES)
async def test_wherever_it_is_cut_the_client_has_what_it_would_have_had(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    """Field cases 172, 175: in thoughts, in text, within a call of a tool; and log probs and usage with it."""
    unbroken = await uncut(tmp_path, ScaleOutEngine(), dialect, stream=stream, turn=turn(dialect))
    whole = f"{SAID}{EOS}" if dialect == "completions" else WHOLE
    engine = ScaleOutEngine()
    step = 1 if (dialect, stream) == ("chat", True) else 3
    async with serving(tmp_path, engine) as s:
        served = await cut_everywhere(s, dialect, stream=stream, turn=turn(dialect), step=step, unbroken=unbroken)
        asked = [path for path in engine.probes if path in (RENDER, GENERATE, DERENDER)]
        assert dialect == "completions" or asked[-3:] == [RENDER, GENERATE, DERENDER]
        rows = calls(s.data)
    for cut, (row, parts) in enumerate(zip(rows, served, strict=True)):
        checked(engine, row, parts, whole)
        before = len(parts[0].output_ids)
        if len(parts) == 2:
            spans = [[cut, 0, before]] * bool(before) + [[cut + 1, before, len(row.output_ids)]]
            assert json.loads(row.version_spans or "") == spans
            assert (row.policy_version_start, row.policy_version_end) == (cut, cut + 1)


@EITHER
@pytest.mark.parametrize("dialect", BODIES)
async def test_it_goes_on_however_often_it_is_given_up(tmp_path: Path, dialect: str, stream: bool) -> None:
    said = Turn(LONG) if dialect == "completions" else TURN
    unbroken = await uncut(tmp_path, ScaleOutEngine(), dialect, stream=stream, turn=said)
    async with serving(tmp_path, ScaleOutEngine()) as s:
        s.engine.script(said)
        status, text = await given_up(s, dialect, stream=stream, after=2, times=3)
        assert (status, told(dialect, text)) == (200, unbroken)
        (row,) = calls(s.data)
        checked(s.engine, row, s.engine.served, f"{LONG}{EOS}" if dialect == "completions" else WHOLE)
        assert [version for version, _, _ in json.loads(row.version_spans or "")] == [0, 1, 2, 3]


@EITHER
@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize("after", [2, 4, 6])
@pytest.mark.parametrize("stop", ["three", "wo thr", [" f", "two t"]])
async def test_a_stop_string_ends_it_where_it_would_have(
    tmp_path: Path, dialect: str, stream: bool, after: int, stop: Any
) -> None:
    """Field case 149: also one that begins before the cut, which the engine cannot see; text is held back for it."""
    unbroken = await uncut(tmp_path, ScaleOutEngine(), dialect, stream=stream, turn=RAW, stop=stop, tools=None)
    async with serving(tmp_path, ScaleOutEngine()) as s:
        s.engine.script(RAW)
        status, text = await given_up(s, dialect, stream=stream, after=after, stop=stop, tools=None)
        assert (status, told(dialect, text)) == (200, unbroken)
        (row,) = calls(s.data)
        uncut_ids = s.engine.tokenizer.encode(SAID)[: row.completion_tokens]
        assert row.output_ids.tolist() == uncut_ids
        assert (row.finish_reason, row.trainable) == ("stop", True)


@EITHER
@pytest.mark.parametrize("tokens", [4, DEFAULT_LIMIT])
@pytest.mark.parametrize("dialect", BODIES)
async def test_the_limit_counts_down(tmp_path: Path, dialect: str, stream: bool, tokens: int) -> None:
    """Also where it is what vLLM's own parameters say, which a rendered request leaves out."""
    names = {"responses": "max_output_tokens"}
    limit: dict[str, Any] = {names.get(dialect, "max_tokens"): tokens}
    if dialect == "gemini":
        limit = {"generationConfig": {"maxOutputTokens": tokens}}
    if dialect == "messages":
        limit |= {"thinking": {"type": "disabled"}}
    turn = Turn(f"{LONG} {LONG}")
    unbroken = await uncut(tmp_path, ScaleOutEngine(), dialect, stream=stream, turn=turn, **limit)
    async with serving(tmp_path, ScaleOutEngine()) as s:
        s.engine.script(turn)
        status, text = await given_up(s, dialect, stream=stream, after=2, **limit)
        assert (status, told(dialect, text)) == (200, unbroken)
        (row,) = calls(s.data)
        assert (len(row.output_ids), row.finish_reason, row.completion_tokens) == (tokens, "length", tokens)
