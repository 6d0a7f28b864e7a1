"""``forge export``: the rows of runs as one trainer's file, with an account of what is in it and what is not.

Owns the order: choose, compare where the trainer wants the outcome, write, tell. Beside the file stands
``FILE.export.json``, with the recipe, its hash and the counts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from forge import __version__
from forge.adapters.trainers import find
from forge.adapters.trainers.base import Arguments, Options, Trainer
from forge.adapters.trainers.rows import Choice, Left
from forge.export_source import Source
from forge.storage.errors import BadInput, Untrainable
from forge.storage.files import write_whole
from forge.storage.media import MediaStore
from forge.storage.recipe import DEFAULT, Recipe
from forge.trainer.advantage import group_advantages
from forge.trainer.config import Baseline

FILE: Final = "export"
"""Where a folder is named: the file in it, with the format's suffix."""
ACCOUNT: Final = ".export.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    to: str
    data: Path
    out: Path
    runs: tuple[str, ...] = ()
    set_name: str | None = None
    """A stored set; with a recipe, what the new set is called."""
    kinds: tuple[str, ...] | None = None
    max_tokens: int | None = None
    truncated: bool = True
    straddling: bool = True
    unrewarded: bool = False
    arguments: Arguments = Arguments.OBJECT

    @property
    def recipe(self) -> Recipe | None:
        """Of these choices; None where there are none, and a stored set is taken as it is."""
        choices: dict[str, Any] = {
            "kinds": self.kinds if self.kinds is not None else DEFAULT.kinds,
            "max_tokens": self.max_tokens,
            "truncated": self.truncated,
            "straddling": self.straddling,
        }
        unnamed = Recipe(**choices)
        if unnamed.to_json() == DEFAULT.to_json():
            return None
        return Recipe(name=self.set_name or f"custom-{unnamed.hash}", **choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    path: Path
    trainer: str
    runs: tuple[str, ...]
    set_name: str
    recipe: dict[str, object]
    rows: int
    sessions: int
    tokens: int
    """With mask 1."""
    caution: str | None
    left: Counter[str] = field(default_factory=Counter)

    @property
    def account(self) -> Path:
        return self.path.with_name(self.path.name + ACCOUNT)

    def told(self) -> dict[str, Any]:
        recipe = msgspec.json.encode(self.recipe)
        return {
            "forge": __version__,
            "trainer": self.trainer,
            "runs": self.runs,
            "set": self.set_name,
            "recipe": self.recipe,
            "recipe_hash": hashlib.blake2b(recipe, digest_size=8).hexdigest(),
            "rows": self.rows,
            "sessions": self.sessions,
            "trained_tokens": self.tokens,
            "left_out": dict(sorted(self.left.items())),
        }


def export(config: ExportConfig) -> ExportReport:
    """Raises ``Untrainable`` if nothing is left to write, or a row contradicts itself."""
    trainer = find(config.to)
    if config.unrewarded and trainer.needs.reward:
        raise BadInput(f"{trainer.name} needs rewards, so it cannot keep rows without one", "leave --unrewarded away")
    recipe = config.recipe
    set_name = recipe.name if recipe is not None else config.set_name or DEFAULT.name
    source = Source(config.data, config.runs, set_name, recipe)
    choice = Choice(trainer.needs, unrewarded=config.unrewarded)
    for sample in source:
        choice.see(sample)
    advantages = _compared(choice, trainer)
    if not choice.kept:
        raise Untrainable(f"nothing to export for {trainer.name}: {_counts(choice.left)}", _hint(choice.left))
    path = _place(config.out, trainer)
    options = Options(arguments=config.arguments, media=MediaStore(config.data))
    own = trainer.write(choice.rows(source, advantages), path, options)
    kept = choice.kept.values()
    report = ExportReport(
        path=path,
        trainer=trainer.name,
        runs=source.runs,
        set_name=set_name,
        recipe=source.recipe,
        rows=sum(session.rows for session in kept) - own.total(),
        sessions=len(kept),
        tokens=sum(session.tokens for session in kept),
        caution=trainer.caution,
        left=choice.left + own,
    )
    told = msgspec.json.format(msgspec.json.encode(report.told()))
    write_whole(report.account, lambda unfinished: unfinished.write_bytes(told), crash_name="export")
    return report


def account(report: ExportReport) -> str:
    """What was written and what was not, in a line."""
    left = f"; left out: {_counts(report.left)}" if report.left else ""
    return f"{report.rows} rows of {report.sessions} sessions, {report.tokens} trained tokens{left}"


def _compared(choice: Choice, trainer: Trainer) -> dict[str, float] | None:
    """Leaves out groups that have nothing to teach; each session's advantage where the trainer wants it."""
    if trainer.needs.group:
        choice.drop_lonely()
    if not trainer.needs.advantage:
        return None
    found: dict[str, float] = {}
    for group in choice.groups().values():
        advantages = group_advantages(list(group.values()), Baseline.STD)
        if advantages is None:
            for session in group:
                choice.drop(session, Left.NO_SPREAD)
        else:
            found.update(zip(group, advantages, strict=True))
    return found


def _place(out: Path, trainer: Trainer) -> Path:
    return out / f"{FILE}{trainer.suffix}" if out.is_dir() else out


def _counts(left: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left.items())) or "there are no rows"


def _hint(left: Counter[str]) -> str:
    if not left:
        return "make sessions first: forge run --help"
    reason = left.most_common(1)[0][0]
    if reason in (Left.REWARD_NULL, Left.REWARD_PENDING):
        return "give the tasks a grader, or set rewards; text and sft-tokens exports can keep them: --unrewarded"
    if reason in (Left.NO_GROUP, Left.FEWER_THAN_TWO, Left.NO_SPREAD):
        return "take several sessions of each task: forge run --group-size N with a grader"
    return "see what the calls say: forge show SESSION"
