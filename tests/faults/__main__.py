"""Runs the plan of faults at the figures of a long run, two tests at a time, and says how long each took."""

from __future__ import annotations

import os
import re
import sys

import pytest

import tests.faults

PLACE = re.compile(r"^\| \w+ \| (\S+::\w+) \|$", re.M)


def main() -> int:
    os.environ["FORGE_SOAK"] = "1"  # before any test is imported
    places = dict.fromkeys(f"tests/{place}" for place in PLACE.findall(tests.faults.__doc__))
    return pytest.main(["-n", "2", "--dist", "worksteal", "--durations", "40", *places, *sys.argv[1:]])


sys.exit(main())
