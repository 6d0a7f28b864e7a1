"""Media by content: stored once, named by reference, and given back to the byte, whatever a body holds."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.storage.errors import BadInput
from forge.storage.journal import JournalFull
from forge.storage.media import MediaStore
from forge.storage.media_list import identities, media_of
from forge.storage.media_text import MARK, references

PICTURE = bytes(range(256)) * 3
SHA = hashlib.sha256(PICTURE).hexdigest()
STANDARD = base64.b64encode(PICTURE).decode()
FOR_URLS = base64.urlsafe_b64encode(PICTURE).decode()
OWN = f"forge-media:sha256:{SHA}"


def block(data: str, **members: Any) -> bytes:
    return json.dumps({"source": {"media_type": "image/png", "data": data, **members}}).encode()


BLOCKS = {
    "chat": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{STANDARD}"}},
    "chat sound": {"type": "input_audio", "input_audio": {"data": STANDARD, "format": "wav"}},
    "chat film": {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{STANDARD}"}},
    "chat file": {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{STANDARD}"},
    },
    "responses": {"type": "input_image", "detail": "auto", "image_url": f"data:image/jpeg;base64,{STANDARD}"},
    "responses file": {"type": "input_file", "filename": "a.pdf", "file_data": STANDARD},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": STANDARD}},
    "document": {"type": "document", "source": {"data": STANDARD, "media_type": "application/pdf", "type": "base64"}},
    "gemini": {"inlineData": {"mimeType": "image/png", "data": STANDARD}},
    "gemini in Python": {"inline_data": {"data": FOR_URLS, "mime_type": "image/png"}},
}


@pytest.mark.parametrize("name", list(BLOCKS))
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t: ")], ids=["tight", "usual", "wide"])
def test_every_formats_media_are_cut_out_and_given_back(tmp_path: Path, name: str, separators: tuple[str, str]) -> None:
    body = json.dumps({"content": [{"text": "see"}, BLOCKS[name], BLOCKS[name]]}, separators=separators).encode()
    store = MediaStore(tmp_path)
    taken = store.take(body)
    assert len(taken.body) < len(body) - len(STANDARD)
    assert references(taken.body) == {SHA}
    assert [(path.name, path.read_bytes()) for path in store.folder.iterdir()] == [(SHA, PICTURE)]
    assert store.whole(taken.body) == body
    assert taken.again(body) == taken.body


@pytest.mark.parametrize(
    "spelled",
    [STANDARD.rstrip("=")[:-1], STANDARD.replace("/", "\\/"), STANDARD[:8] + "\\n" + STANDARD[8:], STANDARD + "=", "a?",
     "AB==", "", "\\u0041" + STANDARD[1:]],
    ids=["not padded", "escaped", "broken into lines", "padded twice", "no base64", "loose bits", "empty", "by code"],
)  # fmt: skip
def test_what_would_not_be_spelled_the_same_again_stays_as_it_is(tmp_path: Path, spelled: str) -> None:
    body = block("?").replace(b"?", spelled.encode())
    taken = MediaStore(tmp_path).take(body)
    assert taken.body == body
    assert MediaStore(tmp_path).whole(taken.body) == body


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"text": f'look: "data":"{STANDARD}","format":"png"'}),
        json.dumps({"arguments": json.dumps(BLOCKS["chat"])}),
        json.dumps({"input": {"data": STANDARD, "path": "a.b64"}}),
        json.dumps({"text": f"data:image/png;base64,{STANDARD}"}),
        json.dumps({"url": STANDARD}),
    ],
)
def test_text_that_speaks_of_media_stays_text(tmp_path: Path, body: str) -> None:
    """A model is told these very words, so they are no picture."""
    assert MediaStore(tmp_path).take(body.encode()).body == body.encode()


@pytest.mark.parametrize("own", [OWN, OWN.replace(":sha", ":~sha"), OWN.replace(":sha", ":~~~sha"), f"{OWN}{OWN}x"])
def test_a_harness_cannot_forge_a_reference(tmp_path: Path, own: str) -> None:
    store = MediaStore(tmp_path)
    store.take(json.dumps(BLOCKS["chat"]).encode())
    for body in (json.dumps({"text": own}).encode(), json.dumps([{"text": own}, BLOCKS["chat"]]).encode()):
        taken = store.take(body)
        assert len(references(taken.body)) == body.count(STANDARD.encode())
        assert store.whole(taken.body) == body


FRAGMENTS = st.sampled_from(
    [MARK.decode(), OWN, "sha256:", SHA, "~", '"data":"', '"url": "data:image/png;base64,', STANDARD, FOR_URLS, '"',
     "{", "}", '"media_type":"a"', "\\", ",", "forge-", "sha256-url:", "aGk=", "é", "\n"]
)  # fmt: skip


@given(st.lists(FRAGMENTS | st.text(max_size=4), max_size=30).map("".join))
@settings(max_examples=400, deadline=None)
def test_any_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    store = MediaStore(tmp_path_factory.getbasetemp() / "any")
    body = text.encode(errors="replace")
    taken = store.take(body)
    assert store.whole(taken.body) == body
    assert store.whole(taken.again(body)) == body


def test_a_file_that_is_gone_or_changed_is_named(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    text = store.take(json.dumps(BLOCKS["chat"]).encode()).body
    store.path(SHA).write_bytes(b"another")
    with pytest.raises(BadInput, match=f"{SHA} is damaged"):
        store.whole(text)
    store.path(SHA).unlink()
    with pytest.raises(BadInput, match=f"{SHA} cannot be read"):
        store.whole(text)


def test_media_that_cannot_be_written_refuse_the_call(tmp_path: Path) -> None:
    (tmp_path / "media").write_text("in the way")
    with pytest.raises(JournalFull, match="cannot be written"):
        MediaStore(tmp_path).take(json.dumps(BLOCKS["chat"]).encode())


def test_the_list_says_what_each_is_and_where_it_stands(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "see"},
        BLOCKS["chat"],
        {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
        BLOCKS["chat sound"],
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml,%3Csvg%2F%3E"}},
        {"type": "image_url", "image_url": None, "uuid": "u1"},
    ]
    messages = [{"role": "user", "content": "no"}, {"role": "user", "content": parts}]
    text = MediaStore(tmp_path).take(json.dumps(messages).encode()).body.decode()
    place = {"message": 1, "tokens": None, "url": None}
    assert json.loads(media_of(text) or "") == [
        place | {"sha256": SHA, "mime": "image/png", "part": 1},
        place | {"sha256": None, "mime": None, "part": 2, "url": "https://a/b.png"},
        place | {"sha256": SHA, "mime": "audio/wav", "part": 3},
        place | {"sha256": hashlib.sha256(b"<svg/>").hexdigest(), "mime": "image/svg+xml", "part": 4},
        place | {"sha256": None, "mime": None, "part": 5, "url": "uuid:u1"},
    ]
    assert media_of(json.dumps(messages)) == media_of(text), "the same where it is not cut out"
    assert identities(media_of(text))[:2] == [SHA, "https://a/b.png"]


@pytest.mark.parametrize(
    "messages", ["[]", "{}", '"image_url"', '[{"content":"\\"image_url\\""}]', '["_url\\"", 1]', "[["]
)
def test_without_media_there_is_no_list(messages: str) -> None:
    assert media_of(messages) is None


@pytest.mark.parametrize("spelled", [FOR_URLS.rstrip("="), STANDARD[:8] + "\n" + STANDARD[8:], STANDARD + "="])
def test_an_odd_spelling_is_known_by_its_content(tmp_path: Path, spelled: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{spelled}"}}
    text = MediaStore(tmp_path).take(json.dumps([{"role": "user", "content": [part]}]).encode()).body.decode()
    assert identities(media_of(text)) == [SHA]
    assert MediaStore(tmp_path).read(SHA) == PICTURE


def test_older_lists_hold_the_hash_alone() -> None:
    assert identities(f'["{SHA}","x"]') == [SHA, "x"]
    assert identities(None) == []
