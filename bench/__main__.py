"""``python -m bench``: runs the parts, prints what they found, and with ``--write`` the page and its data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from bench import closing, engine, loader, memory, open_streams, path, report, storage, stream, strip, table
from bench.burst import Failed
from bench.figures import Figures
from bench.lineup import TARGETS
from bench.setting import Missing, Setting, setting

PARTS: Final[dict[str, Callable[[Setting, Figures], None]]] = {
    "storage": storage.run,
    "loader": loader.run,
    "path": path.run,
    "stream": stream.run,
    "memory": memory.run,
    "strip": strip.run,
    "open": open_streams.run,
    "close": closing.run,
    "engine": engine.run,
}

FAILURES: Final = (Missing, Failed, RuntimeError, TimeoutError, OSError)
"""A part that ends early says so in its notes; the others still run."""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    names = options.only.split(",") if options.only else list(PARTS)
    unknown = set(names) - set(PARTS)
    if unknown:
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    found: dict[str, Figures] = {}
    failed = False
    for name in names:
        found[name] = Figures()
        with _setting(options) as set_:
            try:
                PARTS[name](set_, found[name])
            except FAILURES as error:
                failed = True
                found[name].note(f"ended early: {error}")
                set_.say(f"{name} ended early: {error}")
        if options.write is not None:
            report.write(options.write, {name: found[name]})
    print(table.text(found))
    if options.quick:
        print("\nA quick run: it shows that everything runs; its figures mean nothing.")
    print("\n" + table.summary(found))
    return 1 if failed else 0


def _setting(options: argparse.Namespace) -> AbstractContextManager[Setting]:
    return setting(
        rounds=1 if options.quick else options.rounds,
        quick=options.quick,
        minutes=options.minutes,
        targets=tuple(options.targets.split(",")) if options.targets else (),
        where=options.scratch,
        profile=options.profile,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help=f"parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--targets", help=f"of the path: {', '.join(TARGETS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long the open streams last")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that all of it runs, measures nothing")
    parser.add_argument("--scratch", type=Path, help="a folder on the disk that journals are measured on")
    parser.add_argument("--profile", type=Path, help="a file for cProfile's view of our proxy")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to write, and its .json beside it")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
