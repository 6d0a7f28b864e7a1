"""Our ``Sample`` for the trainers people already have: one file each. They only reshape; what is trained is decided
in ``forge.storage.samples``, once for all of them."""

from __future__ import annotations

from forge.adapters.trainers.base import Trainer
from forge.adapters.trainers.messages import Messages
from forge.adapters.trainers.prime_rl import PrimeRL
from forge.adapters.trainers.sft import Sft
from forge.adapters.trainers.sft_tokens import SftTokens
from forge.adapters.trainers.skyrl import SkyRL
from forge.adapters.trainers.slime import Slime
from forge.adapters.trainers.tinker import Tinker
from forge.adapters.trainers.trl import Trl
from forge.adapters.trainers.verl import Verl
from forge.storage.errors import BadInput

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (Verl(), Trl(), Slime(), SkyRL(), PrimeRL(), Tinker(), Sft(), SftTokens(), Messages())
}


def find(name: str) -> Trainer:
    """The format called ``name``; raises ``BadInput`` with the names there are."""
    if name not in TRAINERS:
        raise BadInput(f"unknown trainer {name!r}", f"choose one of: {', '.join(TRAINERS)}")
    return TRAINERS[name]
