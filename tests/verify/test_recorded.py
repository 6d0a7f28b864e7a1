"""What ``forge verify`` finds without a model: each fault is seeded into real parts or a real journal's dataset."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from forge.cli import build
from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Exit
from forge.storage.media import MediaStore
from forge.storage.media_list import media_of
from forge.storage.parts import parts_in, table_dir
from forge.storage.records import Call
from forge.storage.seal import seal
from forge.verify import text
from forge.verify.audit import audit, recorded
from forge.verify.report import Kind, Level, Report, Thresholds
from tests.storage.frames_kit import Kit, story
from tests.verify.made import RUN, call, conversation, untrainable, write

Rows = list[dict[str, Any]]


def forge(*words: object) -> Result:
    return CliRunner().invoke(build(), [str(word) for word in words])


def whole(data: Path, run: str = RUN) -> Report:
    return asyncio.run(audit(Dataset(data), run, None, size=8, limits=Thresholds()))


def kinds(report: Report, level: Level = Level.FAIL) -> set[Kind]:
    return {finding.kind for finding in report.findings if finding.level is level}


def edit(data: Path, table: str, change: Callable[[Rows], Rows], recipe: str | None = None) -> None:
    """Rewrites every part of a table, as something that went wrong in it would have."""
    for part in parts_in(table_dir(data, table, recipe)):
        found = pq.ParquetFile(part).read()
        pq.write_table(pa.Table.from_pylist(change(found.to_pylist()), schema=found.schema), part)
        seal(part)


def edit_samples(data: Path, change: Callable[[Rows], Rows]) -> None:
    edit(data, "samples", change, "default")


def each(change: Callable[[dict[str, Any]], None]) -> Callable[[Rows], Rows]:
    def run(rows: Rows) -> Rows:
        for row in rows:
            change(row)
        return rows

    return run


@pytest.fixture
def good(tmp_path: Path) -> Path:
    retry = call("b", 5, conversation("b", 2)[1].prompt_ids.tolist(), [77, 78], retry_of="b-1", start_us=9_000_000)
    title = call("b", 6, [5, 6, 7], [8, 9], kind="title")
    failed = untrainable(call("b", 7, [5], [], status="error", completion_tokens=0), "status")
    write(tmp_path, {"a": conversation("a", 4), "b": [*conversation("b", 2), retry, title, failed]})
    return tmp_path


@pytest.fixture
def journalled(tmp_path: Path) -> Path:
    """A dataset as the decoder made it, with its journal."""
    kit = Kit(tmp_path, run_id=RUN)
    story(kit)
    kit.close()
    decoder = Decoder(tmp_path)
    try:
        decoder.catch_up()
    finally:
        decoder.close()
    return tmp_path


def test_a_sound_run_holds(good: Path) -> None:
    report = whole(good)
    assert report.findings == []
    assert not recorded(Dataset(good), RUN).failed
    done = forge("verify", RUN, "--data", good)
    assert done.exit_code == Exit.OK
    assert "verdict: ok" in done.stdout
    assert "nothing was scored again" in done.stdout


def test_media_that_are_gone_or_damaged_are_told(tmp_path: Path) -> None:
    picture = b"\x89PNG picture"
    shown = {"url": f"data:image/png;base64,{b64encode(picture).decode()}"}
    said = json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": shown}]}])
    store = MediaStore(tmp_path)
    messages = store.take(said.encode()).body.decode()
    calls = [replace(each, messages=messages, media=media_of(messages)) for each in conversation("a", 3)]
    write(tmp_path, {"a": calls})
    assert kinds(whole(tmp_path)) == set()
    path = store.path(sha256(picture).hexdigest())
    path.write_bytes(b"another")
    (damaged,) = whole(tmp_path).findings
    path.unlink()
    (gone,) = whole(tmp_path).findings
    for told in (damaged, gone):
        assert (told.kind, told.level, told.count) == (Kind.MEDIA, Level.FAIL, 1)
        assert path.name in told.where[0]
        assert told.where[0].startswith("a-0"), "the call that showed it first"


def test_a_journal_and_its_dataset_agree(journalled: Path) -> None:
    report = whole(journalled)
    assert kinds(report) == set()
    assert report.opens == report.stats.calls == 13
    assert "journal" not in " ".join(report.notes)


def test_a_run_that_is_still_recorded_has_no_gaps(tmp_path: Path) -> None:
    kit = Kit(tmp_path, run_id=RUN)
    story(kit)
    kit.call("s00100000000")
    decoder = Decoder(tmp_path)
    decoder.catch_up()
    decoder.close()
    kit.begin("s00100000000", kit.next_turn("s00100000000"))
    report = whole(tmp_path)
    kit.close()
    assert Kind.GAP not in kinds(report)
    assert any("2 accepted calls are not decoded yet" in note for note in report.notes)


def test_a_run_that_grows_while_it_is_read_has_no_faults(tmp_path: Path) -> None:
    """Parts, the journal and its checkpoint move on between any two looks at them."""

    def record() -> None:
        kit = Kit(tmp_path, run_id=RUN)
        decoder = Decoder(tmp_path)
        for number in range(25):
            kit.open_session(f"s{number}")
            kit.call(f"s{number}", parent=kit.call(f"s{number}"))
            kit.close_session(f"s{number}", reward=1.0)
            kit.cut()
            decoder.catch_up()
        decoder.close()
        kit.close()

    with ThreadPoolExecutor(1) as recorder:
        done = recorder.submit(record)
        looks = 0
        while not done.done() or looks == 0:
            if Dataset(tmp_path).runs():
                assert whole(tmp_path).findings == []
                looks += 1
        done.result()
    assert looks > 1
    assert whole(tmp_path).stats.calls == 50


def test_a_lost_call(journalled: Path) -> None:
    """Field case 130: its frames are in the journal and its row is gone."""
    edit(journalled, "calls", lambda rows: rows[:-1] if rows[-1]["call_id"].endswith("13") else rows)
    report = whole(journalled)
    assert Kind.GAP in kinds(report)
    (gap,) = [finding for finding in report.findings if finding.kind is Kind.GAP]
    assert gap.where == ("c00001000013",)


def test_a_lost_call_that_only_the_harness_knows(good: Path) -> None:
    folder = good / "harness" / RUN / "a"
    folder.mkdir(parents=True)
    told = {"verdict": "differs", "heard": 5, "recorded": 4}
    lost = {"kind": "unrecorded", "call_id": None, "text": "the harness counts a call of 9 + 3 tokens that has no row"}
    (folder / "transcript.json").write_text(json.dumps(told | {"differences": [lost]}))
    for report in (whole(good), recorded(Dataset(good), RUN)):
        assert kinds(report) == {Kind.TRANSCRIPT}
        assert report.transcripts == {"differs": 1}
        assert "a (the harness counts a call of 9 + 3 tokens" in report.findings[0].where[0]


def test_swapped_sessions_against_the_harness_s_own_record(tmp_path: Path) -> None:
    """Consistent everywhere but in what the harness wrote: read again, not from the verdict of that day."""
    calls = {name: conversation(name, turns) for name, turns in (("a", 2), ("b", 3))}
    write(tmp_path, calls)
    for name, other in (("a", "b"), ("b", "a")):
        folder = tmp_path / "harness" / RUN / name / "transcript" / ".pi" / "agent" / "sessions"
        folder.mkdir(parents=True)
        lines = [
            {"type": "message", "message": {"role": "assistant", "usage": {"input": len(c.prompt_ids), "output": 3}}}
            for c in calls[other]
        ]
        (folder / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder.parents[3] / "transcript.json").write_text('{"verdict":"ok","differences":[]}')
    report = whole(tmp_path)
    assert Kind.TRANSCRIPT in kinds(report)
    assert report.transcripts == {"differs": 2}


def test_swapped_sessions_in_the_training_rows(good: Path) -> None:
    other = {"a": "b", "b": "a"}
    edit_samples(good, each(lambda row: row.update(session_id=other[row["session_id"]])))
    assert kinds(recorded(Dataset(good), RUN)) == {Kind.SESSION}


def test_swapped_sessions_against_the_journal(journalled: Path) -> None:
    names = {"s00100000000": "s00100000001", "s00100000001": "s00100000000"}
    swap = each(lambda row: row.update(session_id=names.get(row["session_id"], row["session_id"])))
    edit(journalled, "calls", swap)
    edit_samples(journalled, swap)
    found = [f for f in whole(journalled).findings if f.kind is Kind.SESSION]
    assert [f.text for f in found] == ["calls stand under another session than they were accepted for"]


def test_swapped_rewards_against_the_journal(journalled: Path) -> None:
    rewards = {"s00100000000": 0.5, "s00100000002": 0.0}

    def swap(row: dict[str, Any]) -> None:
        if row["session_id"] in rewards and row["reward_status"] == "graded":
            row["reward"] = rewards[row["session_id"]]

    edit(journalled, "sessions", each(swap))
    found = [f for f in whole(journalled).findings if f.kind is Kind.SESSION]
    assert [(f.text, f.where) for f in found] == [
        ("sessions are not what the journal last said of them", tuple(rewards))
    ]


def test_calls_of_no_session_and_calls_outside_its_time(good: Path) -> None:
    edit(good, "sessions", lambda rows: [row for row in rows if row["session_id"] == "a"])
    assert kinds(whole(good)) == {Kind.SESSION}
    edit(good, "sessions", each(lambda row: row.update(close_time=row["open_time"])))
    texts = {f.text for f in whole(good).findings}
    assert "calls stand under a session that was not open when they were made" not in texts  # 5 s of slack
    edit(good, "sessions", each(lambda row: row.update(open_time=row["open_time"].replace(year=2020))))
    assert "calls stand under a session that was not open when they were made" in {f.text for f in whole(good).findings}


@pytest.mark.parametrize("column", ["response_ids", "rollout_log_probs"])
def test_shifted_ids_in_the_training_rows(good: Path, column: str) -> None:
    edit_samples(good, each(lambda row: row.update({column: [*row[column][1:], row[column][0]]})))
    assert kinds(recorded(Dataset(good), RUN)) == {Kind.ROWS}


def test_shifted_ids_in_the_calls(good: Path) -> None:
    edit(good, "calls", each(lambda row: row.update(output_ids=row["output_ids"][1:] + row["output_ids"][:1])))
    assert Kind.ROWS in kinds(recorded(Dataset(good), RUN))
    report = whole(good)
    assert {Kind.ROWS, Kind.PROMPT} <= kinds(report)
    (prompt,) = [f for f in report.findings if f.kind is Kind.PROMPT]
    assert "call a-1 (choice 0) in " in prompt.text


def test_a_context_that_the_model_did_not_see(good: Path) -> None:
    """Field case 163."""
    edit_samples(good, each(lambda row: row.update(prompt_ids=[*row["prompt_ids"][:-1], 4_000])))
    assert kinds(recorded(Dataset(good), RUN)) == {Kind.ROWS}


def test_a_reply_that_two_rows_train(good: Path) -> None:
    edit_samples(good, lambda rows: rows + rows)
    assert "calls are trained by more than one row" in {f.text for f in recorded(Dataset(good), RUN).findings}


def test_padded_log_probs(tmp_path: Path) -> None:
    """Field cases 142, 147."""
    zeros, some = conversation("a", 1, tokens=20), conversation("b", 1, tokens=40)
    zeros[0].output_log_probs[:] = 0
    some[0].output_log_probs[10:30] = 0
    write(tmp_path, {"a": zeros, "b": some})
    report = whole(tmp_path)
    assert [(f.kind, f.level, f.where) for f in report.findings] == [
        (Kind.PADDED, Level.FAIL, ("a-0",)),
        (Kind.PADDED, Level.WARN, ("b-0",)),
    ]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"completion_tokens": 9}, Kind.LENGTHS),
        ({"prompt_tokens": 9}, Kind.LENGTHS),
        ({"output_log_probs": np.asarray([-1, np.nan, -1], np.float32)}, Kind.LOG_PROBS),
        ({"output_log_probs": np.asarray([-1, 0.5, -1], np.float32)}, Kind.LOG_PROBS),
        ({"output_log_probs": np.asarray([-1, -1], np.float32)}, Kind.LENGTHS),
    ],
)
def test_what_a_trainable_call_must_have(tmp_path: Path, wrong: dict[str, Any], kind: Kind) -> None:
    """Field cases 125, 149: dropped tool tokens among them: the engine counted more than the ids that it gave."""
    write(tmp_path, {"a": [replace(conversation("a", 1)[0], **wrong)]})
    assert kind in kinds(whole(tmp_path))
    write(tmp_path, {"a": [untrainable(replace(conversation("a", 1)[0], **wrong), "length_mismatch")]})
    report = whole(tmp_path)
    assert not report.failed
    assert kinds(report, Level.WARN) == {Kind.LOST}


def test_a_row_twice_and_a_trainable_call_in_no_row(good: Path) -> None:
    edit(good, "calls", lambda rows: [*rows, rows[0]])
    assert Kind.TWICE in kinds(recorded(Dataset(good), RUN))
    edit_samples(good, lambda rows: rows[:1])
    missing = [f for f in whole(good).findings if f.kind is Kind.UNTRAINED]
    assert [f.where for f in missing] == [("b-0", "b-5")], "the retried call b-1 is left out on purpose"


def test_a_dangling_parent_and_a_damaged_file_are_findings(good: Path) -> None:
    edit(good, "calls", lambda rows: rows[1:])
    (part,) = parts_in(table_dir(good, "calls"))
    assert Kind.PROMPT in kinds(whole(good))
    part.with_name("zz.parquet").write_bytes(b"no parquet")
    report = whole(good)
    assert Kind.UNREADABLE in kinds(report)
    first, second, *_ = report.findings[0].where
    assert first.endswith(f"{part.with_name('zz.parquet')} is no whole Parquet file: its end is not one's")
    assert second.startswith(f"call a-1 (choice 0) in {part} builds on call a-0")


def test_the_verdict_is_an_exit_code_and_json(good: Path) -> None:
    edit_samples(good, each(lambda row: row.update(session_id="a")))
    done = forge("verify", RUN, "--data", good, "--json")
    assert done.exit_code == Exit.UNTRAINABLE
    told = json.loads(done.stdout)
    assert (told["verdict"], told["findings"][0]["kind"], told["findings"][0]["level"]) == ("fail", "session", "fail")
    assert told["thresholds"] == {"mean": 0.05, "p99": 0.5}
    assert told["stats"]["calls"] == 9
    page = forge("verify", RUN, "--data", good)
    assert "fail session: training rows hold calls of another session: b-0" in page.stdout
    assert "verdict: fail" in page.stdout


@pytest.mark.parametrize(("words", "said"), [((), "no run 'nope'"), (("--policy", "u", "--model", "m"), "both score")])
def test_bad_words(good: Path, words: Sequence[str], said: str) -> None:
    done = forge("verify", "nope", "--data", good, *words)
    assert isinstance(done.exception, BadInput)
    assert said in done.exception.message


def answer(content: str | None, *tools: tuple[str, str]) -> Call:
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in tools]
    return call("s", 0, [1], [2], response=json.dumps({"content": content, "tool_calls": calls}))


@pytest.mark.parametrize(
    ("said", "decoded", "lost"),
    [
        (answer("Hello you"), "<think>x</think>\n\nHello  you<|im_end|>", None),
        (answer("Hello you"), "Hello", "the text 'Hello you'"),
        (answer("a b", ("run", '{"cmd": "ls"}')), 'a <tool>{"name": "run", "arguments": {"cmd":"ls"}}</tool>b', None),
        (answer(None, ("run", '{"cmd": "ls"}')), "<|im_end|>", "a call of the tool 'run'"),
        (answer(None, ("run", '{"cmd": "echo \\"h\\u00e9\\""}')), r'<f=run><p=cmd>echo "hé"</p>', None),
        (answer(None, ("run", '{"cmd": "echo \\"hi\\"\\n"}')), r'{"name":"run","a":{"cmd":"echo \"hi\"\n"}}', None),
        (answer(None, ("f", '{"a": ["x", {"b": "gone"}]}')), 'f {"a": ["x"]}', "the argument 'gone' of the tool 'f'"),
        (answer("half \ufffd"), "half \ufffd", None),
        (answer("half ", ("run", "not JSON")), "half run", None),
    ],
)  # fmt: skip
def test_text_that_the_ids_do_not_hold(said: Call, decoded: str, lost: str | None) -> None:
    assert text.missing(said, decoded) == lost
