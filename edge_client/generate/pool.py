"""Sequences that no answer uses, each found again by the prompt that goes on from it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from edge_client.generate.prompt import common_length
from memory_model.chat import Message

ANSWERS = 256
"""Answers whose token ids are remembered."""


class HasTokens(Protocol):
    """What the pool reads of a sequence: the token ids whose key-values it holds."""

    tokens: list[int]


Cached = TypeVar("Cached", bound=HasTokens)


class IdleSequences(Generic[Cached]):
    """A pool of idle sequences. Thread-safe.

    kept: idle sequences at most; each costs its key-values.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._idle: list[Cached] = []  # the one used longest ago first
        self._lock = threading.Lock()

    def take(self, ids: Sequence[int]) -> Cached | None:
        """A sequence for the prompt `ids`, for the caller alone; None where it should begin a new one.

        The idle one with the longest common beginning, if it holds the whole prompt or would lose less than half of
        what it holds: a new conversation with the same system prompt leaves the others alone. Otherwise none,
        or where `kept` are idle the one used longest ago.
        """
        with self._lock:
            best, longest = None, 0
            for number, sequence in enumerate(self._idle):
                shared = common_length(sequence.tokens, ids)
                if shared > longest and (shared == len(ids) or 2 * shared > len(sequence.tokens)):
                    best, longest = number, shared
            if best is None and self._idle and len(self._idle) >= self._kept:
                best = 0
            return None if best is None else self._idle.pop(best)

    def give(self, sequence: Cached) -> None:
        """The answer of `sequence` is over."""
        with self._lock:
            self._idle.append(sequence)
            del self._idle[: -self._kept or None]

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._idle.clear()


class Spellings:
    """The token ids of the last answers by their text. Thread-safe.

    A text has several tokenizations and the caches hold the generated one, so a prompt that repeats an answer has to
    spell it the same way.
    """

    def __init__(self, kept: int = ANSWERS) -> None:
        self._kept = kept
        self._ids: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, text: str, ids: Sequence[int]) -> None:
        """The model generated `text` as `ids`."""
        with self._lock:
            self._ids[text] = tuple(ids)
            self._ids.move_to_end(text)
            if len(self._ids) > self._kept:
                self._ids.popitem(last=False)

    def of(self, messages: Sequence[Message]) -> dict[int, tuple[int, ...]]:
        """Token ids by message number, of the assistant's messages that are answers of this model."""
        found = {}
        with self._lock:
            for number, message in enumerate(messages):
                ids = self._ids.get(str(message.get("content")))
                if ids is not None and message.get("role") == "assistant":
                    found[number] = ids
        return found
