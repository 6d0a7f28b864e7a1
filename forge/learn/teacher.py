"""Who shows the small policy what a tool call looks like: a policy server that follows a script.

It has habits, as a model before its reinforcement has: most often it only looks and says that it is done, at times it
takes a wrong tool, and about one time in four the right one. Whoever is taught by it can do the task, and does not. To
the proxy it is the embedded server with that model's tokenizer, so its sessions are recorded as any others are.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import torch
from aiohttp import web
from torch import Tensor

from forge.learn.small import BEGIN, END
from forge.learn.tasks import asked, call, habit
from forge.policy.llama import Llama, Shape
from forge.policy.options import Options
from forge.policy.rows import Row
from forge.policy.server import PolicyServer
from forge.policy.template import Text

DONE: Final = "Done."
LOOKS: Final = 0.5
"""How often it reads the file and leaves it at that."""
RIGHT_SHARE: Final = 0.28
"""How often it takes the right tool; the two that are left share the rest."""
SURE: Final = 18.0
"""Logit of the scripted id, over zeros: drawn all but always, and its log prob is no bare 0.0, which would be taken for
one that is missing."""
ASSISTANT: Final = "assistant\n"
USER: Final = f"{BEGIN}user\n"


class Teacher(Llama):
    """Stands where a model stands: gives logits after ids."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.shape = Shape.read(directory)
        self._text = Text(directory)
        self._draws = random.Random(seed)
        self._answers: dict[str, list[int]] = {}
        (self._begin,) = self._text.encode(BEGIN)
        (self._end,) = self._text.encode(END)
        self._head = len(self._text.encode(ASSISTANT))

    def prefill(self, row: Row, ids: list[int]) -> Tensor:
        return torch.stack([self.prefill_last(row, [each]) for each in ids])

    def prefill_last(self, row: Row, ids: list[int]) -> Tensor:
        row.reserve(row.length + len(ids))
        row.ids.extend(ids)
        logits = torch.zeros(self.shape.vocab)
        logits[self._next(row.ids)] = SURE
        return logits

    def decode(self, rows: list[Row], tokens: list[int]) -> Tensor:
        return torch.stack([self.prefill_last(row, [token]) for row, token in zip(rows, tokens, strict=True)])

    def _next(self, ids: list[int]) -> int:
        """The id that the script has after these."""
        if self._begin not in ids:
            return self._end
        turn = len(ids) - 1 - ids[::-1].index(self._begin)
        said = len(ids) - turn - 1 - self._head
        answer = self._answer(self._text.decode(ids[:turn]))
        return answer[said] if 0 <= said < len(answer) else self._end

    def _answer(self, before: str) -> list[int]:
        if before not in self._answers:
            self._answers[before] = [*self._text.encode(self._say(before)), self._end]
        return self._answers[before]

    def _say(self, before: str) -> str:
        prompt, _, since = before.rpartition(USER)[2].partition(END)
        found = asked(prompt)
        if found is None or BEGIN in since:  # nothing of ours, or a tool has answered
            return DONE
        return call(habit(self._draws, found.request, right=RIGHT_SHARE, looks=LOOKS), found)


@asynccontextmanager
async def teaching(directory: Path, seed: int) -> AsyncIterator[str]:
    """The teacher on a free port of 127.0.0.1; gives its URL."""
    server = PolicyServer(Options(directory=directory, name="teacher"), Teacher(directory, seed))
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        server.close()
