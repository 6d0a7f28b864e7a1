"""The harnesses there are, as ``forge harness list`` tells of them: pinned, installed, last checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from forge.adapters.harnesses.base import HarnessAdapter
from forge.adapters.harnesses.packages import cache_folder
from forge.harness_check.facts import kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    version: str
    wire: str
    installed: bool
    folder: str | None
    """Where its last package is, or would be; null for one that has none."""
    checked: str | None
    """When `forge harness check` was last run here, UTC."""
    checked_version: str | None
    passed: bool | None


def entries(adapters: Iterable[HarnessAdapter]) -> list[Entry]:
    return [_entry(adapter) for adapter in sorted(adapters, key=lambda adapter: adapter.name)]


def _entry(adapter: HarnessAdapter) -> Entry:
    cache = cache_folder()
    facts = kept(adapter.name)
    return Entry(
        name=adapter.name,
        version=adapter.version,
        wire=adapter.wire,
        installed=adapter.installed(cache),
        folder=str(cache / adapter.packages[-1].folder) if adapter.packages else None,
        checked=facts.checked if facts else None,
        checked_version=facts.version if facts else None,
        passed=facts.passed if facts else None,
    )


def table(found: Iterable[Entry]) -> Table:
    """Narrow enough for 80 columns: the folders are in the JSON."""
    shown = Table(
        "harness", "version", "wire", "installed", "last check", box=None, header_style="bold", pad_edge=False
    )
    for each in found:
        shown.add_row(each.name, each.version, each.wire, "yes" if each.installed else "no", _checked(each))
    return shown


def _checked(entry: Entry) -> str:
    if entry.checked is None:
        return "never"
    version = "" if entry.checked_version == entry.version else f" ({entry.checked_version})"
    return f"{entry.checked[:10]}{version} {'passed' if entry.passed else 'failed'}"
