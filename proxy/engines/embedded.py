"""The embedded policy server: vLLM's field names, plus the weight versions of each choice.

The non-obvious facts: it names the version of every span of tokens in the answer itself, the strongest source there
is; its digest of the loaded weights can be asked for; and its chunks are the same whether ids are asked or not, but
for the ids.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from forge.proxy.engines.base import Adapters, Continues, Continuing, Cut, GivenUp, Publication, Question, Step
from forge.proxy.engines.going_on import RAW_PATH, raw
from forge.proxy.engines.vllm import Vllm

CONTINUE: Final = "/v1/chat/completions/continue"


def _chat(body: bytes, so_far: GivenUp) -> Continuing:
    """Its own route says the rest in the shape of chat."""
    asked = {
        "request": Raw(body),
        "prompt_ids": so_far.prompt_ids,
        "output_ids": so_far.output_ids,
        "id": so_far.id,
        "created": so_far.created,
    }
    yield Question(CONTINUE, msgspec.json.encode(asked), samples=True, passes=True)
    return None


def _continuation(path: str, body: bytes, so_far: GivenUp) -> Continuing:
    return raw(body, so_far) if path == RAW_PATH else _chat(body, so_far)


class Embedded(Vllm):
    name: str = "embedded"
    start_path: str | None = "/weight_info"
    start_pattern: bytes = rb'"boot_id"\s*:\s*"([^"]+)"'
    token_in: str | None = CONTINUE
    adapters: Adapters | None = None
    continuation: Continues | None = staticmethod(_continuation)
    id_cuts: tuple[Cut, ...] = (
        Cut(b"token_ids", None, b"null"),
        Cut(b"prompt_token_ids", None, b"null"),
        Cut(b"weight_versions", None, None),
    )
    usage_members: tuple[str, ...] = ()
    empty_when_asked: bool = False

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        return Publication(
            pause=(Step("POST", f"/pause?mode={mode}"),),
            load=(Step("POST", "/reload_weights", {"path": path}),),
            reset=(Step("POST", "/reset_prefix_cache"),),
            digest=Step("GET", "/weight_info"),
            set_version=(Step("POST", "/update_weight_version", {"new_version": str(version)}),),
            resume=(Step("POST", "/resume"),),
        )
