"""The dataset for SQL: DuckDB views over the parts, as text. Needs no DuckDB itself.

``calls`` gives whole prompts, messages and tools: a recursive query follows each chain from its whole row down. Its
parts are taken once per query, so that one written meanwhile is in all of it or in none. What DuckDB cannot
read as JSON never ends a query: messages that build on it are null. ``sessions`` gives the latest revision of each. The
views look at the files anew in every query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forge.storage.parts import table_dir
from forge.storage.recipe import DEFAULT

_CALLS: Final = """\
CREATE OR REPLACE VIEW {name} AS
WITH RECURSIVE part AS MATERIALIZED (SELECT * FROM {files}),
link AS MATERIALIZED (
    SELECT call_id, choice, parent_call_id, parent_choice, prompt_prefix_len, messages_prefix_len, prompt_suffix_ids,
        output_ids, TRY_CAST(messages AS JSON[]) AS new_messages, tools,
        CASE WHEN response IS NULL THEN [] WHEN json_valid(response) THEN [CAST(response AS JSON)] END AS reply,
        tools IS NULL AND tools_hash IS NOT NULL AS inherits_tools,
        prompt_prefix_len > 0 OR messages_prefix_len > 0 OR inherits_tools AS needs_parent
    FROM part
),
whole AS (
    SELECT call_id, choice, prompt_suffix_ids AS prompt_ids, output_ids, new_messages AS said, reply, tools
    FROM link WHERE NOT needs_parent
    UNION ALL
    SELECT child.call_id, child.choice,
        list_concat(
            list_slice(list_concat(whole.prompt_ids, whole.output_ids), 1, child.prompt_prefix_len),
            child.prompt_suffix_ids
        ),
        child.output_ids,
        CASE WHEN whole.said IS NOT NULL AND whole.reply IS NOT NULL AND child.new_messages IS NOT NULL
        THEN list_concat(
            list_slice(list_concat(whole.said, whole.reply), 1, child.messages_prefix_len), child.new_messages
        ) END,
        child.reply,
        CASE WHEN child.inherits_tools THEN whole.tools ELSE child.tools END
    FROM link AS child
    JOIN whole ON child.parent_call_id = whole.call_id AND child.parent_choice = whole.choice
    WHERE child.needs_parent
)
SELECT part.* EXCLUDE (prompt_prefix_len, prompt_suffix_ids, messages_prefix_len, chain_len)
        REPLACE (
            CASE WHEN messages_prefix_len = 0 THEN messages ELSE CAST(to_json(whole.said) AS VARCHAR) END AS messages,
            whole.tools AS tools
        ),
    whole.prompt_ids
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
