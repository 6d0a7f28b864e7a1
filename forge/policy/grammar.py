"""Grammars of the answer by llguidance: a regex, a JSON schema, or a forced tool call.

It knows ids and schemas, not requests. Not obvious: a grammar that can say no more allows the end token only, so a
constrained answer always ends by a sampled end token with its own log prob.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import torch

from forge.storage.errors import BadInput


def from_regex(pattern: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_regex(pattern))


SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as ``json.dumps`` writes it: a small model given free white space may never stop making it."""


def from_schema(schema: str | dict[str, Any]) -> str:
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=SPACING))
    except ValueError as error:
        raise BadInput(f"not a JSON schema: {error}") from error


def from_tools(tools: Sequence[dict[str, Any]]) -> str:
    """One call of one of ``tools`` (chat form), in the markup that the template teaches."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = json.dumps((calls[0] if len(calls) == 1 else {"anyOf": calls}) | {"x-guidance": SPACING})
    return str(
        llguidance.LLMatcher.grammar_from_lark(f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {schema}')
    )


class Matcher:
    """The state of one answer within its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab

    def allowed(self) -> torch.Tensor:
        """Bool mask over the model's vocabulary."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = torch.from_numpy(np.unpackbits(bits, bitorder="little", count=self._vocab).astype(bool))
        if not bool(mask.any()):
            raise RuntimeError(f"grammar allows no id: {self._matcher.get_error() or 'no reason given'}")
        return mask

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)


class Grammars:
    """Compiles grammars for one tokenizer. Building the token trie takes a second, so it waits for the first use."""

    def __init__(self, tokenizer_file: Path, vocab: int, eos: Sequence[int]) -> None:
        self._file = tokenizer_file
        self._vocab = vocab
        self._eos = list(eos)
        self._tokenizer: llguidance.LLTokenizer | None = None

    def compile(self, grammar: str) -> Matcher:
        if self._tokenizer is None:
            text = self._file.read_text(encoding="utf-8")
            self._tokenizer = llguidance.LLTokenizer(text, n_vocab=self._vocab, eos_token=self._eos)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise BadInput(f"the grammar does not compile: {matcher.get_error()}")
        return Matcher(matcher, self._vocab)
