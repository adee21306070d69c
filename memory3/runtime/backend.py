"""The interface of what runs a decoder: `DecoderBackend`, its weights, and `DecoderRunner`, runs of it over caches.

ONNX Runtime (`edge_client.decoder.graph`) and torch (`memory_model.models.engine`) implement it. The scheduler of a
device (`edge_client.decoder`) calls nothing else of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.config import ModelConfig
from memory3.runtime.attention import QueryRecord


@dataclass(frozen=True)
class RunInput:
    """What one sequence adds to a run: its new tokens, the position of the first, the rows before them.

    length: text rows of the sequence before this run, prefix included. memory: whether it has memory slots. record:
    where the run leaves the queries of the tokens that get logits; None: it computes no output for that.
    """

    tokens: Sequence[int]
    position: int
    length: int
    memory: bool
    record: QueryRecord | None = None


class RowArray(Protocol):
    """Keys or values [heads, tokens, head_dim] of some text: a NumPy array, or a tensor on the backend's device."""

    def __getitem__(self, key: tuple[slice, slice], /) -> RowArray:
        """A part of it."""


TextRows = Mapping[str, RowArray]
"""Keys and values of a sequence's first tokens, by cache tensor. Only the runner that read them can write them."""


class DecoderRunner(ABC):
    """A backend's weights with static caches of `parallel` sequences, each in a slot numbered from 0.

    Not thread-safe, with one exception: runs of different slots may overlap where the backend's device is "cpu".
    """

    @abstractmethod
    def run(self, first: int, inputs: Sequence[RunInput], *, all_logits: bool = False) -> np.ndarray:
        """Append new tokens to the sequences in the slots from `first` on, equally many to each.

        Returns logits float32 [sequences, vocabulary] after each one's last token; `all_logits`: [tokens, vocabulary]
        after every token. The next such run may overwrite the array.
        """

    @abstractmethod
    def release(self, slot: int) -> None:
        """Never overwrite the logits again that runs of this slot alone have returned."""

    @abstractmethod
    def clear(self, slot: int, memory: bool) -> None:
        """Begin a sequence in this slot, with or without memory slots. They hold no memories yet."""

    @abstractmethod
    def inject(self, slot: int, memories: Sequence[ExplicitMemory]) -> None:
        """Replace the memories of a sequence that has memory slots by these, at most the model's number."""

    @abstractmethod
    def read_text(self, slot: int, memory: bool, tokens: int, names: Collection[str] = ()) -> TextRows:
        """Copies of the first `tokens` text rows of every cache tensor, or of those that are named."""

    @abstractmethod
    def write_text(self, slot: int, memory: bool, rows: TextRows) -> None:
        """The inverse of `read_text`, into this or another slot, of a sequence with or without memory."""

    def on_host(self, rows: Any) -> np.ndarray:
        """Rows that `read_text` returned, or keys of a memory, as float32 of the host."""
        return np.asarray(rows, np.float32)


class DecoderBackend(ABC):
    """The weights of a decoder, opened for one provider. Thread-safe: any number of runners may share it.

    config: shape of the model. precision: of the weights. provider: name in the table of providers. device: where
    caches are, such as "cpu" or "cuda". threads: of its products on the CPU. warning: why it is not a better provider,
    or "". records_queries: whether runs can leave queries, as those of a graph without that output cannot.
    """

    config: ModelConfig
    precision: str
    provider: str
    device: str
    threads: int
    warning: str
    records_queries: bool = True

    @abstractmethod
    def runner(self, context: int, parallel: int, prefix: Sequence[int] = ()) -> DecoderRunner:
        """New caches of `parallel` sequences of `context` tokens.

        prefix: tokens with which every sequence begins. Raises ProviderError (OUT_OF_MEMORY).
        """

    def reading_format(self, memory_format: MemoryFormat) -> MemoryFormat:
        """The format that decompresses memories for this backend: by default the given one, on the CPU."""
        return memory_format
