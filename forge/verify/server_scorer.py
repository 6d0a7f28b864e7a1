"""Scores by a policy server: vLLM, or any with its ``/v1/completions``, the embedded one among them.

Owns the requests. Not obvious: ``prompt_logprobs`` are those of temperature 1 and computed past any prefix cache, so
one request scores a call; at another temperature a token is scored by asking for the one after its context, and can
be told only if it is among the ``TOP`` likeliest there. So that is done for a few tokens of each call.
"""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import numpy as np

from forge.proxy.engines.adapters import listed
from forge.storage.errors import Unavailable
from forge.storage.records import Call, LogProbs
from forge.verify.scores import Scores, Serves

TOP: Final = 20
"""vLLM's ``max_logprobs``, as it comes."""
REPLAYED_MAX: Final = 24
"""Tokens of a call that are asked for one by one."""
WAIT_S: Final = 600.0
SAME: Final = 1e-3
"""Nats."""


class Refused(Unavailable):
    """The server does not take this call: its context is full, say."""


class ServerScorer:
    def __init__(self, http: aiohttp.ClientSession, url: str, model: str, serves: Serves) -> None:
        self._http = http
        self._url = url
        self._model = model
        self.serves = serves

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, url: str) -> ServerScorer:
        """Raises ``Unavailable`` if it does not answer."""
        url = url.rstrip("/").removesuffix("/v1")
        models = await _json(http, "GET", f"{url}/v1/models")
        weights = await _json(http, "GET", f"{url}/weight_info", optional=True)
        found, version = listed(models), str(weights.get("weight_version", ""))
        if found.base is None:
            raise Unavailable(f"the policy server {url} names no model", f"look at {url}/v1/models")
        number = int(version) if version.isdigit() else None
        serves = Serves(f"the policy server {url}", number, weights.get("weight_digest"))
        return cls(http, url, found.of(number) or found.base, serves)

    async def score(self, call: Call, temperature: float) -> Scores:
        raw = await self._raw(call)
        if temperature == 1.0:
            return Scores(raw, raw, None)
        tempered = np.full(len(raw), np.nan, dtype=np.float32)
        places = np.unique(np.linspace(0, len(raw) - 1, REPLAYED_MAX).astype(int))
        for place in places.tolist():
            tempered[place] = await self._replayed(call, place, temperature)
        told = np.isfinite(tempered)
        if temperature > 0 and np.allclose(tempered[told], raw[told], atol=SAME) and (raw[told] < -SAME).any():
            tempered[:] = np.nan  # it gives raw log probs here too
        return Scores(raw, tempered, None)

    async def text(self, ids: list[int]) -> str | None:
        found = await _json(
            self._http, "POST", f"{self._url}/detokenize", {"model": self._model, "tokens": ids}, optional=True
        )
        text = found.get("prompt")
        return text if isinstance(text, str) else None

    async def _raw(self, call: Call) -> LogProbs:
        ids = [*call.prompt_ids.tolist(), *call.output_ids.tolist()]
        answer = await self._ask({"prompt": ids, "prompt_logprobs": 0, "temperature": 1.0})
        try:
            entries = answer["choices"][0]["prompt_logprobs"][len(call.prompt_ids) :]
            found = [e[str(i)]["logprob"] for e, i in zip(entries, call.output_ids.tolist(), strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Unavailable(
                f"{self.serves.name} gives no log probs of a prompt",
                "score with its weights instead: forge verify RUN --model DIRECTORY",
            ) from error
        return np.asarray(found, dtype=np.float32)

    async def _replayed(self, call: Call, place: int, temperature: float) -> float:
        ids = [*call.prompt_ids.tolist(), *call.output_ids[:place].tolist()]
        plain = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
        asked = {"prompt": ids, "temperature": temperature, "logprobs": TOP, "return_tokens_as_token_ids": True}
        answer = await self._ask(asked | plain)
        try:
            top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return float(top.get(f"token_id:{int(call.output_ids[place])}", np.nan))
        except (KeyError, IndexError, TypeError, AttributeError):
            return float("nan")

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return await _json(
            self._http, "POST", f"{self._url}/v1/completions", {"model": self._model, "max_tokens": 1} | body
        )


async def _json(
    http: aiohttp.ClientSession, method: str, url: str, body: Any = None, *, optional: bool = False
) -> dict[str, Any]:
    try:
        async with http.request(method, url, json=body, timeout=aiohttp.ClientTimeout(total=WAIT_S)) as answer:
            if answer.status == 200:
                found = await answer.json(content_type=None)
                return found if isinstance(found, dict) else {}
            if optional:
                return {}
            said = (await answer.text())[:300]
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unavailable(f"the policy server does not answer {url}: {error}", "check --policy") from error
    if answer.status in (400, 413, 422):
        raise Refused(f"the policy server refuses {url}: {said}", "score with its weights: --model DIRECTORY")
    key = " (--policy-key-file gives a key)" if answer.status in (401, 403) else ""
    raise Unavailable(f"the policy server answers {answer.status} to {url}: {said}", f"look at its log{key}")
