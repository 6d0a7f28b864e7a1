"""The DuckDB views: whole prompts by SQL, the latest session rows, while the dataset grows."""

from __future__ import annotations

from pathlib import Path

import duckdb

from forge.proxy.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.sql import views
from tests.storage.frames_kit import Kit, story


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


def test_an_empty_dataset_has_no_views(tmp_path: Path) -> None:
    assert views(tmp_path) == ""
