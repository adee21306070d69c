"""The memories that an evaluation reads: each reference is written once, whatever reads it afterwards.

Coded memories are kept as payloads and decoded when they are read, because an exact one of the default
model takes ten times the room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memory_model.codec.payload import ExplicitMemory, MemoryFormat
from memory_model.models.load import LoadedModel
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.writing import stack_memories

_WRITTEN_AT_ONCE = 16


class MemoryBank:
    """Memories by reference text, for one model and one codec. One thread at a time."""

    def __init__(self, loaded: LoadedModel, memory_format: MemoryFormat) -> None:
        self.loaded, self.format = loaded, memory_format
        self._payloads: dict[str, bytes] = {}
        self._exact: dict[str, ExplicitMemory] = {}

    def missing(self, references: Iterable[str], *, exact: bool = False) -> list[str]:
        """Those references that were not written yet, each once, in order."""
        known = self._exact if exact else self._payloads
        return [text for text in dict.fromkeys(references) if text not in known]

    def write(
        self, references: Iterable[str], *, exact: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        """Write and encode what is missing; `exact` also keeps the memories as they were before the codec.

        progress: called with the number of references written since its last call.
        """
        todo = self.missing(references, exact=exact)
        for start in range(0, len(todo), _WRITTEN_AT_ONCE):
            texts = todo[start : start + _WRITTEN_AT_ONCE]
            memories = self.loaded.writer.write(texts)
            self._payloads |= dict(zip(texts, self.format.encode(memories), strict=True))
            if exact:
                self._exact |= dict(zip(texts, memories, strict=True))
            if progress is not None:
                progress(len(texts))

    def recoded(self, memory_format: MemoryFormat) -> MemoryBank:
        """A bank of the same memories through another codec: those that were kept exact."""
        bank = MemoryBank(self.loaded, memory_format)
        bank._exact = self._exact
        payloads = memory_format.encode(list(self._exact.values()))
        bank._payloads = dict(zip(self._exact, payloads, strict=True))
        return bank

    def decoded(self, references: Sequence[str]) -> list[ExplicitMemory]:
        """The memories of references that were written before, as they are after the codec."""
        return self.format.decode([self._payloads[text] for text in references])

    def read(self, references: Sequence[Sequence[str]], *, exact: bool = False) -> MemoryBatch:
        """Memories [B, 1, m] of B conversations, each a list of references that were written before."""
        if exact:
            return stack_memories(
                [[self._exact[text] for text in row] for row in references], self.loaded.config
            )
        texts = list(dict.fromkeys(text for row in references for text in row))
        decoded = dict(zip(texts, self.decoded(texts), strict=True))
        return stack_memories([[decoded[text] for text in row] for row in references], self.loaded.config)
