"""Faults that only a model can tell, each seeded into calls that a real model was asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import pytest
from typer.testing import CliRunner

from forge.cli import build
from forge.storage.errors import Exit, Unavailable
from forge.storage.records import Call
from forge.verify.report import Kind
from tests.verify.made import RUN, conversation, write

pytestmark = pytest.mark.model
pytest.importorskip("torch")

from tests.policy.served import Served, serving  # noqa: E402
from tests.verify.sampled import audited, kinds, sampled, where, with_log_probs  # noqa: E402

if TYPE_CHECKING:
    from forge.verify.model_scorer import ModelScorer
    from forge.verify.server_scorer import ServerScorer

EXACT = 1e-3
"""Nats: fp32 against fp32."""


async def scorer_of(served: Served) -> ServerScorer:
    from forge.verify.server_scorer import ServerScorer

    return await ServerScorer.open(served.http, served.base)


async def test_exact_calls_hold(tmp_path: Path, calls: list[Call], cooled: list[Call], fresh: ModelScorer) -> None:
    report = await audited(tmp_path, [*calls, *cooled], fresh)
    assert report.findings == []
    assert report.drift is not None
    assert (report.drift.calls, report.drift.unscored_tokens) == (8, 0)
    assert report.drift.tokens > 100
    assert 0 < report.drift.max < EXACT


async def test_the_server_says_the_same(tmp_path: Path, smollm2: Path, calls: list[Call], cooled: list[Call]) -> None:
    other = replace(calls[0], call_id="x-0", session_id="x", weight_digest="0" * 64)
    async with serving(smollm2, version="1") as served:
        report = await audited(tmp_path, [*calls, *cooled[:2], other], await scorer_of(served))
    assert report.findings == []
    assert report.drift is not None
    assert report.drift.left_out == {"of other weights": 1}
    assert report.drift.calls == 6
    assert report.drift.max < EXACT
    told = report.drift.tokens - sum(len(each.output_ids) for each in calls)
    assert told > 20, "most tokens at 0.7 are among the likeliest"


async def test_shifted_log_probs(tmp_path: Path, calls: list[Call], fresh: ModelScorer) -> None:
    shifted = with_log_probs(calls[2], np.append(calls[2].output_log_probs[1:], -1.0))
    report = await audited(tmp_path, [*calls[:2], shifted, *calls[3:]], fresh)
    assert where(report, Kind.SHIFTED) == (shifted.call_id,)
    assert Kind.WEIGHTS not in kinds(report)


async def test_shifted_ids(tmp_path: Path, calls: list[Call], fresh: ModelScorer) -> None:
    """Ids and text tell it: what was said begins with an id that is not there."""
    lost = replace(calls[0], output_ids=np.append(calls[0].output_ids[1:], np.int32(2)))
    report = await audited(tmp_path, [lost, *calls[1:]], fresh)
    assert where(report, Kind.TEXT)[0].startswith(lost.call_id)
    assert {Kind.STALE_PREFIX, Kind.SHIFTED} & kinds(report)


async def test_padded_log_probs(tmp_path: Path, calls: list[Call], fresh: ModelScorer) -> None:
    """Field case 147: a short list of log probs, filled up with 0."""
    size = len(calls[1].output_ids)  # as long as the policy would have it
    padded = with_log_probs(calls[1], np.where(np.arange(size) >= size // 4, 0.0, calls[1].output_log_probs))
    report = await audited(tmp_path, [calls[0], padded, *calls[2:]], fresh)
    assert kinds(report) - {Kind.DRIFT} == {Kind.PADDED}
    assert where(report, Kind.PADDED) == (padded.call_id,)


async def test_the_wrong_temperature(tmp_path: Path, cooled: list[Call], fresh: ModelScorer) -> None:
    """Sampled at 0.7, and the row says 1."""
    report = await audited(tmp_path, [replace(each, sampling_sent='{"temperature":1.0}') for each in cooled], fresh)
    assert {Kind.TEMPERATURE, Kind.DRIFT} == kinds(report)
    (found,) = [each for each in report.findings if each.kind is Kind.TEMPERATURE]
    assert "nearer 0.70 than 1.00" in found.text


async def test_raw_log_probs(tmp_path: Path, cooled: list[Call], fresh: ModelScorer, smollm2: Path) -> None:
    """Sampled at 0.7, log probs of temperature 1: told by a server too."""
    raw = [with_log_probs(each, (await fresh.score(each, 1.0)).raw) for each in cooled]
    report = await audited(tmp_path / "model", raw, fresh)
    assert Kind.RAW in kinds(report)
    async with serving(smollm2, version="1") as served:
        report = await audited(tmp_path / "server", raw[:2], await scorer_of(served))
    assert Kind.RAW in kinds(report)


async def test_a_top_p_hidden_in_the_server_s_defaults(
    tmp_path: Path, asked: dict[str, list[Call]], fresh: ModelScorer
) -> None:
    report = await audited(tmp_path, asked["cut"], fresh)
    assert Kind.CUT in kinds(report)
    (found,) = [each for each in report.findings if each.kind is Kind.CUT]
    assert "top_p" in found.text
    assert not {Kind.WEIGHTS, Kind.TEMPERATURE, Kind.PADDED} & kinds(report)


async def test_stale_weights(tmp_path: Path, calls: list[Call], other_weights: Path) -> None:
    """The rows name weights that did not sample them."""
    from forge.policy.weights import weight_digest

    claimed = [replace(each, weight_digest=weight_digest(other_weights)) for each in calls]
    async with serving(other_weights, version="1") as served:
        report = await audited(tmp_path, claimed, await scorer_of(served))
    assert kinds(report) == {Kind.WEIGHTS, Kind.DRIFT}
    assert set(where(report, Kind.WEIGHTS)) == {each.call_id for each in calls}


async def test_stale_kv(tmp_path: Path, smollm2: Path, other_weights: Path) -> None:
    """Field case 173: a prefix cache kept over a weight change; what was read before it is used after it."""
    from forge.verify.model_scorer import ModelScorer

    system = "You answer in short and plain words, as one would to a child. " * 8
    async with serving(smollm2) as served:
        await sampled(served, directory=smollm2, questions=["Hello."], system=system)
        rows = served.server.scheduler.rows
        kept = list(rows.idle)
        await served.post("/pause")
        assert (await served.post("/reload_weights", {"path": str(other_weights)}))[0] == 200
        rows.idle.extend(kept)
        await served.post("/resume")
        stale = await sampled(served, directory=other_weights, questions=["Who are you?", "Why?"], system=system)
        rows.clear()
        sound = await sampled(served, directory=other_weights, first=10)
    report = await audited(tmp_path, [*stale, *sound], ModelScorer(other_weights))
    assert set(where(report, Kind.STALE_PREFIX)) == {each.call_id for each in stale}
    assert Kind.WEIGHTS not in kinds(report)


async def test_dropped_tool_tokens(tmp_path: Path, calls: list[Call], fresh: ModelScorer, smollm2: Path) -> None:
    """Field cases 125, 131, 132: a parser took away ids of a tool call, and the engine counts as it did."""
    said = json.loads(calls[0].response or "{}")
    # A name that the model's own words do not hold by chance.
    tool = {"id": "t", "type": "function", "function": {"name": "zq7_run", "arguments": '{"cmd": "ls"}'}}
    dropped = replace(calls[0], response=json.dumps(said | {"tool_calls": [tool]}))
    report = await audited(tmp_path / "model", [dropped, *calls[1:]], fresh)
    assert kinds(report) == {Kind.TEXT}
    assert where(report, Kind.TEXT) == (f"{dropped.call_id} (a call of the tool 'zq7_run')",)
    async with serving(smollm2, version="1") as served:
        report = await audited(tmp_path / "server", [dropped], await scorer_of(served))
    assert kinds(report) == {Kind.TEXT}


async def test_what_a_server_does_not_serve_is_counted(tmp_path: Path, smollm2: Path) -> None:
    versions = [
        replace(each, policy_version_start=v, policy_version_end=v) for v, each in enumerate(conversation("a", 3))
    ]
    versions[2] = replace(versions[2], policy_version_end=9)
    async with serving(smollm2, version="5") as served:
        report = await audited(tmp_path, versions, await scorer_of(served))
    assert report.drift is not None
    assert report.drift.left_out == {"of another version": 2, "across a weight update": 1}
    assert any("no token could be scored" in note for note in report.notes)


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    from forge.verify.server_scorer import ServerScorer

    async with aiohttp.ClientSession() as http:
        with pytest.raises(Unavailable, match=r"does not answer http://127.0.0.1:9/v1/models"):
            await ServerScorer.open(http, "http://127.0.0.1:9/v1")


def test_the_command(tmp_path: Path, calls: list[Call], smollm2: Path) -> None:
    write(tmp_path, {each.session_id: [each] for each in calls[:2]})
    words = ["verify", RUN, "--data", str(tmp_path), "--model", str(smollm2), "--sample", "1"]
    done = CliRunner().invoke(build(), words)
    assert done.exit_code == Exit.OK, done.output
    assert "1 calls, 20 tokens; off by" in done.stdout
