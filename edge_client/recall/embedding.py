"""`QueryEmbedder`: the queries of this device to unit vectors. No text is embedded twice, and what one takes is known.

A large embedder on a small device may need half a second for a text, as long as decoding half a chunk. So what is
embedded is chosen: the last queries of a prompt first, as many as fit into their share of the deadline.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from edge_client.retrieval import OWN_SHARE, Query
from memory3.runtime.embedder import Embedder

KEPT_TEXTS = 512
"""Vectors that are kept, those used last: half a megabyte at 256 dimensions, two at 1,024."""
EMBEDDING_SHARE = 0.5
"""Of a recall's deadline that embedding may take; the rest is for the service."""
_NEWEST_SHARE = 0.3
"""Of a new measurement in the time that a text is expected to take."""
_PROBE = "How long does this device need for the text of a whole chunk of a conversation? " * 4


class QueryEmbedder:
    """An embedder with the vectors that it made last. Thread-safe; texts are embedded one call after the other.

    embedder: of a bundle. kept: texts whose vectors are kept. clock: seconds, replaced in tests.
    """

    def __init__(
        self, embedder: Embedder, *, kept: int = KEPT_TEXTS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.embedder = embedder
        self.text_s = 0.0
        """Seconds that one text is expected to take; 0 before there is a measurement."""
        self._kept, self._clock = kept, clock
        self._lock = threading.Lock()
        self._vectors: OrderedDict[str, np.ndarray] = OrderedDict()  # in the order of their last use

    def prepare(self) -> None:
        """Run the embedder for the first time, which takes longer, and measure the quicker one of two more runs."""
        self.embedder.embed(["ready"])
        with self._lock:
            times = [self._clock()]
            for _ in range(2):
                self.embedder.embed([_PROBE])
                times.append(self._clock())
            self.text_s = min(after - before for before, after in pairwise(times))

    def expected_s(self, queries: Sequence[str]) -> float:
        """Seconds that embedding these queries is expected to take; 0 for those whose vectors are kept."""
        return self.text_s * len(self._missing(queries))

    def affordable(self, queries: Sequence[str], limit_s: float) -> list[int]:
        """Indices of the queries that can be embedded within `limit_s`, ascending: the last ones."""
        chosen: list[int] = []
        for index in reversed(range(len(queries))):
            if self.expected_s([queries[n] for n in [index, *chosen]]) <= limit_s:
                chosen.insert(0, index)
        return chosen

    def vectors(self, queries: Sequence[str]) -> np.ndarray:
        """Unit vectors float32 [n, dim], from at most one call of the embedder.

        The vector of a query that follows others lies between its own and that of all (decision 0005).
        """
        if not queries:
            return np.zeros((0, self.embedder.dim), np.float32)
        with self._lock:
            if missing := self._missing(queries):
                begun = self._clock()
                found = self.embedder.embed(missing)
                self._measured((self._clock() - begun) / len(missing))
            made = dict(zip(missing, found, strict=True)) if missing else {}
            mixed = [self._vector(query, made) for query in queries]
            self._keep(made)
        return np.stack(mixed).astype(np.float32)

    def _missing(self, queries: Sequence[str]) -> list[str]:
        texts = dict.fromkeys(text for query in queries for text in texts_of(query))
        return [text for text in texts if text not in self._vectors]

    def _measured(self, text_s: float) -> None:
        self.text_s = text_s if not self.text_s else self.text_s + _NEWEST_SHARE * (text_s - self.text_s)

    def _vector(self, query: str, made: dict[str, np.ndarray]) -> np.ndarray:
        own, *following = [made[text] if text in made else self._used(text) for text in texts_of(query)]
        if not following:
            return own
        mixed = OWN_SHARE * own + (1 - OWN_SHARE) * following[0]
        return np.asarray(mixed / max(float(np.linalg.norm(mixed)), 1e-12))

    def _used(self, text: str) -> np.ndarray:
        self._vectors.move_to_end(text)
        return self._vectors[text]

    def _keep(self, made: dict[str, np.ndarray]) -> None:
        self._vectors |= made
        while len(self._vectors) > self._kept:
            self._vectors.popitem(last=False)


def texts_of(query: str) -> list[str]:
    """What is embedded of a query: its text, and behind what came before it, where something did."""
    text = str(query)
    return [text, f"{query.before}\n{text}"] if isinstance(query, Query) and query.earlier else [text]
