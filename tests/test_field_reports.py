"""Every field report that concerns a proxy or a dataset has a test that names its number.

The reports are public ones about other people's programs; tests say ``field case N`` where they hold one.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.compile(r"[Ff]ield cases? ([\d, and]+)")
REPORTS = {
    "paths, probes, bodies": {1, 3, 4, 5, *range(7, 26), *range(27, 33)},
    "streaming": {33, 34, *range(36, 45), *range(46, 49), *range(50, 56)},
    "responses": {*range(56, 61), *range(62, 73), 74, 75, 77, 78},
    "chat": set(range(79, 100)),
    "messages": {100, 101, 102, 103, *range(105, 113)},
    "limits, retries, disconnects": {*range(113, 119), 120, 121, 122, 124},
    "engines": {*range(125, 139), *range(140, 144), 145, *range(147, 153)},
    "joins": {*range(153, 164), *range(165, 172)},
    "weights": set(range(172, 176)),
    "datasets": set(range(177, 185)),
    "secrets": set(range(185, 191)),
}
ELSEWHERE = {
    22: "a websocket transport is a later feature; that an upgrade is refused at once is tested (17 to 21)",
    61: "no such report",
}
"""Numbers that are no test's, and why."""


def test_every_report_has_a_test() -> None:
    named: set[int] = set()
    for path in TESTS.rglob("*.py"):
        for numbers in NAMED.findall(path.read_text()):
            named |= {int(number) for number in re.findall(r"\d+", numbers)}
    missing = {group: sorted(numbers - named - ELSEWHERE.keys()) for group, numbers in REPORTS.items()}
    assert {group: numbers for group, numbers in missing.items() if numbers} == {}
