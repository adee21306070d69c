"""Conversations between two turns: the server is told all messages anew, so their caches are found by them.

A session whose messages are those that were sent, but for the last, goes on; any other conversation is read anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

from edge_client.model import EdgeModel
from edge_client.serve.requests import MemoryOptions
from edge_client.session import ChatSession
from memory_model.errors import Memory3Error

MOST_KNOWLEDGE_BASES = 4


class Conversations:
    """Thread-safe. kept: sessions that wait for their next turn; each costs its key-values."""

    def __init__(self, model: EdgeModel, knowledge_base: str, kept: int) -> None:
        self.default_base = knowledge_base
        self._models: OrderedDict[str, EdgeModel] = OrderedDict({knowledge_base: model})
        self._base, self._kept = model, kept
        self._idle: OrderedDict[Hashable, ChatSession] = OrderedDict()
        self._lock = threading.Lock()

    def model(self, knowledge_base: str | None) -> EdgeModel:
        """The model with that knowledge base; one that was not used for long is forgotten, not closed."""
        name = knowledge_base or self.default_base
        with self._lock:
            if name not in self._models:
                self._models[name] = self._base.with_knowledge_base(name)
                if len(self._models) > MOST_KNOWLEDGE_BASES:
                    oldest = next(n for n in self._models if n != self.default_base)
                    del self._models[oldest]
            self._models.move_to_end(name)
            return self._models[name]

    def take(self, messages: Sequence[Mapping[str, str]], options: MemoryOptions) -> ChatSession:
        """A session that has heard `messages`, for the caller alone; raises InvalidInput, ModelClosed."""
        with self._lock:
            found = self._idle.pop(self._key(messages, options), None)
        if found is not None:
            return found
        model = self.model(options.bases)
        return model.session(messages=messages, memory=options.mode, lead_tokens=options.lead_tokens)

    def give(self, session: ChatSession, options: MemoryOptions) -> None:
        """Keep a session whose answer is over."""
        with self._lock:
            self._idle[self._key(session.messages, options)] = session
            while len(self._idle) > self._kept:
                self._idle.popitem(last=False)

    def close(self) -> None:
        """End all answers and connections."""
        with self._lock:
            self._idle.clear()
            models = list(self._models.values())
        for model in models:
            try:
                model.close()
            except Memory3Error:  # the others are to be closed all the same
                continue

    def _key(self, messages: Sequence[Mapping[str, str]], options: MemoryOptions) -> Hashable:
        said = tuple((m["role"], m["content"]) for m in messages)
        base = options.bases or self.default_base
        return (base, options.mode, options.lead_tokens, said)
