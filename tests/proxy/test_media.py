"""Pictures on a call's path: the engine gets them as they came, the record has each once, and joins look at them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from forge.proxy.recording.assembly import ClosedCall
from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from forge.storage.frames import Close, Open
from forge.storage.media import MediaStore, references
from forge.storage.records import Call, Session
from forge.storage.samples import samples_of
from forge.storage.trajectory import EXACT
from tests.engine import Turn
from tests.proxy.serving import calls, serving
from tests.proxy.wires import WIRES, request

Json = dict[str, Any]
PICTURES = [os.urandom(100_000) for _ in range(2)]
SHAS = [hashlib.sha256(picture).hexdigest() for picture in PICTURES]
TEXTS = [base64.b64encode(picture).decode() for picture in PICTURES]
URLS = [f"data:image/png;base64,{text}" for text in TEXTS]


def shown(url: str) -> Json:
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "see"}],
    }


def asked(wire: str, text: str) -> tuple[str, Json]:
    """A request of each wire format that shows a picture."""
    path, body = request(wire, stream=False)
    url = f"data:image/png;base64,{text}"
    source = {"type": "base64", "media_type": "image/png", "data": text}
    content: dict[str, Any] = {
        "chat": {"messages": [shown(url)]},
        "responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        "messages": {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
        "gemini": {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": text}}]}]},
    }
    return path, body | content[wire]


@pytest.mark.parametrize("text", [TEXTS[0], base64.urlsafe_b64encode(PICTURES[0]).decode(), TEXTS[0] + "\n"],
                         ids=["standard", "for URLs", "odd"])  # fmt: skip
@pytest.mark.parametrize("wire", WIRES)
async def test_a_request_with_a_picture_is_recorded_to_the_byte(tmp_path: Path, wire: str, text: str) -> None:
    """Field case 151: what the prompt shows is known by content, however its base64 is spelled."""
    path, body = asked(wire, text)
    raw = json.dumps(body, indent=1).encode()
    async with serving(tmp_path) as s:
        async with s.http.post(s.proxy.deps.base_url + path, data=raw) as answer:
            assert answer.status == 200
        (entry,) = [entry for entry in s.entries() if isinstance(entry.frame, Open)]
        (served,) = s.engine.served
    store = MediaStore(s.data)
    recorded = ClosedCall(entry.frame, entry.blobs, b"", Close(call_id=entry.frame.call_id, status="ok"))
    assert store.whole(recorded.request) == raw
    assert store.whole(recorded.sent) == served.body
    (row,) = calls(s.data)
    assert wire == "chat" or store.whole(row.request_raw or b"") == raw
    assert json.loads(store.whole(row.messages.encode())) == served.json["messages"]
    (medium,) = json.loads(row.media or "[]")
    assert (medium["sha256"], medium["mime"]) == (SHAS[0], "image/png")
    part = served.json["messages"][medium["message"]]["content"][medium["part"]]
    assert part["type"] == "image_url"
    assert store.path(SHAS[0]).read_bytes() == PICTURES[0]
    if text == TEXTS[0]:
        assert len(entry.blobs) < 4_000


async def ask(s: Any, key: str, messages: list[Json], reply: str) -> list[Json]:
    s.engine.script(Turn(reply))
    async with s.chat(messages, key=key) as answer:
        said = (await answer.json())["choices"][0]["message"]
    return [*messages, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "go on"}]


def rows_in(data: Path) -> list[Call]:
    decoder = Decoder(data)
    try:
        decoder.catch_up()
    finally:
        decoder.close()
    return list(Dataset(data).calls())


async def test_a_picture_of_a_hundred_calls_is_stored_once(tmp_path: Path) -> None:
    """Field case 49, of media: journal and dataset grow with what is new."""
    turns = 100
    async with serving(tmp_path) as s:
        key = (await s.control.open_session()).api_key
        messages = [shown(URLS[0]), shown(URLS[1])]
        for turn in range(turns):
            messages = await ask(s, key, messages, f"reply {turn}")
            assert len(s.engine.served[-1].body) > len(TEXTS[0]) + len(TEXTS[1])
    rows = rows_in(s.data)
    assert [row.join for row in rows] == ["none"] + [EXACT] * (turns - 1)
    assert [len(json.loads(row.media or "[]")) for row in rows] == [2] * turns
    files = {path: path.stat().st_size for path in s.data.rglob("*") if path.is_file()}
    stored = {path.name: size for path, size in files.items() if path.parent.name == "media"}
    assert stored == dict.fromkeys(SHAS, len(PICTURES[0]))
    parts = sum(size for path, size in files.items() if path.suffix == ".parquet")
    assert parts < len(PICTURES[0]), "the dataset holds none of it"
    whole = sum(len(served.body) for served in s.engine.served)
    assert sum(files.values()) < whole / 5
    assert references(s.data, "run") == set(SHAS)
    assert references(s.data, "another") == set()


@pytest.mark.parametrize(
    ("then", "join", "cause"),
    [(0, EXACT, None), (1, "none", "edited")],
    ids=["the same picture", "one of its size in its place"],
)
async def test_a_picture_swapped_in_place_ends_the_exact_history(
    tmp_path: Path, then: int, join: str, cause: str | None
) -> None:
    """Field case 151: the ids are the same, what the model saw is not."""
    async with serving(tmp_path) as s:
        key = (await s.control.open_session()).api_key
        messages = await ask(s, key, [shown(URLS[0])], "one")
        await ask(s, key, [shown(URLS[then]), *messages[1:]], "two")
        first, second = (served.prompt_ids + served.output_ids for served in s.engine.served)
    assert second[: len(first)] == first
    rows = rows_in(s.data)
    assert [(row.join, row.join_cause) for row in rows] == [("none", "root"), (join, cause)]
    session = Session(session_id=rows[0].session_id, run_id="run", reward=1.0, reward_status="graded")
    samples = samples_of(session, rows)
    assert [[m["sha256"] for m in json.loads(sample.media or "[]")] for sample in samples] == (
        [[SHAS[0]]] if then == 0 else [[SHAS[0]], [SHAS[1]]]
    )


async def test_no_call_is_accepted_whose_picture_cannot_be_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        folder = s.data / "media"
        folder.write_text("in the way")
        async with s.chat([shown(URLS[0])]) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "recorder_unavailable"
        async with s.chat() as answer:
            assert answer.status == 200, "others are"
        folder.unlink()
        async with s.chat([shown(URLS[0])]) as answer:
            assert answer.status == 200
        assert len(s.engine.served) == len(s.frames(Open)) == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_words_like_a_reference_are_words(tmp_path: Path, wire: str) -> None:
    """A reference that a harness or a model writes names nothing, however it is written."""
    own = f"forge-media:sha256:{SHAS[0]}"
    path, body = request(wire, stream=False)
    raw = json.dumps(body).replace("hello", f"{own} forge-media:~sha256:{SHAS[0]}").encode()
    async with serving(tmp_path) as s:
        s.engine.script(Turn(own))
        async with s.http.post(s.proxy.deps.base_url + path, data=raw) as answer:
            assert own in await answer.text()
    (row,) = calls(s.data)
    store = MediaStore(s.data)
    assert row.media is None
    assert references(s.data, "run") == set()
    assert own in store.whole(row.messages.encode()).decode()
    assert json.loads(store.whole((row.response or "").encode()))["content"] == own
    assert wire == "chat" or store.whole(row.request_raw or b"") == raw


async def test_a_trainer_elsewhere_gets_media_from_the_control_plane(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        async with s.chat([shown(URLS[0])], key=ticket.api_key) as answer:
            assert answer.status == 200
        closed = await s.control.close_session(ticket.session_id, reward=1.0)
        (medium,) = json.loads(closed.samples[0].media or "[]")
        assert await s.control.media(medium["sha256"]) == PICTURES[0]
        for name in (SHAS[1], "../secret", "0"):
            with pytest.raises(BadInput):
                await s.control.media(name)
        async with s.http.get(f"{s.proxy.control_url}/media/{SHAS[0]}") as answer:
            assert answer.status == 401
