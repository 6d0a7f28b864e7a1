"""Text and ids: the chat template, the tokenizer, and the bytes of each id.

The template is the model directory's own (``chat_template.jinja``); ours, in the Hermes style, is written beside the
default model when it is converted. Not obvious: an id is not a character, so text is put together from bytes and what
is not yet whole UTF-8 is held back; special ids have no text.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from forge.storage.errors import BadInput


def default_template() -> str:
    return resources.files("forge.policy").joinpath("template.jinja").read_text(encoding="utf-8")


def _byte_alphabet() -> dict[str, int]:
    """The printable character by which byte-level BPE vocabularies write each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(shifted)}


class Text:
    """The tokenizer and template of one model directory."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "tokenizer.json"
        try:
            self.tokenizer = Tokenizer.from_file(str(self.file))
            form = json.loads(self.file.read_bytes())
        except Exception as error:
            raise BadInput(
                f"{self.file}: no readable tokenizer ({error})", "save the tokenizer with the model"
            ) from error
        if (form.get("decoder") or {}).get("type") != "ByteLevel":
            raise BadInput(f"{self.file}: only byte-level BPE tokenizers are supported", "serve this model with vLLM")
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.special = {token["id"] for token in form.get("added_tokens", []) if token.get("special")}
        self._bytes = self._table(form.get("added_tokens", []))
        own = directory / "chat_template.jinja"
        source = own.read_text(encoding="utf-8") if own.exists() else default_template()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        self._template = environment.from_string(source)
        self.template_hash = hashlib.sha256(source.encode()).hexdigest()

    def _table(self, added: list[dict[str, Any]]) -> list[bytes]:
        alphabet = _byte_alphabet()
        table = [b""] * self.tokenizer.get_vocab_size(with_added_tokens=True)
        for piece, index in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if all(c in alphabet for c in piece):
                table[index] = bytes(alphabet[c] for c in piece)
        for token in added:
            table[token["id"]] = token["content"].encode()
        return table

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def bytes_of(self, index: int) -> bytes:
        return self._bytes[index] if 0 <= index < len(self._bytes) else b""

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """The prompt text of a chat, ready for the assistant's answer."""
        try:
            return self._template.render(messages=messages, tools=tools, add_generation_prompt=True)
        except TemplateError as error:
            raise BadInput(f"the chat template refused these messages: {error}") from error


class Detokenizer:
    """Text of ids as they come; bytes that are not yet whole characters wait for the next id."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, index: int) -> str:
        return "" if index in self._text.special else self._decoder.decode(self._text.bytes_of(index))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def _tojson(value: Any, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raise(message: str) -> None:
    raise TemplateError(message)
