"""The losses of a batch and their gradients, computed in passes over rows of similar lengths.

A batch's references are written once, with the model itself. Its texts are read packed, rows of similar lengths next
to each other, in as many passes as memory requires; each pass adds to the gradient of the memories, which is
propagated through writing at the end. The result is that of one pass over the padded batch, in less time and memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory3.codec.codec import MemoryCodec
from memory3.codec.payload import vector_rows
from memory3.config import MemoryConfig
from memory3.text.chat import text_start
from memory_model.data.batches import IGNORE, Batch, buckets
from memory_model.nn.adapter import at_start, original
from memory_model.nn.decoder import Decoder, MemoryBatch, PackedRows
from memory_model.nn.generate import read
from memory_model.nn.writing import write_memories

Share = TypeVar("Share")
Result = TypeVar("Result")
Coding = Callable[[MemoryBatch], MemoryBatch]
"""What happens to memories between writing and reading."""

_HEAD_ROWS = 256
"""Positions whose logits exist at once: float32 over the whole vocabulary."""
_PART_TOKENS = {"cpu": 8}
"""What attention to one more length costs, in tokens; on a GPU, where it is starting kernels, 128."""


@dataclass
class Pass:
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

    def add(self, other: Pass, share: float) -> None:
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


def batch_gradients(
    model: Decoder,
    batch: Batch,
    prefix: Sequence[int],
    *,
    coding: Coding | None = None,
    weight: float = 1.0,
    most_tokens: int = 8192,
    threads: int = 1,
    beta: float = 0.01,
) -> Pass:
    """Add the gradient of `weight` x (cross-entropy + divergence from the original model) to the parameters'.

    Of preferences it is that of DPO's loss with inverse temperature `beta`; the reference model is the start, which
    writes and reads memories of its own (paper 6.2).
    coding: gradients pass through it as through the identity. most_tokens: of one pass, padding included. threads:
    share the rows, each with one core, which takes less time than all cores at every product. References that no text
    reads are not written.
    """
    done = Pass()
    used, index = batch.memories.unique(return_inverse=True)
    empty = int((used < 0).sum())
    ids, lengths_N = (x[used[empty:]] for x in (batch.reference_ids, batch.reference_lengths))
    batch = replace(batch, reference_ids=ids, reference_lengths=lengths_N, memories=index - empty)
    parameters = [p for p in model.parameters() if p.requires_grad]
    written: list[tuple[MemoryBatch, list[int]]] = []
    leaf = start_B = None
    shares = _shares(batch.reference_lengths.tolist(), threads)
    write = partial(_written, model, batch, prefix, most_tokens)
    if batch.preferences:
        with torch.random.fork_rng([]), torch.no_grad(), at_start(model):  # the same noise once more below
            memory = _joined(_each(write, shares, done), coding)
            start_B = _log_likelihoods(model, batch, prefix, memory, done, most_tokens, threads)
    if len(batch.reference_ids):
        written = _each(write, shares, done)
        leaf = _joined(written, coding)
    seen = None
    if batch.kept is not None:
        with original(model):
            seen = _seen(model, *_teaching(batch, batch.kept), prefix, done, most_tokens, threads)
    row, column, target, kept = _predictions(batch)
    labels, same = int((target >= 0).sum()), 0 if batch.kept is None else len(batch.kept)
    answer_weight_B = torch.full((len(batch.ids),), weight / max(1, labels), device=batch.ids.device)
    if start_B is not None:
        gained_P2 = (_log_likelihoods(model, batch, prefix, leaf, done, most_tokens, threads) - start_B).view(-1, 2)
        margin_P = gained_P2[:, 0] - gained_P2[:, 1]
        slope_P = weight * beta * torch.sigmoid(-beta * margin_P) / len(margin_P)
        answer_weight_B = torch.stack((slope_P, -slope_P), 1).flatten()
    lengths = _lengths(len(batch.ids), row, column)
    inputs = parameters if leaf is None else [*parameters, leaf.keys, leaf.values]

    def learn(rows: list[int], own: Pass) -> list[Tensor | None]:
        """Gradients of the inputs: parameters, then memories."""
        sums: list[Tensor | None] = [None] * len(inputs)
        reads = (batch.memories >= 0).any(dim=(1, 2)).tolist()
        for parts in _passes(rows, lengths, reads, most_tokens, batch.ids.device.type):
            own.tokens += sum(lengths[number] for part in parts for number in part)
            with own.timed("read"):
                here, states = _read_packed(model, batch, lengths, prefix, parts, row, column, own, leaf)
                answers, divergence, gradient, head = _head_gradient(
                    model,
                    states.detach(),
                    target[here],
                    kept[here],
                    seen,
                    answer_weight_B[row[here]],
                    weight / max(1, same),
                )
                own.answers += answers / max(1, labels)
                own.kept += divergence / max(1, same)
            if states.requires_grad:
                with own.timed("backward"):
                    found: list[Tensor | None] = [*torch.autograd.grad(states, inputs, gradient, allow_unused=True)]
                    if head is not None:
                        index = next(n for n, p in enumerate(parameters) if p is model.head_weight)
                        found[index] = _added([head, found[index]])
                    sums = [_added(pair) for pair in zip(sums, found, strict=True)]
        return sums

    gradients = _each(learn, _shares(lengths, threads), done)
    received = [_added(sides) for sides in zip(*(found[len(parameters) :] for found in gradients), strict=True)]
    if any(memories.keys.requires_grad for memories, _ in written) and None not in received:

        def back(share: tuple[MemoryBatch, list[int]], own: Pass) -> list[Tensor | None]:
            """Gradients of the parameters through the writing of a share's references."""
            memories, order = share
            sides = (memories.keys, memories.values)
            with own.timed("backward"):
                at = [cast(Tensor, g)[order].to(x.dtype) for x, g in zip(sides, received, strict=True)]
                return list(torch.autograd.grad(sides, parameters, at, allow_unused=True))

        gradients += _each(back, written, done)
    for index, parameter in enumerate(parameters):
        parameter.grad = _added([parameter.grad, *(found[index] for found in gradients)])
    done.real += done.tokens
    if start_B is not None:
        done.answers = float(-F.logsigmoid(beta * margin_P).mean())
    return done


def _teaching(batch: Batch, kept_K2: Tensor) -> tuple[Batch, Tensor]:
    """The batch that the model without its adapter reads, and (row, column) of its predictions in it."""
    ids = batch.teacher_ids
    if ids is None or batch.taught is None:
        return batch, kept_K2
    return replace(batch, ids=ids, memories=batch.memories.new_full((len(ids), 1, 1), -1)), batch.taught


def _predictions(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the K tokens that predict something: row, column, learned next token, index into `batch.kept`; -1: none."""
    length = batch.ids.shape[1]
    row, column = (batch.labels[:, 1:] != IGNORE).nonzero().T
    learned = row * length + column
    same = learned[:0] if batch.kept is None else batch.kept[:, 0] * length + batch.kept[:, 1]
    tokens = torch.cat((learned, same)).unique()
    target, kept = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
    target[torch.searchsorted(tokens, learned)] = batch.labels[row, column + 1]
    kept[torch.searchsorted(tokens, same)] = torch.arange(len(same), device=same.device)
    return tokens // length, tokens % length, target, kept


@torch.no_grad()
def _head_gradient(
    model: Decoder,
    states_KD: Tensor,
    target_K: Tensor,
    kept_K: Tensor,
    seen_MD: Tensor | None,
    answer_weight_K: Tensor,
    kept_weight: float,
) -> tuple[float, float, Tensor, Tensor | None]:
    """Sums of cross-entropy and divergence; gradients of their weighted sum: of states [K, D], a trained head [V, D].

    By hand, because autograd keeps several float32 tensors over the whole vocabulary. Of logits l and the original's r:
    softmax(l) - onehot(target) and softmax(l) - softmax(r).
    """
    answers = divergence = 0.0
    gradients = []
    head = torch.zeros_like(model.head_weight) if model.head_weight.requires_grad else None
    split = (x.split(_HEAD_ROWS) for x in (states_KD, target_K, kept_K, answer_weight_K))
    for states, target, kept, answer_weight in zip(*split, strict=True):
        log_p = model.head(states).float().log_softmax(-1)
        learned, same = (target >= 0).nonzero()[:, 0], (kept >= 0).nonzero()[:, 0]
        answers -= float(log_p[learned, target[learned]].sum())
        right = None
        if len(same) and seen_MD is not None:
            right = model.head(seen_MD[kept[same]]).float().log_softmax(-1)
            difference = right - (log_p if len(same) == len(log_p) else log_p[same])
            divergence += float(torch.linalg.vecdot(right.exp_(), difference).sum())
        gradient = log_p.exp_().mul_((answer_weight * (target >= 0) + kept_weight * (kept >= 0))[:, None])
        gradient[learned, target[learned]] -= answer_weight[learned]
        if right is not None:
            gradient.index_add_(0, same, right, alpha=-kept_weight)
        gradients.append(gradient.to(model.head_weight.dtype) @ model.head_weight)
        if head is not None:
            head += gradient.T @ states
    return answers, divergence, torch.cat(gradients), head


def _shares(lengths: Sequence[int], threads: int) -> list[list[int]]:
    """Rows dealt into as many shares as there are threads, each of about as many tokens."""
    shares: list[list[int]] = [[] for _ in range(min(threads, len(lengths)))]
    tokens = [0] * len(shares)
    for row in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        least = tokens.index(min(tokens))
        shares[least].append(row)
        tokens[least] += lengths[row]
    return [sorted(share) for share in shares]


def _each(work: Callable[[Share, Pass], Result], shares: Sequence[Share], done: Pass) -> list[Result]:
    """Results of `work` for each share, computed side by side; what they count is added to `done`, seconds averaged."""
    own = [Pass() for _ in shares]
    alone = len(shares) == 1
    found = [work(shares[0], own[0])] if alone else list(_one_core_threads(len(shares)).map(work, shares, own))
    for part in own:
        done.add(part, 1 / len(shares))
    return found


@cache
def _one_core_threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "memory3-tune", initializer=torch.set_num_threads, initargs=(1,))


def _added(gradients: Iterable[Tensor | None]) -> Tensor | None:
    """Their sum, in place of the first; None where there is none."""
    there = [gradient for gradient in gradients if gradient is not None]
    for gradient in there[1:]:
        there[0].add_(gradient)
    return there[0] if there else None


def _written(
    model: Decoder, batch: Batch, prefix: Sequence[int], most_tokens: int, rows: list[int], own: Pass
) -> tuple[MemoryBatch, list[int]]:
    """Memories [N, budget, d] of some of the batch's references, and which these are."""
    lengths = batch.reference_lengths.tolist()
    written, order = [], []
    with own.timed("write"):
        for parts in _passes(rows, lengths, [True] * len(lengths), most_tokens, batch.ids.device.type):
            written.append(write_memories(model, batch.reference_ids, batch.reference_lengths, prefix, parts))
            order += [row for part in parts for row in part]
            own.computed += sum(len(part) * lengths[part[-1]] for part in parts)
        own.tokens += sum(lengths[row] for row in order)
        return MemoryBatch(*_sides(written)), order


def _sides(memories: Sequence[MemoryBatch]) -> list[Tensor]:
    """Keys, values and validity of all of them, one after the other."""
    return [torch.cat([getattr(m, f.name) for m in memories]) for f in fields(MemoryBatch)]


@torch.no_grad()
def _joined(written: Sequence[tuple[MemoryBatch, list[int]]], coding: Coding | None) -> MemoryBatch:
    """All shares' memories in the batch's order, as leaves of float32 that gradients reach."""
    back = torch.tensor([row for _, order in written for row in order]).argsort()
    memory = MemoryBatch(*(side[back.to(side.device)] for side in _sides([m for m, _ in written])))
    memory = coding(memory) if coding else memory
    keys, values = (x.float().requires_grad_() for x in (memory.keys, memory.values))
    return MemoryBatch(keys, values, memory.valid)


@torch.no_grad()
def _seen(
    model: Decoder,
    batch: Batch,
    places_K2: Tensor,
    prefix: Sequence[int],
    done: Pass,
    most_tokens: int,
    threads: int,
    memory: MemoryBatch | None = None,
) -> Tensor:
    """Hidden states [K, D] of the tokens at (row, column) of a batch."""
    lengths, device = _lengths(len(batch.ids), *places_K2.T), batch.ids.device
    found = torch.empty(len(places_K2), model.config.hidden, dtype=model.head_weight.dtype, device=device)
    row, column = places_K2.T
    reads = (batch.memories >= 0).any(dim=(1, 2)).tolist()

    @torch.no_grad()
    def look(rows: list[int], own: Pass) -> None:
        with own.timed("fixed"):
            for parts in _passes(rows, lengths, reads, most_tokens, device.type):
                here, hidden = _read_packed(model, batch, lengths, prefix, parts, row, column, own, memory)
                found[here] = hidden.to(found.dtype)

    _each(look, _shares(lengths, threads), done)
    done.real += sum(lengths)
    return found


@torch.no_grad()
def _log_likelihoods(
    model: Decoder,
    batch: Batch,
    prefix: Sequence[int],
    memory: MemoryBatch | None,
    done: Pass,
    most_tokens: int,
    threads: int,
) -> Tensor:
    """Log likelihood [B] (nats, float32) of each row's labels."""
    row, column, target, _ = _predictions(batch)
    states = _seen(model, batch, torch.stack((row, column), 1), prefix, done, most_tokens, threads, memory)
    found = torch.zeros(len(batch.ids), device=batch.ids.device)
    for part, answer, number in zip(*(x.split(_HEAD_ROWS) for x in (states, target, row)), strict=True):
        found.index_add_(0, number, F.cross_entropy(model.head(part).float(), answer, reduction="none"), alpha=-1)
    return found


def _passes(
    rows: Sequence[int], lengths: list[int], reads: list[bool], most_tokens: int, device: str
) -> Iterator[list[list[int]]]:
    """Rows of like lengths together, those that read no memory apart; as many lengths a pass as it may have tokens."""
    fixed = _PART_TOKENS.get(device, 128)
    parts: list[list[int]] = []
    tokens = 0
    for kind in (True, False):
        own = [row for row in rows if reads[row] == kind]
        for numbers in buckets([lengths[row] for row in own], fixed=fixed, most=most_tokens):
            part = [own[number] for number in numbers]
            size = len(part) * lengths[part[-1]]
            if parts and tokens + size > most_tokens:
                yield parts
                parts, tokens = [], 0
            parts.append(part)
            tokens += size
    if parts:
        yield parts


def _read_packed(
    model: Decoder,
    batch: Batch,
    lengths: list[int],
    prefix: Sequence[int],
    parts: list[list[int]],
    row_K: Tensor,
    column_K: Tensor,
    done: Pass,
    memory: MemoryBatch | None = None,
) -> tuple[Tensor, Tensor]:
    """Which of the tokens at (row, column) of a batch are in these rows, bool [K], and their normed hidden states.

    parts: the rows of each length; each token reads its chunk's memories, where any of a part's do.
    """
    P, device = len(prefix), batch.ids.device
    first = text_start(prefix, model.config.memory)
    before = torch.tensor(prefix, device=device)
    start_B = torch.full((len(lengths),), -1, device=device)
    ids: list[Tensor] = []
    positions, packed = [], []
    for part in parts:
        count, longest = len(part), lengths[part[-1]]
        start_B[part] = sum(map(len, ids)) + P + (P + longest) * torch.arange(count, device=device)
        ids.append(torch.cat((before.expand(count, P), batch.ids[part, :longest]), dim=1).flatten())
        own = torch.cat((torch.arange(P), torch.arange(first, first + longest))).to(device)
        positions.append(own.repeat(count))
        done.computed += count * longest
        read = chunks = None
        if memory is not None and bool((batch.memories[part] >= 0).any()):
            read = memory.select(batch.memories[part])
            chunks = torch.cat((torch.full((count, P), -1, device=device), batch.chunks[part, :longest]), dim=1)
        packed.append(PackedRows(count, P + longest, read, chunks))
    here = start_B[row_K] >= 0
    return here, model.packed(torch.cat(ids), torch.cat(positions), packed, (start_B[row_K] + column_K)[here])


def _lengths(rows: int, row_K: Tensor, column_K: Tensor) -> list[int]:
    """Tokens of each row up to the last at (row, column), behind which nothing is needed."""
    return list(row_K.new_ones(rows).scatter_reduce(0, row_K, column_K + 1, "amax").tolist())


def read_loss(model: Decoder, batch: Batch, prefix: Sequence[int], memory: MemoryBatch | None) -> Tensor:
    """Mean cross-entropy (nats) of the labels with memories that were written before."""
    hidden = read(model, batch.ids, prefix, memory, batch.chunks)
    learned = batch.labels[:, 1:] != IGNORE
    return F.cross_entropy(model.head(hidden[:, :-1][learned]).float(), batch.labels[:, 1:][learned])


def with_codec_noise(memory: MemoryBatch, share: float) -> MemoryBatch:
    """Add Gaussian noise of `share` of the variance of each row of the budget.

    The variance of a row is taken over the written references and averaged over its dimensions.
    """
    if share <= 0:
        return memory

    def noisy(x_NMd: Tensor) -> Tensor:
        with torch.no_grad():
            valid = memory.valid[..., None].float()
            mean = (x_NMd * valid).sum(0) / valid.sum(0).clamp_min(1)
            spread = (((x_NMd - mean) * valid).square().sum(0) / valid.sum(0).clamp_min(1)).mean(-1, keepdim=True)
            noise = torch.randn_like(x_NMd, dtype=torch.float32) * (spread * share).sqrt() * valid
        return x_NMd + noise.to(x_NMd.dtype)

    return MemoryBatch(noisy(memory.keys), noisy(memory.values), memory.valid)


@torch.no_grad()
def through_codec(memory: MemoryBatch, table: MemoryConfig, codec: MemoryCodec) -> MemoryBatch:
    """Memories [N, budget, d] as readers get them, so that both sides adapt to the codec's errors."""
    sides = torch.cat((memory.keys, memory.values), dim=1).float().cpu().numpy()
    longest = max(range(len(table.heads)), key=lambda n: table.heads[n].tokens)
    first = table.offsets[longest]
    tokens = memory.valid[:, first : first + table.heads[longest].tokens].sum(1).tolist()
    rows = [vector_rows(table, count, codec.together) for count in tokens]
    vectors = np.concatenate([own[kept_rows] for own, kept_rows in zip(sides, rows, strict=True)])
    codes = codec.encode(vectors.reshape(-1, codec.together * codec.head_dim))
    read = codec.decode(codes).reshape(-1, codec.head_dim)
    for own, kept_rows, coded in zip(sides, rows, np.split(read, np.cumsum([len(r) for r in rows])[:-1]), strict=True):
        own[kept_rows] = coded
    keys, values = torch.from_numpy(sides).to(memory.keys).split(table.budget, dim=1)
    return MemoryBatch(keys, values, memory.valid)
