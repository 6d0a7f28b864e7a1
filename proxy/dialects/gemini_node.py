"""One JSON object of a Gemini request, read member by member.

Owns the two spellings of this format: like every protobuf JSON parser it takes ``inlineData`` and ``inline_data`` for
the same member. Values stay raw until they are asked for, so what is handed on (arguments, schemas) keeps its bytes.
The one non-obvious fact: only the object's own names are respelt, never those inside its values, where a name may be
a user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.base import BadRequest

_JOINT: Final = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")
_NULL: Final = b"null"


def camel(name: str) -> str:
    return _JOINT.sub(lambda found: found[1].upper(), name)


class Node:
    def __init__(self, raw: bytes | Raw, where: str = "") -> None:
        """``where``: its place in the request, for what is said to the caller. Raises ``BadRequest``."""
        self.where = where
        try:
            read = splice.members(bytes(raw))
        except splice.UNREADABLE as failure:
            raise BadRequest(f"{_told(where)} is not a JSON object: {failure}", param=where or None) from failure
        self._members = {camel(name): value for name, value in read.items() if bytes(value) != _NULL}

    def __contains__(self, name: str) -> bool:
        """Whether it says anything: null is no value."""
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def raw(self, name: str) -> Raw | None:
        return self._members.get(name)

    def get(self, name: str, type: Any) -> Any:
        """The member as ``type``; None where it is missing. Raises ``BadRequest``."""
        value = self._members.get(name)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=type)
        except splice.UNREADABLE as failure:
            place = self.place(name)
            raise BadRequest(f"`{place}` cannot be read: {failure}", param=place) from failure

    def node(self, name: str) -> Node | None:
        value = self._members.get(name)
        return None if value is None else Node(value, self.place(name))

    def nodes(self, name: str) -> list[Node]:
        """The objects of a list; one that stands alone is a list of one."""
        value = self._members.get(name)
        if value is None:
            return []
        place = self.place(name)
        if not bytes(value).startswith(b"["):
            return [Node(value, place)]
        return [Node(raw, f"{place}[{n}]") for n, raw in enumerate(self.get(name, list[Raw]))]

    def place(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def _told(where: str) -> str:
    return f"`{where}`" if where else "the request body"
