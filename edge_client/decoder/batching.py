"""`BatchingDecoder`: one model's weights and caches, shared by any number of conversations.

Every answer keeps its own thread and loop. What they read is run by the decoder's one thread, `Scheduler`, which runs
the steps of all together. There are `parallel` slots in the caches; a sequence that needs one takes that of a sequence
that does not decode, whose rows are copied out until it goes on.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_client.decoder.kv import CONTEXT
from edge_client.decoder.providers import open_decoder
from edge_client.decoder.providers.provider import Threads
from edge_client.decoder.runtime import named_errors
from edge_client.decoder.scheduler import LATELY_S, Scheduler, broken
from edge_client.decoder.sequence import CachedSequence
from edge_client.decoder.slots import Slots
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.runtime.backend import DecoderBackend
from memory3.text.chat import prefix_ids, text_start

LOOK_S = 0.02
"""How often work in the background looks whether the others made steps."""


class BatchingDecoder:
    """Thread-safe. Its thread ends with the last reference to it and its sequences.

    prefix: tokens of the modified BOS, with which every sequence begins (paper 3.2). context: tokens of a sequence,
    prefix included, at most what the model was trained for; 0: 2,048 or fewer. parallel: sequences in the caches.
    Raises InvalidInput, ProviderError (OUT_OF_MEMORY).
    """

    def __init__(self, backend: DecoderBackend, prefix: Sequence[int], *, context: int = 0, parallel: int = 4) -> None:
        self.backend, self.config, self.prefix = backend, backend.config, list(prefix)
        trained = self.config.positions
        self.context = context or min(CONTEXT, trained or CONTEXT)
        if trained and self.context > trained:
            raise InvalidInput(
                f"a context of {self.context} tokens exceeds the {trained} that {self.config.name} was trained for"
            )
        if self.context < len(self.prefix) + self.config.memory.chunk_tokens or parallel < 1:
            raise InvalidInput(
                f"a context of {self.context} tokens and {parallel} sequences: at least the prefix, "
                f"a chunk of {self.config.memory.chunk_tokens} tokens, and one"
            )
        self.parallel = parallel
        with named_errors(f"the key-values of {parallel} conversations"):
            runner = backend.runner(self.context, parallel, self.prefix)
        first_position = text_start(self.prefix, self.config.memory)
        slots = Slots(runner, parallel, self.context, self.prefix, first_position)
        if (error := broken(slots.prefix_logits)) is not None:
            raise error
        self._sequences: weakref.WeakSet[CachedSequence] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._hurried = 0  # threads that wait for work in the background
        self.scheduler = Scheduler(runner, slots, concurrent_steps=backend.device == "cpu")
        weakref.finalize(self, self.scheduler.stop)

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        threads: Threads = 1,
        provider: str = "cpu",
        context: int = 0,
        parallel: int = 4,
        model: Path | None = None,
    ) -> BatchingDecoder:
        """The decoder of a bundle; see `open_decoder` for what else it raises."""
        size = {"context": context, "parallel": parallel}
        backend = open_decoder(bundle.decoder, threads=threads, provider=provider, model=model, **size)
        return cls(backend, prefix_ids(bundle.tokenizer, bundle.config.memory), **size)

    @property
    def room(self) -> int:
        """Tokens of text that fit into a sequence."""
        return self.context - len(self.prefix)

    @property
    def batch_sizes(self) -> Counter[int]:
        """Steps by their number of sequences."""
        return self.scheduler.batch_sizes

    def sequence(self, source: object = None) -> CachedSequence:
        """One more conversation; it takes a slot when it reads. source: see `CachedSequence`."""
        made = CachedSequence(self, source)
        with self._lock:
            self._sequences.add(made)
        return made

    def others(self, sequence: CachedSequence) -> list[CachedSequence]:
        """Sequences whose rows this one can read: of the same source."""
        return [o for o in self._all() if o is not sequence and o.source == sequence.source]

    @property
    def decodes(self) -> bool:
        """Whether somebody waits for tokens now: a sequence reads, or has read a moment ago, not in the background."""
        lately = time.monotonic() - LATELY_S - 2 * self.scheduler.step_s
        return any(s.per_step is None and not s.over and (s.reading or s.last_read > lately) for s in self._all())

    def give_way(self, tokens: int, per_step: float = 1.0) -> None:
        """After work in the background on so many tokens: wait, while others decode, for a step per `per_step` tokens.

        A token that is written or read takes a fifth to a quarter of a step, whatever the machine. So by default this
        work takes at most such a share of a core, and of a machine's only one.
        """
        until = self.scheduler.steps + tokens / per_step
        while self.scheduler.steps < until and self.decodes and not self._hurried:
            time.sleep(LOOK_S)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Nothing in the background gives way within: somebody waits for it."""
        with self._lock:
            self._hurried += 1
        try:
            yield
        finally:
            with self._lock:
                self._hurried -= 1

    def _all(self) -> list[CachedSequence]:
        with self._lock:
            return list(self._sequences)
