"""The dataset for SQL: DuckDB views over the parts, as text. Needs no DuckDB itself.

``calls`` gives whole prompts: a recursive query follows each chain from its whole row down. ``sessions`` gives the
latest revision of each. The views look at the files anew in every query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forge.storage.parts import table_dir
from forge.storage.recipe import DEFAULT

_CALLS: Final = """\
CREATE OR REPLACE VIEW {name} AS
WITH RECURSIVE part AS (SELECT * FROM {files}),
whole AS (
    SELECT call_id, choice, prompt_suffix_ids AS prompt_ids, output_ids FROM part WHERE prompt_prefix_len = 0
    UNION ALL
    SELECT child.call_id, child.choice,
        list_concat(
            list_slice(list_concat(whole.prompt_ids, whole.output_ids), 1, child.prompt_prefix_len),
            child.prompt_suffix_ids
        ),
        child.output_ids
    FROM part AS child
    JOIN whole ON child.parent_call_id = whole.call_id AND child.parent_choice = whole.choice
    WHERE child.prompt_prefix_len > 0
)
SELECT part.* EXCLUDE (prompt_prefix_len, prompt_suffix_ids, chain_len), whole.prompt_ids
FROM part JOIN whole USING (call_id, choice);
"""
_SESSIONS: Final = """\
CREATE OR REPLACE VIEW {name} AS
SELECT * FROM {files} QUALIFY row_number() OVER (PARTITION BY session_id ORDER BY revision DESC) = 1;
"""
_SAMPLES: Final = "CREATE OR REPLACE VIEW {name} AS SELECT * FROM {files};\n"


def views(data: Path, recipe: str = DEFAULT.name) -> str:
    """Statements that make the views ``calls``, ``sessions`` and ``samples`` of those tables that have a part."""
    sources = [
        ("calls", table_dir(data, "calls"), _CALLS),
        ("sessions", table_dir(data, "sessions"), _SESSIONS),
        ("samples", table_dir(data, "samples", recipe), _SAMPLES),
    ]
    return "\n".join(
        text.format(name=name, files=_files(folder))
        for name, folder, text in sources
        if next(folder.glob("*/*.parquet"), None) is not None
    )


def _files(folder: Path) -> str:
    # The run stands in the files too; from the path it would come as a second column of that name.
    quoted = str(folder.absolute() / "*" / "*.parquet").replace("'", "''")
    return f"read_parquet('{quoted}', hive_partitioning = false, union_by_name = true)"
