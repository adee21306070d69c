"""JSON of a schema: llguidance says at every token which ones may follow."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput

LONGEST_SCHEMA_BYTES = 64 << 10


class JsonConstraint:
    """Permits what can still become JSON of the schema, and then only the end of the turn. One answer's."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """The logits float32 [vocabulary] with -inf where a token is not permitted."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(mask, bitorder="little")[: self._vocabulary].view(bool)
        return np.where(allowed, logits, -np.inf)

    def took(self, token: int) -> None:
        """The token was chosen."""
        self._matcher.consume_token(token)


class JsonGrammars:
    """Makes constraints for the tokenizer of a bundle, which llguidance reads at the first one. Thread-safe."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._vocabulary = bundle, bundle.config.vocabulary
        self._made: LLTokenizer | None = None
        self._lock = threading.Lock()

    def constraint(self, schema: dict[str, Any]) -> JsonConstraint:
        """Raises InvalidInput for a schema that cannot be used."""
        text = json.dumps(schema)
        if len(text) > LONGEST_SCHEMA_BYTES:
            raise InvalidInput(f"the JSON schema has {len(text)} bytes, the limit is {LONGEST_SCHEMA_BYTES}")
        with self._lock:
            if self._made is None:
                end, file = self._bundle.tokenizer.end_of_turn_id, self._bundle.folder / "tokenizer.json"
                self._made = LLTokenizer(str(file), n_vocab=self._vocabulary, eos_token=end)
        try:
            # Without free white space, a small model cannot fill its answer with it.
            grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
        except ValueError as error:
            raise InvalidInput(f"the JSON schema cannot be used: {error}") from error
        if problem := LLMatcher.validate_grammar(grammar, self._made):
            raise InvalidInput(f"the JSON schema cannot be used: {problem}")
        return JsonConstraint(LLMatcher(self._made, grammar), self._vocabulary)


def call_schema(functions: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a call of one of the functions: {"name": …, "arguments": …}."""
    calls = []
    for number, function in enumerate(functions):
        arguments = {"type": "object", "additionalProperties": False, **(function.get("parameters") or {})}
        # References inside a function's schema count from its own root.
        root = f'"$ref": "#/anyOf/{number}/properties/arguments/'
        properties = {
            "name": {"const": function["name"]},
            "arguments": json.loads(json.dumps(arguments).replace('"$ref": "#/', root)),
        }
        call = {"type": "object", "properties": properties, "required": [*properties]}
        calls.append({**call, "additionalProperties": False})
    return {"anyOf": calls}
