"""``forge train`` refuses a run that fails verification, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from forge.storage.errors import Untrainable
from forge.storage.parts import parts_in, table_dir
from forge.trainer.config import TrainConfig
from forge.trainer.loop import read_samples
from tests.verify.made import RUN, conversation, untrainable, write
from tests.verify.test_recorded import each, edit, edit_samples


def test_a_sound_run_is_learned_from_and_a_wrong_one_only_when_told(tmp_path: Path) -> None:
    write(tmp_path, {"a": conversation("a", 2), "b": conversation("b", 2)})
    assert len(read_samples(TrainConfig(data=tmp_path))) == 2
    edit_samples(tmp_path, each(lambda row: row.update(session_id="a")))
    with pytest.raises(Untrainable, match=r"run hello fails verification: session: .* \(b-0\)") as refused:
        read_samples(TrainConfig(data=tmp_path))
    assert f"forge verify {RUN} --data {tmp_path}" in refused.value.hint
    assert "--unverified" in refused.value.hint
    assert len(read_samples(TrainConfig(data=tmp_path, unverified=True))) == 2


def test_rows_with_nothing_to_prove_them_by(tmp_path: Path) -> None:
    write(tmp_path, {"a": conversation("a", 2)})
    edit(tmp_path, "calls", lambda rows: [])
    with pytest.raises(Untrainable, match="the run has no calls"):
        read_samples(TrainConfig(data=tmp_path))


def test_calls_without_ids_are_named_when_training_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"a": [untrainable(call, "output_ids_missing") for call in conversation("a", 3)]})
    with pytest.raises(
        Untrainable, match=r"no samples in the runs asked for \(hello\); their calls: 3 output_ids_missing"
    ):
        read_samples(TrainConfig(data=tmp_path))


def test_a_foreign_file_among_the_calls_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a": conversation("a", 2)})
    (part,) = parts_in(table_dir(tmp_path, "calls"))
    part.with_name("zz.parquet").write_bytes(b"no parquet")
    with pytest.raises(Untrainable, match=r"unreadable: .*zz\.parquet"):
        read_samples(TrainConfig(data=tmp_path))
