"""The DuckDB views: whole prompts by SQL, the latest session rows, while the dataset grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.delta import Chain
from forge.storage.parts import run_dir, table_dir, write_part
from forge.storage.sql import views
from tests.storage import dataset_kit as kit
from tests.storage.frames_kit import Kit, story

Whole = Callable[[], dict[tuple[str, int], tuple[Any, ...]]]


def test_views_give_whole_prompts_and_latest_sessions(tmp_path: Path) -> None:
    kit, decoder = Kit(tmp_path), Decoder(tmp_path)
    story(kit, turns=3)
    decoder.catch_up()
    with duckdb.connect() as db:
        db.execute(views(tmp_path))
        for turns in (3, 40):
            found = dict(db.execute("SELECT call_id, prompt_ids FROM calls").fetchall())
            assert found == {c.call_id: c.prompt_ids.tolist() for c in Dataset(tmp_path).calls()}
            rewards = db.execute("SELECT reward FROM sessions ORDER BY open_time, session_id").fetchall()
            assert rewards == [(s.reward,) for s in Dataset(tmp_path).sessions()]
            samples = db.execute("SELECT sample_id FROM samples ORDER BY sample_id").fetchall()
            assert samples == sorted((s.sample_id,) for s in Dataset(tmp_path).samples())
            if turns == 3:  # The same views see what comes later; a chain of 40 passes a whole row.
                kit.close()
                kit = Kit(tmp_path, seed=1)
                story(kit, sessions=2, turns=40)
                decoder.catch_up()
        assert len(found) > 90
    kit.close()
    decoder.close()


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    def read() -> dict[tuple[str, int], tuple[Any, ...]]:
        with duckdb.connect() as db:
            db.execute(views(tmp_path))
            rows = db.execute("SELECT call_id, choice, prompt_ids, messages, tools FROM calls").fetchall()
        found = {row[:2]: row[2:] for row in rows}
        assert len(found) == len(rows)
        return found

    return read


def test_calls_have_their_prompts_messages_and_tools_whole(tmp_path: Path, whole: Whole) -> None:
    """Over parts, runs and whole rows in between; with tools, thoughts, images and choices, and without."""
    kit.write(tmp_path)
    found = whole()
    calls = list(Dataset(tmp_path).calls())
    assert len(found) == len(calls) == 2 * (kit.TURNS + 6)
    for call in calls:
        assert found[call.call_id, call.choice] == (call.prompt_ids.tolist(), call.messages, call.tools)


@pytest.mark.parametrize("where", ["messages", "response"])
def test_messages_that_are_json_to_few_readers_end_no_query(tmp_path: Path, whole: Whole, where: str) -> None:
    """Half an emoji, as a harness written in JavaScript cuts it, in the second call of three."""
    calls = kit.plain_calls("r")[:3]
    for later in (1, 2) if where == "messages" else (2,):
        text = calls[later].messages.replace("and 0", r"\ude00").replace("reply 1", r"\ude00")
        calls[later] = replace(calls[later], messages=text)
    if where == "response":
        calls[1] = replace(calls[1], response=r'{"role":"assistant","content":"\ude00"}')
    chain = Chain()
    folder = run_dir(table_dir(tmp_path, "calls"), "r")
    write_part(folder / "part-0.parquet", "calls", [chain.add(call) for call in calls])
    assert [call.messages for call in Dataset(tmp_path).calls()] == [call.messages for call in calls]
    found = {call: messages for (call, _), (_, messages, _) in whole().items()}
    assert found == {call.call_id: call.messages for call in calls}


def test_an_empty_dataset_has_no_views(tmp_path: Path) -> None:
    assert views(tmp_path) == ""
