"""The calls of tools in an answer, in the order in which they begin, whatever their engine numbers them by.

The one non-obvious fact: older SGLang servers write the tool's place in the request for a call's index, so two calls
of one tool share it; the second one is told by its own id and name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from forge.proxy.engines.shapes import ToolCall


class CallParts:
    """One call as it grows."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: list[str] = []
        self.arguments: list[str] = []

    def add(self, part: ToolCall) -> None:
        self.id = part.id or self.id
        if part.function is not None:
            self.name.append(part.function.name or "")
            self.arguments.append(part.function.arguments or "")

    def told(self) -> dict[str, Any]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class InOrder:
    """Of one answer: gives the parts of calls with the place of their call for an index."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: dict[int, str | None] = {}
        self._count = 0

    def placed(self, parts: Sequence[ToolCall]) -> list[ToolCall]:
        found = []
        for position, part in enumerate(parts):
            index = part.index if part.index is not None else position
            if index not in self._places or self._is_another(index, part):
                self._places[index] = self._count
                self._ids[index] = part.id
                self._count += 1
            found.append(replace(part, index=self._places[index]))
        return found

    def _is_another(self, index: int, part: ToolCall) -> bool:
        named = part.function is not None and bool(part.function.name)
        return named and part.id is not None and part.id != self._ids[index]
