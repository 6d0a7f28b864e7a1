"""The embedded policy server: vLLM's field names, plus the weight versions of each choice.

The non-obvious facts: it names the version of every span of tokens in the answer itself, the strongest source there
is; its digest of the loaded weights can be asked for; and its chunks are the same whether ids are asked or not, but
for the ids.
"""

from __future__ import annotations

import msgspec

from forge.proxy.engines.base import Cut, GivenUp, Publication, Step
from forge.proxy.engines.vllm import Vllm


class Embedded(Vllm):
    name: str = "embedded"
    start_path: str | None = "/weight_info"
    start_pattern: bytes = rb'"boot_id"\s*:\s*"([^"]+)"'
    token_in: str | None = "/v1/chat/completions/continue"
    continues: bool = True
    id_cuts: tuple[Cut, ...] = (
        Cut(b"token_ids", None, b"null"),
        Cut(b"prompt_token_ids", None, b"null"),
        Cut(b"weight_versions", None, None),
    )
    usage_members: tuple[str, ...] = ()
    empty_when_asked: bool = False

    def continuation(self, body: bytes, so_far: GivenUp) -> bytes | None:
        return b'{"request":' + body + b"," + msgspec.json.encode(so_far)[1:]

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        return Publication(
            pause=(Step("POST", f"/pause?mode={mode}"),),
            load=(Step("POST", "/reload_weights", {"path": path}),),
            reset=(Step("POST", "/reset_prefix_cache"),),
            digest=Step("GET", "/weight_info"),
            set_version=(Step("POST", "/update_weight_version", {"new_version": str(version)}),),
            resume=(Step("POST", "/resume"),),
        )
