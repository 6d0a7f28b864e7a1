"""The scripted vLLM that loads adapters while it runs, as 0.32 does with ``--enable-lora`` and the variable set.

Every name is its own model: one that is neither the base's nor a loaded adapter's is refused, and answers say who
answered. An adapter that is let go stays with the calls that run.
"""

from __future__ import annotations

import json

from aiohttp import web

from tests.engine import LOAD
from tests.scale_out import ScaleOutEngine
from tests.script import Json, Served

UNLOAD = "/v1/unload_lora_adapter"


class LoraEngine(ScaleOutEngine):
    def __init__(self, root: str = "/models/base") -> None:
        super().__init__()
        self.root = root
        self.adapters: dict[str, str] = {}
        """Name to the directory that it was loaded from."""
        self.breaks: str | None = None
        """How it refuses to load an adapter."""

    def restart(self) -> None:
        """With what it is started with."""
        self.adapters.clear()
        self.weight_version = "default"
        self.started = f"{float(self.started) + 1}"

    def named(self, served: Served) -> str:
        return str(served.json.get("model", self.model))

    def _get(self, path: str) -> web.Response:
        if path != "/v1/models":
            return super()._get(path)
        base = {"id": self.model, "object": "model", "owned_by": "vllm", "root": self.root, "parent": None}
        cards = [{"id": name, "root": at, "parent": self.model} for name, at in self.adapters.items()]
        return web.json_response({"object": "list", "data": [base | {"max_model_len": self.max_model_len}, *cards]})

    def _post(self, path: str, payload: Json, query: dict[str, str]) -> web.Response:
        if path not in (LOAD, UNLOAD):
            return super()._post(path, payload, query)
        if not payload:
            return _error(422, "lora_name: Field required")
        name = payload["lora_name"]
        if path == UNLOAD:
            there = self.adapters.pop(name, None) is not None
            return web.Response(text=f"Success: removed {name}") if there else _error(404, f"{name} cannot be found")
        if self.breaks is not None:
            return _error(500, self.breaks)
        if name in self.adapters:
            return _error(400, f"{name} has already been loaded")
        self.adapters[name] = payload["lora_path"]
        return web.Response(text=f"Success: added {name}")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        name = json.loads(await request.read()).get("model")
        if name not in (self.model, *self.adapters):
            return _error(404, f"The model `{name}` does not exist.")
        return await super()._generate(request)


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "Error", "param": None, "code": status}}, status=status
    )
