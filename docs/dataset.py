"""Prints ``docs/dataset.md`` from the declared columns: ``python docs/dataset.py > docs/dataset.md``."""

from __future__ import annotations

import pyarrow as pa

from forge.storage.columns import SCHEMA_VERSION, TABLES

HEAD = f"""# The dataset

Written by the decoder only, as Parquet (zstd; ids and log probabilities byte-stream-split), one fixed schema in every
file (version {SCHEMA_VERSION}, in the file's metadata). A part appears by rename, so any glob is right at any moment.

```
DATA/
  journal/<writer>/<segment>              frames: the only source, all else is derived
  calls/run_id=<run>/part-*.parquet       one row per call and choice
  sessions/run_id=<run>/part-*.parquet    one row per session and revision; the highest revision holds
  samples/set=<recipe>/run_id=<run>/...   one row per training sample
  media/<sha256>                          images, sound and files that requests held, each once
  policy/<version>/, policy/CURRENT       published weights
  catalog.db                              an index of runs, sessions and parts; it can be rebuilt
```

Prompts are stored as deltas: `prompt_prefix_len` ids of the parent's prompt + output, then `prompt_suffix_ids`; a whole
prompt at the 64th link and at every doubling. Messages and tools likewise. `forge.storage.dataset.Dataset` gives them
back whole and checks `prompt_hash`; the DuckDB views of `forge.storage.sql.views` give them to SQL.

Where a request held base64 of an image, sound or file, `messages` and `request_raw` hold
`forge-media:sha256:<sha256 of its bytes>` (`sha256-url` where it was spelled for URLs); `MediaStore(DATA).whole(text)`
of `forge.storage.media` gives the very bytes back. Own text that reads like a reference has a `~` after the first
colon. `media` lists what the model was shown: a JSON array of `sha256` (null where only a `url` is known), `mime`,
`message` and `part` (where it stands in `messages`), `tokens` (its ids, where the engine says so; none does yet).

Files of older versions stay readable: `Dataset` gives their rows as of the current schema, and a reader that knows no
versions finds nulls where they lack a column. Between a file's last page and its footer stand 16 bytes that other
readers never look at: checksums, so that a damaged file is named before anything parses it. DuckDB, pyarrow, Polars,
pandas, Hugging Face `datasets`, Ray Data and Daft read the folders as they are, at any moment (`make test-readers`).

This page is made from `storage/columns.py` by `python docs/dataset.py`; a test fails when it is stale.
"""


def page() -> str:
    lines = [HEAD]
    for table, columns in TABLES.items():
        lines += [f"## {table}", "", "| column | type | null | meaning |", "| --- | --- | --- | --- |"]
        for c in columns:
            # A dictionary is how strings lie in memory; what a reader sees is its values' type.
            kind = str(c.type.value_type if pa.types.is_dictionary(c.type) else c.type).replace(" not null", "")
            lines.append(f"| `{c.name}` | {kind} | {'yes' if c.nullable else 'no'} | {c.doc} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
