"""``forge show`` and ``forge stats``, and what they make of files and names that are wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.tree import Tree
from typer.testing import CliRunner, Result

from forge.cli import build
from forge.session_tree import session_tree
from forge.storage.errors import BadInput
from forge.storage.parts import parts_in, read_part, run_dir, table_dir, write_part
from forge.storage.records import Call
from forge.storage.rows import deltas
from tests.verify.made import RUN, call, conversation, place, session, untrainable, write


def forge(*words: object) -> Result:
    return CliRunner().invoke(build(), [str(word) for word in words])


def drawn(tree: Tree, width: int = 200) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(tree)
    return out.getvalue().splitlines()


def test_a_long_session_is_a_few_lines() -> None:
    lines = drawn(session_tree(session("s"), conversation("s", 400)))
    assert len(lines) < 12
    (folded,) = [line for line in lines if "straight on" in line]
    assert "#1 ... #398: 398 calls straight on, 1,194 tokens sampled" in folded
    assert any("#399" in line for line in lines)


def test_the_tree_names_kinds_joins_and_causes() -> None:
    main = conversation("s", 8)
    odd = replace(main[4], kind="subagent")
    other = call("s", 8, [1, 2, 3], [4], kind="title", messages='[{"role":"user","content":"elsewhere"}]')
    again = call("s", 9, main[2].prompt_ids.tolist(), [90, 91], status="error", error="broke [off]", response=None)
    bare = call("s", 10, [], [5, 6])
    lines = drawn(session_tree(session("s"), [*main[:4], odd, *main[5:], other, untrainable(again, "status"), bare]))
    text = "\n".join(lines)
    assert "#0 s-0 root: ok, 5 -> 3 tokens, version 1" in text
    assert "#4 s-4 continues #3 subagent: ok" in text
    assert "#8 s-8 root title: ok" in text
    assert "#9 s-9 continues #1: error" in text
    assert "not trainable: status" in text
    assert "broke [off]" in text
    assert "#10 s-10 no prompt ids" in text
    depth = {name: next(line.index(f"#{name} ") for line in lines if f"#{name} " in line) for name in (2, 5, 9)}
    assert depth[2] == depth[5] < depth[9]


def test_the_tree_names_what_a_call_is_the_first_to_see() -> None:
    seen = [{"sha256": f"{n}" * 64, "mime": "image/png", "message": n, "part": 0} for n in (1, 2)]
    seen.append({"sha256": None, "mime": None, "message": 3, "part": 0, "url": "https://a/b[1].png"})
    calls = [
        replace(each, media=json.dumps(seen[: 1 + (n > 3) + (n > 5)])) for n, each in enumerate(conversation("s", 8))
    ]
    lines = drawn(session_tree(session("s"), calls))
    files = [line.split("sees ")[1] for line in lines if "sees " in line]
    assert files == ["image/png media/" + "1" * 64, "image/png media/" + "2" * 64, "https://a/b[1].png"]


def test_rewinds_do_not_nest_without_end() -> None:
    main = conversation("s", 100)
    retries = [
        call("s", 100 + n, each.prompt_ids.tolist(), [9_000_000 + n]) for n, each in enumerate(main) if n % 2 == 0
    ]
    lines = drawn(session_tree(session("s"), [*main, *retries]), width=400)
    assert max(line.index("#") for line in lines if "#" in line) < 20


def test_stats_count_what_is_there(tmp_path: Path) -> None:
    """Field case 169: rows per session among them."""
    failed = untrainable(call("b", 9, [7], [], status="error", output_log_probs=np.empty(0, np.float32)), "status")
    retokenized = call("b", 5, [1, 2], [3, 4], kind="title")
    write(tmp_path, {"a": conversation("a", 3), "b": [*conversation("b", 2), retokenized, failed]})
    told = json.loads(forge("stats", RUN, "--data", tmp_path, "--json").stdout)
    assert (told["sessions"], told["calls"], told["rows"]) == (2, 7, 2)
    assert told["by_kind"] == {"main": {"ok": 5, "error": 1}, "title": {"ok": 1}}
    assert told["joins"]["exact"] == 3
    assert told["untrainable"] == {"status": 1}
    assert (told["output_tokens"], told["trainable_tokens"], told["trained_tokens"]) == (17, 17, 15)
    assert told["trainable_share"] == pytest.approx(15 / 17)
    assert told["rewards"] == {"graded": 2}
    assert told["reward_mean"] == 1.0
    assert told["rows_per_session"] == {"1": 2}
    assert told["prompt_tokens"] == 5 + 10 + 15 + 5 + 10 + 2 + 1
    assert told["reused_tokens"] == 8 + 13 + 8
    table = forge("stats", RUN, "--data", tmp_path).stdout
    assert "main 6 (error 1), title 1" in table
    assert "88.2% of the output" in table


def test_tokens_are_ids_where_no_tokenizer_is_known(tmp_path: Path) -> None:
    calls = conversation("a", 2)
    write(tmp_path, {"a": calls})
    rows = forge("show", "a", "--tokens", "--data", tmp_path)
    assert "row 0 of 1: root, 2 turns, 6 of 8 ids trained" in rows.stdout
    assert "give --model DIRECTORY" in rows.stdout
    one = forge("show", "a", "--tokens", "1", "--data", tmp_path).stdout
    assert f"{calls[1].output_ids[0]} " in one
    assert "call a-1: 10 -> 3 tokens" in one
    wrong = forge("show", "a", "--tokens", "7x", "--data", tmp_path)
    assert isinstance(wrong.exception, BadInput)
    assert "no call '7x' in session a, which has 2" in str(wrong.exception)


@pytest.mark.model
def test_tokens_read_as_text_coloured_by_log_prob_and_mask() -> None:
    from forge.policy.model import ensure_model
    from forge.policy.template import Text as Reader
    from forge.token_view import lines

    read = Reader(ensure_model())
    prompt, output = read.encode("Say hi" * 200), read.encode("Hi 🦉!")
    log_probs = np.linspace(-4, 0, len(output), dtype=np.float32)
    one = call("s", 0, prompt, output, output_log_probs=log_probs)
    *_, shown = lines(session("s"), [one], "0", read)
    assert shown.plain.endswith("Hi 🦉!")
    assert f"[... {len(prompt) - 200:,} ids ...]" in shown.plain
    styles = [str(span.style) for span in shown.spans]
    assert styles[0] == "dim"
    assert styles[1] == "red underline"
    assert styles[-1] == "green underline"
    *_, row = lines(session("s"), [one], None, read)
    assert row.plain == shown.plain
    *_, off = lines(session("s"), [untrainable(one, "constrained")], "0", read)
    assert not any("underline" in str(span.style) for span in off.spans)


def foreign(data: Path) -> list[Path]:
    """A Parquet file of someone else's and one that is none, between the good ones."""
    (good,) = parts_in(table_dir(data, "calls"))
    stranger, broken = good.with_name("a.parquet"), good.with_name("b.parquet")
    pq.write_table(pq.read_table(good).replace_schema_metadata({}), stranger)
    broken.write_bytes(b"PAR1 no more")
    return [stranger, broken]


@pytest.mark.parametrize(
    "words", [["sessions"], ["show", "a"], ["show", "a", "--tokens"], ["stats", RUN], ["stats", RUN, "--json"]]
)
def test_files_that_cannot_be_read_are_named_and_hide_nothing(tmp_path: Path, words: Sequence[str]) -> None:
    write(tmp_path, {"a": conversation("a", 2)})
    bad = foreign(tmp_path)
    done = forge(*words, "--data", tmp_path)
    assert done.exit_code == 0, done.exception
    assert done.stdout
    for path in bad:
        assert done.stderr.count(str(path)) == 1
    assert "next: forge decode --rebuild" in done.stderr


def test_a_newer_schema_is_named_by_every_reader(tmp_path: Path) -> None:
    write(tmp_path, {"a": conversation("a", 1)})
    newer = run_dir(table_dir(tmp_path, "sessions"), RUN) / place(9)
    (good,) = parts_in(table_dir(tmp_path, "sessions"))
    pq.write_table(pq.read_table(good).replace_schema_metadata({"forge.schema_version": "99"}), newer)
    done = forge("sessions", "--data", tmp_path)
    assert "a" in done.stdout
    assert f"{newer} has schema version 99; this forge reads up to" in done.stderr


@pytest.mark.parametrize("words", [["stats", "nope"], ["sessions", "--run", "nope"]])
def test_a_run_that_does_not_exist(tmp_path: Path, words: Sequence[str]) -> None:
    write(tmp_path, {"a": conversation("a", 1)})
    done = forge(*words, "--data", tmp_path)
    assert isinstance(done.exception, BadInput)
    assert "'nope'" in done.exception.message
    assert done.exception.hint == f"runs there: {RUN}"


def test_a_dangling_parent_names_the_row(tmp_path: Path) -> None:
    calls: list[Call] = conversation("a", 2)
    write(tmp_path, {"a": calls})
    (part,) = parts_in(table_dir(tmp_path, "calls"))
    write_part(part, "calls", deltas(read_part(part, "calls"))[1:])
    done = forge("show", "a", "--data", tmp_path)
    assert "call a-1 (choice 0)" in str(done.exception)
    assert "builds on call a-0" in str(done.exception)
