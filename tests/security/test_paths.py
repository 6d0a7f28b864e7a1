"""Names from outside never become a way out of the data directory, neither where it is written nor where it is read."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.config import ProxyConfig
from forge.proxy.door.routes import Kind, route
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from forge.storage.media import MediaStore, references
from forge.storage.names import check_name
from forge.storage.parts import parts_in, run_dir, run_of, runs_in, table_dir
from tests.proxy.serving import USER, serving
from tests.security.wire import CLOSE, LENGTH, port_of, request, said, statuses

CORPUS = (
    *(
        "..",
        ".",
        "../x",
        "../../etc/passwd",
        "..\\..\\x",
        "/etc/passwd",
        "//x",
        "a/../../b",
        "a/b",
        "a\\b",
        "C:\\x",
        "C:x",
    ),
    *(
        "%2e%2e%2f",
        "..%2f..%2fx",
        "%252e%252e%252f",
        "..;/x",
        "x;y",
        "x\0",
        "\0",
        "x\n",
        "\r",
        "",
        " ",
        " x",
        "x ",
        ".x",
    ),
    *(
        "~",
        "~root",
        "$HOME",
        "${HOME}",
        "`id`",
        "$(id)",
        "|id",
        "-rf",
        "--data",
        "*",
        "?",
        "[a]",
        "{a,b}",
        "a:b",
        "a=b",
    ),
    *("\u2024\u2024/", "\uff0e\uff0e/", "\u2025", "e\u0301", "\u202ex", "x" * 129, "x" * 5000, "file:///etc/passwd"),
)


@pytest.mark.parametrize("name", CORPUS)
def test_what_could_lead_elsewhere_is_no_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput):
        check_name("the run", name)
    with pytest.raises(BadInput):
        ProxyConfig(data=tmp_path, run_id=name)


@given(st.text(max_size=50) | st.sampled_from(CORPUS))
def test_a_folder_made_of_any_name_is_one_step_down_and_gives_the_name_back(name: str) -> None:
    """What is read by a name that was never checked (a row, an argument) still stays inside."""
    root = Path("/data")
    folder = run_dir(table_dir(root, "calls"), name)
    assert folder.parent == root / "calls"
    assert ".." not in folder.parts
    assert run_of(folder / "part.parquet") == name
    assert table_dir(root, "samples", name).parent == root / "samples"


async def test_no_request_makes_a_file_outside(tmp_path: Path) -> None:
    """As a run, a session, a path, a header, an id in a body: whatever is taken, the files stay where they belong."""
    outside = set(tmp_path.iterdir())
    async with serving(tmp_path) as s:
        headers = {"Authorization": f"Bearer {s.proxy.control_token}"}
        for name in CORPUS:
            with pytest.raises(BadInput):
                await s.control.open_session(run_id=name)
            where = quote(name, safe="")
            for path in (f"/sessions/{where}", f"/sessions/{where}/calls"):
                async with s.http.get(s.proxy.control_url + path, headers=headers) as answer:
                    assert answer.status in (400, 404), path
            line = f"POST /s/{where}/v1/chat/completions HTTP/1.1".encode()
            (status,) = statuses(await said(port_of(s.proxy.base_url), request(LENGTH, CLOSE, line=line)))
            assert 400 <= status < 500, name
            if name.isprintable() and name.isascii():
                told = {"session-id": name, "x-claude-code-agent-id": name, "user-agent": f"codex_exec/{name}"}
                body = {"messages": [USER], "model": name, "prompt_cache_key": name, "user": name}
                async with s.http.post(f"{s.proxy.base_url}/chat/completions", json=body, headers=told) as answer:
                    assert answer.status == 200, name
    assert set(tmp_path.iterdir()) - outside == {s.data}
    assert {path.name for path in s.data.iterdir()} <= {"journal", "secret", "control.token", "media"}


@given(st.text(max_size=40) | st.sampled_from([f"/s/{name}/v1/chat/completions" for name in CORPUS]))
def test_a_path_names_a_session_or_nothing(path: str) -> None:
    found = route(path)
    assert found.session_id is None or (found.session_id.isalnum() and found.session_id.isascii())
    assert found.kind in Kind


def test_a_part_that_is_a_link_is_none(tmp_path: Path) -> None:
    """Nobody who can write beside the parts can make a reader open another file of the owner's."""
    folder = run_dir(table_dir(tmp_path, "calls"), "r")
    folder.mkdir(parents=True)
    (tmp_path / "private.parquet").write_bytes(b"PAR1")
    (folder / "part-1.parquet").symlink_to(tmp_path / "private.parquet")
    (folder / "part-2.parquet").mkdir()
    assert parts_in(table_dir(tmp_path, "calls"), "r") == []
    assert runs_in(table_dir(tmp_path, "calls")) == ["r"]
    assert list(Dataset(tmp_path).calls()) == []


async def test_a_reference_that_a_request_makes_up_leads_to_no_file(tmp_path: Path) -> None:
    """A text that looks like a reference to media is text: it comes back as it was sent, and names no file."""
    forged = [f"forge-media:sha256:{'a' * 64}", "forge-media:sha256:../../secret", f"forge-media:~sha256:{'b' * 64}"]
    async with serving(tmp_path) as s:
        for text in forged:
            async with s.chat([{"role": "user", "content": text}]) as answer:
                assert answer.status == 200
            assert s.engine.served[-1].json["messages"][0]["content"] == text
        assert references(s.data, "run") == set()
    assert not list((s.data / "media").glob("*"))
    with pytest.raises(BadInput):
        MediaStore(s.data).read("../secret")
