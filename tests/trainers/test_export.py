"""``forge export`` from a data directory to each trainer's file, and what it says where it cannot."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from forge.adapters.trainers import TRAINERS, prime_rl, skyrl, verl
from forge.adapters.trainers.base import Arguments
from forge.cli import build
from forge.export import ExportConfig, account, export
from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Untrainable
from forge.storage.media import MediaStore
from forge.storage.media_list import media_of
from forge.storage.parts import run_dir, table_dir
from forge.storage.records import Sample, Session
from tests.storage.frames_kit import Kit, story
from tests.trainers.conftest import MakeData, a_sample, a_session


def two_sessions() -> tuple[list[Sample], list[Session]]:
    """One session of two rows, one of one, in a group; an evaluation, a null and a pending one beside them."""
    samples = [
        a_sample("s0", 0, [1, 0, 1], row_count=2), a_sample("s0", 1, [0, 1], row_count=2), a_sample("s1", 0),
        a_sample("e0", 0, trainable=False, untrainable_reason="eval"), a_sample("n0"), a_sample("p0"),
    ]  # fmt: skip
    sessions = [
        a_session("s0", 1.0), a_session("s1", 0.0), a_session("e0", 1.0, purpose="eval"), a_session("n0", None),
        a_session("p0", None, reward_status="pending"),
    ]  # fmt: skip
    return samples, sessions


def wrote(to: str, data: Path, tmp_path: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    report = export(ExportConfig(to=to, data=data, out=tmp_path / f"out{TRAINERS[to].suffix}", **changes))
    told: dict[str, Any] = json.loads(report.account.read_text())
    return report.path, told


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("to", list(TRAINERS))
def test_every_trainer_gets_its_file_and_an_account(to: str, make_data: MakeData, tmp_path: Path) -> None:
    path, told = wrote(to, make_data(*two_sessions()), tmp_path)
    assert path.stat().st_size > 0
    assert (told["rows"], told["sessions"], told["trained_tokens"]) == (3, 2, 6)
    assert told["left_out"] == {"eval": 1, "reward_null": 1, "reward_pending": 1}
    assert (told["trainer"], told["runs"], told["set"]) == (to, ["r"], "default")
    assert told["recipe"]["kinds"] == ["compaction", "main", "subagent"]
    assert len(told["recipe_hash"]) == 16
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {path.name, f"{path.name}.export.json"}


def test_parquet_exports_read_back_by_others(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data(*two_sessions())
    table = pq.read_table(wrote("verl", data, tmp_path)[0])
    assert table.column_names == list(verl.COLUMNS)
    assert table["uid"].to_pylist() == ["r/g"] * 3
    assert table["reward_score"].to_pylist() == [1.0, 1.0, 0.0], "the session's latest reward, not the row's old one"
    assert table["session_trainable_tokens"].to_pylist() == [3, 3, 3]
    assert table["is_last"].to_pylist() == [False, True, True]
    tensors, labels = verl.read(tmp_path / "out.parquet", prompt_length=4, response_length=5, pad_id=0)
    assert tensors["input_ids"].shape == (3, 9)
    assert labels["uid"] == ["r/g"] * 3
    with pytest.raises(BadInput, match="row s0-0 has 3 \\+ 3 ids; the batch has room for 2 \\+ 5"):
        verl.read(tmp_path / "out.parquet", prompt_length=2, response_length=5, pad_id=0)
    output = pq.read_table(wrote("skyrl", data, tmp_path)[0], columns=list(skyrl.GENERATOR_OUTPUT)).to_pydict()
    assert output["rewards"] == [[0.0] * 3, [0.0, 1.0], [0.0] * 4]
    assert output["is_last_step"] == [False, True, True]
    assert [each["repetition_id"] for each in output["trajectory_ids"]] == [0, 0, 1]
    tokens = pq.read_table(wrote("sft-tokens", data, tmp_path)[0])
    assert tokens["input_ids"].to_pylist()[1] == [10, 11, 12, 100, 101]
    assert tokens["completion_mask"].to_pylist()[1] == tokens["assistant_masks"].to_pylist()[1] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("to", [name for name, trainer in TRAINERS.items() if trainer.suffix == ".parquet"])
def test_files_of_several_runs_are_read_together(to: str, make_data: MakeData, tmp_path: Path) -> None:
    """Field cases 177, 178, 179, 181: a column that is null in one whole file has the same type in it as in others."""
    empty: dict[str, Any] = {"task_id": None, "rollout_index": None, "policy_version_min": None}
    data = make_data(
        [a_sample("s0"), a_sample("s1"), *(a_sample(n, run_id="x", finish_reason=None, **empty) for n in ("x0", "x1"))],
        [
            a_session("s0", 1.0),
            a_session("s1", 0.0),
            a_session("x0", 1.0, run_id="x"),
            a_session("x1", 0.0, run_id="x"),
        ],
    )
    folder = tmp_path / "both"
    for run in ("r", "x"):
        wrote(to, data, tmp_path, runs=(run,))[0].rename(_in(folder, run))
    schemas = [pq.read_schema(path) for path in sorted(folder.iterdir())]
    assert schemas[0] == schemas[1]
    assert pq.read_table(folder).num_rows == 4
    with duckdb.connect() as db:
        ((found,),) = db.execute(f"SELECT count(*) FROM '{folder}/*.parquet' WHERE task_id IS NULL").fetchall()
    assert found == 2


def _in(folder: Path, run: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / f"{run}.parquet"


def test_prime_rl_reads_positions(make_data: MakeData, tmp_path: Path) -> None:
    """Field names of its newest known shape, in order; the step comes from the folder."""
    folder = tmp_path / "rollouts" / "step_7"
    report = export(ExportConfig(to="prime-rl", data=make_data(*two_sessions()), out=folder / "rollouts.bin"))
    examples, step = msgspec.msgpack.decode(report.path.read_bytes())
    assert step == 7
    assert len(examples) == 3
    fields = dict(zip(prime_rl.TrainingSample.__struct_fields__, examples[0], strict=True))
    assert fields["token_ids"] == [10, 11, 12, 100, 101, 102]
    assert fields["mask"] == [False, False, False, True, False, True]
    assert fields["temperatures"] == [1.0] * 6
    assert fields["advantages"][3] == pytest.approx(0.7071, abs=1e-3)
    assert list(prime_rl.TrainingSample.__struct_fields__) == [
        "token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "ref_hidden_states", "mm_kwargs",
        "routed_experts", "mm_token_type_ids", "rl_weights", "ce_weights", "ref_kl_weights", "advantages",
    ]  # fmt: skip


def test_tool_arguments_are_a_mapping_or_text(make_data: MakeData, tmp_path: Path) -> None:
    """Field cases 159, 160, 161, 162: templates want a mapping; a string within a string is left out and counted."""
    samples, sessions = two_sessions()
    twice = samples[2].messages.replace('"{\\"cmd\\": \\"ls\\"}"', '"\\"{}\\""') if samples[2].messages else None
    samples[2] = replace(samples[2], messages=twice)
    data = make_data(samples, sessions)
    path, told = wrote("sft", data, tmp_path)
    assert told["left_out"]["bad_arguments"] == 1
    assert told["rows"] == len(lines(path)) == 2
    call = lines(path)[0]["messages"][1]["tool_calls"][0]["function"]
    assert call == {"name": "run", "arguments": {"cmd": "ls"}}
    assert lines(path)[0]["tools"][0]["function"]["name"] == "run"
    path, told = wrote("sft", data, tmp_path, arguments=Arguments.STRING)
    assert told["rows"] == 3
    assert lines(path)[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"cmd": "ls"}'


def test_text_exports_keep_unrewarded_rows_where_told(make_data: MakeData, tmp_path: Path) -> None:
    path, told = wrote("messages", make_data(*two_sessions()), tmp_path, unrewarded=True)
    assert told["left_out"] == {"eval": 1}
    assert [line["reward"] for line in lines(path)] == [1.0, 1.0, 0.0, None, None]


def test_groups_without_anything_to_compare_are_left_out(make_data: MakeData, tmp_path: Path) -> None:
    """Field case 170."""
    samples = [a_sample("s0"), a_sample("s1", group_id="h"), a_sample("s2", group_id="h")]
    sessions = [a_session("s0", 1.0), a_session("s1", 1.0, group_id="h"), a_session("s2", 1.0, group_id="h")]
    data = make_data(samples, sessions)
    assert wrote("verl", data, tmp_path)[1]["left_out"] == {"fewer_than_two": 1}
    with pytest.raises(Untrainable, match="1 fewer_than_two, 2 no_spread") as error:
        wrote("tinker", data, tmp_path)
    assert "--group-size" in error.value.hint


def test_a_null_under_mask_1_ends_the_export_before_a_file_is_there(make_data: MakeData, tmp_path: Path) -> None:
    """Field case 147."""
    broken = a_sample("s0", rollout_log_probs=np.full(4, np.nan, np.float32))
    data = make_data([broken], [a_session("s0", 1.0)])
    with pytest.raises(Untrainable, match="row s0-0 of run r"):
        wrote("sft-tokens", data, tmp_path)
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"to": "vrel"}, "choose one of: verl, trl"),
        ({"runs": ("nope",)}, "it has: r"),
        ({"set_name": "mine"}, "it has: default"),
        ({"unrewarded": True}, "leave --unrewarded away"),
        ({"kinds": ("mian",)}, "use some of main"),
        ({"set_name": "default", "max_tokens": 4}, "give your recipe a name of its own"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    changes: dict[str, Any], said: str, make_data: MakeData, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"to": "verl", "data": make_data(*two_sessions()), "out": tmp_path / "x", **changes}
    with pytest.raises(BadInput) as error:
        export(ExportConfig(**config))
    assert said in error.value.hint


def test_a_damaged_file_is_named(make_data: MakeData, tmp_path: Path) -> None:
    """Field case 184: it ends the export and not the process; other runs can be exported."""
    data = make_data(
        [a_sample("s0"), a_sample("s1"), a_sample("x0", run_id="x")],
        [a_session("s0", 1.0), a_session("s1", 0.0), a_session("x0", 1.0, run_id="x")],
    )
    bad = run_dir(table_dir(data, "samples", "default"), "x") / "part-0.parquet"
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"part-0\.parquet cannot be read"):
        wrote("verl", data, tmp_path)
    assert wrote("verl", data, tmp_path, runs=("r",))[1]["rows"] == 2


def test_a_recipe_of_ones_own_is_derived_stored_and_named(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit)
    kit.close()
    decoder = Decoder(tmp_path)
    decoder.catch_up()
    decoder.close()
    whole, told = wrote("sft-tokens", tmp_path, tmp_path)
    longest = max(map(len, pq.read_table(whole)["input_ids"].to_pylist()))
    path, told = wrote("sft-tokens", tmp_path, tmp_path, max_tokens=60, set_name="short")
    rows = pq.read_table(path)["input_ids"].to_pylist()
    assert max(map(len, rows)) <= 60 < longest
    assert told["set"] == "short"
    assert told["recipe"]["max_tokens"] == 60
    stored = list(Dataset(tmp_path).samples(recipe="short"))
    assert {len(s.prompt_ids) + len(s.response_ids) for s in stored} >= set(map(len, rows))
    again, _ = wrote("sft-tokens", tmp_path, tmp_path, set_name="short")
    assert pq.read_table(again)["input_ids"].to_pylist() == rows
    with pytest.raises(BadInput, match="made by another recipe named 'short'"):
        wrote("sft-tokens", tmp_path, tmp_path, max_tokens=50, set_name="short")
    unnamed = wrote("sft-tokens", tmp_path, tmp_path, max_tokens=50)[1]["set"]
    assert unnamed.startswith("custom-")


def test_the_command_line(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data(*two_sessions())
    out = tmp_path / "there"
    out.mkdir()
    done = CliRunner().invoke(build(), ["export", "r", "--to", "sft", "--data", str(data), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "3 rows of 2 sessions, 6 trained tokens; left out: 1 eval, 1 reward_null, 1 reward_pending" in done.output
    assert "sft-tokens keeps them" in done.output
    assert len(lines(out / "export.jsonl")) == 3


def test_an_account_in_one_line(make_data: MakeData, tmp_path: Path) -> None:
    report = export(ExportConfig(to="slime", data=make_data(*two_sessions()), out=tmp_path / "s.jsonl"))
    assert account(report).startswith("3 rows of 2 sessions")
    first, second, third = lines(report.path)
    assert first["rollout_id"] == second["rollout_id"] != third["rollout_id"]
    assert first["group_index"] == third["group_index"] == 0
    assert first["weight_versions"] == ["3", "4"]
    assert len(first["loss_mask"]) == len(first["rollout_log_probs"]) == first["response_length"] == 3
    assert len(first["tokens"]) == 6


def test_images_go_with_their_rows_where_there_is_a_place_for_them(make_data: MakeData, tmp_path: Path) -> None:
    """Field case 151: files by path beside the ids, a URL or a mark in text; left out where neither is known."""
    picture = b"a picture"
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(picture).decode()}"}}
    samples, sessions = two_sessions()
    store = MediaStore(tmp_path / "data")
    told = f"forge-media:sha256:{sha256(picture).hexdigest()}"
    messages = [
        {"role": "user", "content": [shown, {"type": "text", "text": told}]},
        {"role": "assistant", "content": "a"},
    ]
    text = store.take(msgspec.json.encode(messages)).body.decode()
    samples = [replace(each, messages=text, media=media_of(text)) for each in samples]
    data = make_data(samples, sessions)
    file = store.path(sha256(picture).hexdigest())
    for to in ("verl", "trl"):
        rows = pq.read_table(wrote(to, data, tmp_path)[0]).to_pylist()
        assert [row["images"] for row in rows] == [[str(file)]] * 3
    assert Path(rows[0]["images"][0]).read_bytes() == picture
    assert json.loads(rows[0]["prompt"])[0]["content"][0]["image_url"]["url"] == file.as_uri()
    (first, *_) = lines(wrote("messages", data, tmp_path)[0])
    assert first["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": file.as_uri()}},
        {"type": "text", "text": told},
    ]
    (first, *_) = lines(wrote("sft", data, tmp_path)[0])
    assert first["messages"][0]["content"] == [{"type": "image"}, {"type": "text", "text": told}]
    assert first["images"] == [str(file)]
    with pytest.raises(Untrainable, match="5 media"):
        wrote("slime", data, tmp_path)
    file.unlink()
    elsewhere = text.replace(f"data:image/png;base64,{told}", "https://a/b.png")
    data = make_data([replace(each, messages=elsewhere, media=media_of(elsewhere)) for each in samples], sessions)
    with pytest.raises(Untrainable, match="5 media"):
        wrote("verl", data, tmp_path)
