"""JSON schemas as token constraints: llguidance decides which tokens keep the answer valid."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from memory_model.errors import InvalidInput
from memory_model.tokenizer import Tokenizer

LONGEST_SCHEMA = 64 << 10
"""Bytes of a schema as JSON."""


class JsonConstraint:
    """Lets through what can still become JSON of the schema, and then only the end of the turn. One answer's."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """See `edge_client.generate.sampling`."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(mask, bitorder="little")[: self._vocabulary].view(bool)
        return np.where(allowed, logits, -np.inf)

    def took(self, token: int) -> None:
        """See `edge_client.generate.sampling`."""
        self._matcher.consume_token(token)


class JsonGrammars:
    """Makes constraints for one tokenizer, which is read at the first one. Thread-safe."""

    def __init__(self, tokenizer_file: Path, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._file, self._tokenizer, self._vocabulary = tokenizer_file, tokenizer, vocabulary
        self._made: LLTokenizer | None = None
        self._lock = threading.Lock()

    def constraint(self, schema: Mapping[str, Any]) -> JsonConstraint:
        """Raises InvalidInput for a schema that cannot be kept to."""
        text = json.dumps(schema)
        if len(text) > LONGEST_SCHEMA:
            raise InvalidInput(f"the JSON schema has {len(text)} bytes, {LONGEST_SCHEMA} are the limit")
        with self._lock:
            if self._made is None:
                self._made = LLTokenizer(
                    str(self._file), n_vocab=self._vocabulary, eos_token=self._tokenizer.end_of_turn_id
                )
        try:
            # Without free white space, a small model cannot fill its answer with it.
            grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
        except ValueError as error:
            raise InvalidInput(f"the JSON schema cannot be used: {error}") from error
        if problem := LLMatcher.validate_grammar(grammar, self._made):
            raise InvalidInput(f"the JSON schema cannot be used: {problem}")
        return JsonConstraint(LLMatcher(self._made, grammar), self._vocabulary)
