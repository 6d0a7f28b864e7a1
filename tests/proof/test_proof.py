"""The proof: random sessions of an adversarial harness, on real tokenizers and chat templates, and no wrong token.

``make proof`` plays 10,000 and more; each change plays 1,000. A failure names the seed that plays it again:
``FORGE_PROOF_SEED=... FORGE_PROOF_SESSIONS=1``.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter

import pytest

from tests.proof.adversary import Adversary
from tests.proof.templates import Template, all_templates
from tests.proof.truth import check

SESSIONS = int(os.environ.get("FORGE_PROOF_SESSIONS", "1000"))
pytestmark = [pytest.mark.model, pytest.mark.timeout(600 + 2 * SESSIONS)]
SEED = int(os.environ.get("FORGE_PROOF_SEED") or secrets.randbits(48))
STEPS = (36, 160)
"""The most steps of a session, and of one in fifty; a step makes one call or two, or none."""


@pytest.fixture(scope="module")
def templates() -> list[Template]:
    return all_templates()


def test_no_session_gives_a_wrong_token(templates: list[Template], capsys: pytest.CaptureFixture[str]) -> None:
    seen: Counter[str] = Counter()
    for number in range(SESSIONS):
        seed = SEED + number
        template = templates[seed % len(templates)]
        played = Adversary(template, seed)
        try:
            played.play(played.rng.randint(1, STEPS[seed % 50 == 0]))
            seen += check(played)
        except Exception as wrong:
            wrong.add_note(f"session of seed {seed} on {template.style.name}")
            raise
    counts = dict(sorted((str(name), count) for name, count in seen.items()))
    with capsys.disabled():
        print(f"\nproof: {SESSIONS} sessions from seed {SEED}: {counts}")
    assert seen["rows"] > 0
    assert seen["exact"] > 0
