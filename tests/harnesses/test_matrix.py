"""Real harnesses in every scenario, against the scripted policy server.

Five of them in three scenarios are enough for each change; ``make test-harnesses`` runs them all and writes the table
of the docs. In every cell what was recorded is what the engine served. Field case 66: two turns are the least, since
the second one holds what the first one answered.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.adapters.harnesses import HARNESSES, find
from forge.adapters.harnesses.packages import cache_folder
from tests.harnesses.cell import direct, facts, through_proxy
from tests.harnesses.results import EVERYTHING, NOT_HERE, keep
from tests.harnesses.scenarios import ALL, BY_NAME, IN_CI

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]

HARNESSES_IN_CI = ("codex", "pi", "claude-code", "opencode", "mini-swe-agent")
CHAT_ONLY = {name for name, adapter in HARNESSES.items() if adapter.wire == "chat"}


def cells() -> list[tuple[str, str]]:
    names = [n for n in sorted(HARNESSES) if n not in NOT_HERE and (EVERYTHING or n in HARNESSES_IN_CI)]
    wanted = [scenario for scenario in ALL if EVERYTHING or scenario.name in IN_CI]
    return [(name, s.name) for name in names for s in wanted if not s.only or name in s.only]


@pytest.mark.parametrize(("name", "scenario"), cells())
async def test_cell(tmp_path: Path, name: str, scenario: str) -> None:
    adapter, plan = find(name), BY_NAME[scenario]
    adapter.install(cache_folder(), print)
    cell = await through_proxy(adapter, plan, tmp_path / "proxy")
    alone = await direct(adapter, plan, tmp_path / "direct") if EVERYTHING and name in CHAT_ONLY else None
    keep(facts(cell) | {"alone": facts(alone) if alone is not None else None})
    assert cell.check(plan) == []
    if alone is not None:
        assert cell.outcome == alone.outcome
