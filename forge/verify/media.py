"""The media that a run's calls refer to: is each there, and what it was when it was stored?

Reads the new messages of each call, never a whole prompt; hashes each file once.
"""

from __future__ import annotations

from forge.storage import media_text
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from forge.storage.media import TEXTS, MediaStore
from forge.verify.report import Finding, Kind, finding


def check_media(dataset: Dataset, run_id: str) -> list[Finding]:
    store = MediaStore(dataset.data)
    wrong: dict[str, str] = {}
    sound: set[str] = set()
    for table in dataset.call_tables(("call_id", *TEXTS), run_id):
        for row in table.to_pylist():
            texts = (row[name] for name in TEXTS if row[name] is not None)
            for name in set().union(*map(_references, texts)) - sound - wrong.keys():
                try:
                    store.read(name)
                    sound.add(name)
                except BadInput as error:
                    wrong[name] = f"{row['call_id']} ({error.message})"
    return finding(
        Kind.MEDIA, "calls refer to media that are gone or damaged: put the files back", list(wrong.values())
    )


def _references(text: str | bytes) -> set[str]:
    return media_text.references(text.encode() if isinstance(text, str) else text)
