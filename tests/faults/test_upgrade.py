"""R20: journals that earlier releases wrote are read back for ever; one folder for each format of frames.

A folder holds segments as they were written, and what must come out of them.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from forge.storage.dataset import Dataset
from forge.storage.journal import JournalWriter
from forge.storage.journal_segment import FORMAT
from tests.storage.test_decoder import decode

GOLDEN = Path(__file__).parent / "golden"
FORMATS = sorted(path.name for path in GOLDEN.iterdir())


def test_every_format_has_its_folder() -> None:
    assert [str(number) for number in range(1, FORMAT + 1)] == FORMATS


@pytest.mark.parametrize("number", FORMATS)
def test_a_journal_of_an_earlier_release_is_decoded_alike(tmp_path: Path, number: str) -> None:
    """And written on by this one."""
    shutil.copytree(GOLDEN / number / "journal", tmp_path / "journal")
    expected = json.loads(gzip.decompress((GOLDEN / number / "expected.json.gz").read_bytes()))
    journal = JournalWriter.open(tmp_path, 0, run_id="first")
    assert journal.interrupted == []
    journal.close()
    decode(tmp_path)
    dataset = Dataset(tmp_path)
    rows = {row.call_id: row for row in dataset.calls("first")}
    assert rows.keys() == expected["turns"].keys()
    for call_id, turn in expected["turns"].items():
        row = rows[call_id]
        assert row.trainable
        assert row.prompt_ids.tolist() == turn["prompt_ids"]
        assert row.output_ids.tolist() == turn["output_ids"]
        assert row.output_log_probs.tolist() == pytest.approx(turn["log_probs"])
        assert json.loads(row.messages) == turn["messages"]
        assert json.loads(row.response or "{}")["content"] == turn["reply"]
    assert {session.session_id: session.reward for session in dataset.sessions("first")} == expected["rewards"]
    trained = sum(int(sample.response_mask.sum()) for sample in dataset.samples("first"))
    assert trained == sum(len(turn["output_ids"]) for turn in expected["turns"].values())
