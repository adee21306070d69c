"""`MemoryWriter`: references to payloads and vectors on the device, with the bundle's writer, embedder and codec.

The same as `memory_model.nn.writing` and the service's encoder do in torch, up to the rounding of weights.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.runtime import session_options
from edge_client.errors import StorageError
from edge_client.local.database import disk_errors
from memory3.codec.blas import one_thread
from memory3.codec.payload import ExplicitMemory
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput
from memory3.files.bundle import Bundle
from memory3.process_memory import return_free_memory
from memory3.runtime.embedder import CPU_ALONE, Embedder, ExecutionProviders
from memory3.runtime.onnx_runtime import ort
from memory3.text.chat import prefix_ids
from memory3.text.references import fitting_title, split

PASS_TOKENS, SHORT_PASS_TOKENS = 1024, 256
"""Of one forward pass, padding included: a processor gains little by more, and a pass cannot be interrupted. Short
while somebody decodes: each pass costs as much as a hundred tokens more."""


@dataclass(frozen=True)
class Written:
    """payloads: as `MemoryFormat` reads them; vectors: float32 [n, dimension] of unit length, one for each text."""

    payloads: list[bytes]
    vectors: np.ndarray


class MemoryWriter:
    """Writes memories of references. Thread-safe; weights are loaded by the first call and go with the object.

    execution_providers: what runs it, and its embedder if none is given. threads: of the products; more than one take
    cores from the decoder. decoder: to which every pass gives way. Raises StorageError (NO_WRITER) for a bundle that
    cannot write.
    """

    def __init__(
        self,
        bundle: Bundle,
        execution_providers: ExecutionProviders = CPU_ALONE,
        *,
        threads: int = 1,
        embedder: Embedder | None = None,
        decoder: BatchingDecoder | None = None,
    ) -> None:
        if bundle.writer is None:
            raise StorageError(
                f"the bundle at {bundle.folder} only reads memories, it has no writer.onnx",
                reason="NO_WRITER",
                help="export it again with `memory-model export`, or fetch a newer one with `edge-client pull`",
            )
        self.bundle, self._threads, self._path = bundle, threads, bundle.writer
        self._given, self._decoder = embedder, decoder
        self._providers = execution_providers
        self._loading = threading.Lock()
        self._prefix = prefix_ids(bundle.tokenizer, bundle.config.memory)

    def __del__(self) -> None:
        self.__dict__.clear()
        return_free_memory()

    def split(self, text: str, title: str = "") -> list[str]:
        """References of a document's text, cut as the service cuts; raises InvalidInput for too long a title."""
        return split(text, title, self.bundle.tokenizer.count, self.bundle.config.memory.reference_tokens)

    def fitting_title(self, title: str) -> str:
        """The title, or as much of it as may stand before the references of a document."""
        return fitting_title(title, self.bundle.tokenizer.count, self.bundle.config.memory.reference_tokens)

    def write(self, texts: Sequence[str], *, per_step: float = 1.0) -> Written:
        """One memory and one vector for each reference; per_step: see `BatchingDecoder.give_way`.

        Raises InvalidInput for a text that is empty or longer than a reference.
        """
        memories = self.memories(texts, per_step=per_step)
        with one_thread():
            payloads = self.bundle.memory_format.encode(memories)
        return Written(payloads, self.embedder.embed(texts))

    def memories(self, texts: Sequence[str], *, per_step: float = 1.0) -> list[ExplicitMemory]:
        """The memories before they are compressed."""
        limit, ids = self.bundle.config.memory.reference_tokens, self.bundle.tokenizer.encode_batch(texts)
        for number, tokens in enumerate(ids):
            if not 1 <= len(tokens) <= limit:
                raise InvalidInput(
                    f"text {number} has {len(tokens)} tokens, a memory holds 1 to {limit}: split it first"
                )
        written: dict[int, ExplicitMemory] = {}
        waiting = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        while waiting:
            batch = waiting[:1]
            most = SHORT_PASS_TOKENS if self._decoder and self._decoder.decodes else PASS_TOKENS
            for number in waiting[1:]:
                if (len(batch) + 1) * (len(self._prefix) + len(ids[number])) > most:
                    break
                batch.append(number)
            written |= zip(batch, self._pass([ids[n] for n in batch]), strict=True)
            waiting = waiting[len(batch) :]
            if self._decoder:
                self._decoder.give_way(sum(len(ids[n]) for n in batch), per_step)
        return [written[number] for number in range(len(ids))]

    @cached_property
    def embedder(self) -> Embedder:
        """The bundle's, or the one that was given."""
        return self._given or self.bundle.embedder(threads=self._threads, execution_providers=self._providers)

    @cached_property
    def _session(self) -> ort.InferenceSession:
        # Products of float32 activations: rounded ones would change a quarter of the codes.
        options = session_options(self._threads, rounded=False)
        try:
            return ort.InferenceSession(str(self._path), options, providers=list(self._providers))
        except Exception as error:  # the runtime has no common class for its errors
            with disk_errors(self._path):
                file_sha256(self._path)  # where it cannot be read at the moment
            raise CorruptFile(f"{self._path} cannot be loaded: {error}: export the bundle again") from error

    def _pass(self, ids: Sequence[Sequence[int]]) -> list[ExplicitMemory]:
        memory = self.bundle.config.memory
        lengths = np.array([len(tokens) for tokens in ids])
        padded = np.zeros((len(ids), len(self._prefix) + lengths.max()), np.int64)
        padded[:, : len(self._prefix)] = self._prefix
        for row, tokens in enumerate(ids):
            padded[row, len(self._prefix) : len(self._prefix) + len(tokens)] = tokens
        with self._loading:
            session = self._session
        sides = session.run(["keys", "values"], {"token_ids": padded, "lengths": lengths})
        found = []
        for row, count in enumerate(lengths.tolist()):
            valid = memory.valid_rows(count)
            keys, values = (np.zeros(side.shape[1:], np.float32) for side in sides)
            keys[valid], values[valid] = sides[0][row, valid], sides[1][row, valid]
            found.append(ExplicitMemory(keys, values, count))
        return found
