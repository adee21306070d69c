"""A batch that is written and read in passes over rows of similar lengths, by threads that share the rows.

Rows of similar lengths are read packed, next to each other, in as many passes as memory requires. The result is that
of one pass over the padded batch, in less time and memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from memory3.text.chat import text_start
from memory_model.data.batches import Batch, buckets
from memory_model.nn.decoder import Decoder, MemoryBatch, PackedRows
from memory_model.nn.writing import write_memories
from memory_model.train.coding import Coding

Share = TypeVar("Share")
Result = TypeVar("Result")
Written = tuple[MemoryBatch, list[int]]
"""Memories [N, budget, d] of some of a batch's references, and which these are."""

_PART_TOKENS = {"cpu": 8}
"""What attention to one more length costs, in tokens; on a GPU, where it is starting kernels, 128."""


@dataclass
class BatchResult:
    """What was computed for a batch: losses in nats a token, tokens and seconds.

    answers: cross-entropy of the labels, or DPO's loss; kept: divergence from the original model; 0 where there is
    none. tokens: of references and texts without padding; real, computed: of all passes, without and with padding.
    """

    answers: float = 0.0
    kept: float = 0.0
    tokens: int = 0
    real: int = 0
    computed: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("write", "read", "fixed", "backward"), 0.0)
    )

    def add(self, other: BatchResult, share: float) -> None:
        """Add what another part of the batch counted, and a share of its seconds."""
        self.answers, self.kept = self.answers + other.answers, self.kept + other.kept
        self.tokens, self.computed = self.tokens + other.tokens, self.computed + other.computed
        for part, seconds in other.seconds.items():
            self.seconds[part] += share * seconds

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds of a `with` to those of a part; waits for the GPU."""
        began = _now()
        yield
        self.seconds[part] += _now() - began


def _now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class BatchPasses:
    """A batch that a model writes and reads; what that takes is counted in `done`.

    prefix: the tokens before every row. most_tokens: of one pass, padding included. threads: share the rows, each with
    one core, which takes less time than all cores at every product.
    """

    model: Decoder
    batch: Batch
    prefix: Sequence[int]
    most_tokens: int
    threads: int
    done: BatchResult

    def each(self, work: Callable[[Share, BatchResult], Result], shares: Sequence[Share]) -> list[Result]:
        """Results of `work` for each share, computed side by side; of the seconds that it counts, the mean."""
        own = [BatchResult() for _ in shares]
        alone = len(shares) == 1
        found = [work(shares[0], own[0])] if alone else list(_one_core_threads(len(shares)).map(work, shares, own))
        for part in own:
            self.done.add(part, 1 / len(shares))
        return found

    def shares(self, lengths: Sequence[int]) -> list[list[int]]:
        """Rows of these lengths dealt to the threads, about as many tokens to each."""
        shares: list[list[int]] = [[] for _ in range(min(self.threads, len(lengths)))]
        tokens = [0] * len(shares)
        for row in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
            least = tokens.index(min(tokens))
            shares[least].append(row)
            tokens[least] += lengths[row]
        return [sorted(share) for share in shares]

    def lengths(self, row_K: Tensor, column_K: Tensor) -> list[int]:
        """Tokens of each row up to the last at (row, column), behind which nothing is needed."""
        none = row_K.new_ones(len(self.batch.ids))
        return list(none.scatter_reduce(0, row_K, column_K + 1, "amax").tolist())

    def parts(self, rows: Sequence[int], lengths: list[int], reads: list[bool]) -> Iterator[list[list[int]]]:
        """Of each pass the rows of each length.

        Rows of like lengths are together, those that read no memory apart, as many as a pass may have tokens.
        """
        fixed = _PART_TOKENS.get(self.batch.ids.device.type, 128)
        parts: list[list[int]] = []
        tokens = 0
        for kind in (True, False):
            own = [row for row in rows if reads[row] == kind]
            for numbers in buckets([lengths[row] for row in own], fixed=fixed, most=self.most_tokens):
                part = [own[number] for number in numbers]
                size = len(part) * lengths[part[-1]]
                if parts and tokens + size > self.most_tokens:
                    yield parts
                    parts, tokens = [], 0
                parts.append(part)
                tokens += size
        if parts:
            yield parts

    def reads(self) -> list[bool]:
        """Which rows read a memory."""
        return list((self.batch.memories >= 0).any(dim=(1, 2)).tolist())

    def write(self) -> list[Written]:
        """Memories of the batch's references, one share after the other; none where there are no references."""
        lengths = self.batch.reference_lengths.tolist()
        return self.each(self._write, self.shares(lengths)) if lengths else []

    def _write(self, rows: list[int], own: BatchResult) -> Written:
        batch = self.batch
        lengths = batch.reference_lengths.tolist()
        written, order = [], []
        with own.timed("write"):
            for parts in self.parts(rows, lengths, [True] * len(lengths)):
                references = batch.reference_ids, batch.reference_lengths
                written.append(write_memories(self.model, *references, self.prefix, parts))
                order += [row for part in parts for row in part]
                own.computed += sum(len(part) * lengths[part[-1]] for part in parts)
            own.tokens += sum(lengths[row] for row in order)
            return MemoryBatch(*_sides(written)), order

    @torch.no_grad()
    def states(self, row_K: Tensor, column_K: Tensor, memory: MemoryBatch | None = None) -> Tensor:
        """Hidden states [K, D] of the batch's tokens at (row, column)."""
        lengths, head, reads = self.lengths(row_K, column_K), self.model.head_weight, self.reads()
        found = torch.empty(len(row_K), self.model.config.hidden, dtype=head.dtype, device=self.batch.ids.device)

        @torch.no_grad()
        def look(rows: list[int], own: BatchResult) -> None:
            with own.timed("fixed"):
                for parts in self.parts(rows, lengths, reads):
                    here, hidden = self.read(parts, lengths, row_K, column_K, own, memory)
                    found[here] = hidden.to(found.dtype)

        self.each(look, self.shares(lengths))
        self.done.real += sum(lengths)
        return found

    def read(
        self,
        parts: list[list[int]],
        lengths: list[int],
        row_K: Tensor,
        column_K: Tensor,
        own: BatchResult,
        memory: MemoryBatch | None,
    ) -> tuple[Tensor, Tensor]:
        """Which of the tokens at (row, column) are in one pass, bool [K], and their normed hidden states.

        parts: the rows of each length; each token reads its chunk's memories, where any of a part's do.
        """
        batch, device, P = self.batch, self.batch.ids.device, len(self.prefix)
        first = text_start(self.prefix, self.model.config.memory)
        before = torch.tensor(self.prefix, device=device)
        start_B = torch.full((len(lengths),), -1, device=device)
        ids: list[Tensor] = []
        positions, packed = [], []
        for part in parts:
            count, longest = len(part), lengths[part[-1]]
            start_B[part] = sum(map(len, ids)) + P + (P + longest) * torch.arange(count, device=device)
            ids.append(torch.cat((before.expand(count, P), batch.ids[part, :longest]), dim=1).flatten())
            positions.append(
                torch.cat((torch.arange(P), torch.arange(first, first + longest))).to(device).repeat(count)
            )
            own.computed += count * longest
            read = chunks = None
            if memory is not None and bool((batch.memories[part] >= 0).any()):
                read = memory.select(batch.memories[part])
                chunks = torch.cat((torch.full((count, P), -1, device=device), batch.chunks[part, :longest]), dim=1)
            packed.append(PackedRows(count, P + longest, read, chunks))
        here = start_B[row_K] >= 0
        at = (start_B[row_K] + column_K)[here]
        return here, self.model.packed(torch.cat(ids), torch.cat(positions), packed, at)


@cache
def _one_core_threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "memory3-tune", initializer=torch.set_num_threads, initargs=(1,))


def _sides(memories: Sequence[MemoryBatch]) -> list[Tensor]:
    """Keys, values and validity of all of them, one after the other."""
    return [torch.cat([getattr(m, f.name) for m in memories]) for f in fields(MemoryBatch)]


@torch.no_grad()
def joined(written: Sequence[Written], coding: Coding | None) -> MemoryBatch | None:
    """All shares' memories in the batch's order, as leaves of float32 that gradients reach; None for no share."""
    if not written:
        return None
    back = torch.tensor([row for _, order in written for row in order]).argsort()
    memory = MemoryBatch(*(side[back.to(side.device)] for side in _sides([m for m, _ in written])))
    memory = coding(memory) if coding else memory
    keys, values = (x.float().requires_grad_() for x in (memory.keys, memory.values))
    return MemoryBatch(keys, values, memory.valid)
