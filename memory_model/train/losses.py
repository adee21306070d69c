"""The losses of a batch and their gradients.

A batch's references are written once, with the model itself. Its texts are read in passes (`train.passes`), and each
pass adds to the gradient of the memories, which is propagated through writing at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.data.batches import IGNORE, Batch
from memory_model.nn.adapter import at_start, original
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.generate import read
from memory_model.train.coding import Coding
from memory_model.train.passes import BatchPasses, BatchResult, Written, joined

_HEAD_ROWS = 256
"""Positions whose logits exist at once: float32 over the whole vocabulary."""


class _Predictions(NamedTuple):
    """The K tokens of a batch that predict something, in the order of their places.

    target: the next token that is learned; kept: the index into `batch.kept`; -1: none.
    """

    row: Tensor
    column: Tensor
    target: Tensor
    kept: Tensor

    @classmethod
    def of(cls, batch: Batch) -> _Predictions:
        """Those with a label, and those that shall stay as they are."""
        length = batch.ids.shape[1]
        row, column = (batch.labels[:, 1:] != IGNORE).nonzero().T
        learned = row * length + column
        same = learned[:0] if batch.kept is None else batch.kept[:, 0] * length + batch.kept[:, 1]
        tokens = torch.cat((learned, same)).unique()
        target, kept = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
        target[torch.searchsorted(tokens, learned)] = batch.labels[row, column + 1]
        kept[torch.searchsorted(tokens, same)] = torch.arange(len(same), device=same.device)
        return cls(tokens // length, tokens % length, target, kept)


@dataclass(frozen=True)
class _Loss:
    """Weighted cross-entropy and divergence from the original model, at the tokens that predict something.

    answer_weight_B: of each row's labels. kept_weight: of each token in `batch.kept`. original_MD: the hidden states of
    the original model there.
    """

    model: Decoder
    at: _Predictions
    answer_weight_B: Tensor
    kept_weight: float
    original_MD: Tensor | None

    @torch.no_grad()
    def gradient(self, here_K: Tensor, states_KD: Tensor) -> tuple[float, float, Tensor, Tensor | None]:
        """Sums of cross-entropy and divergence; gradients of their weighted sum: of states, a trained head [V, D].

        here_K: which of the tokens the states are of. By hand, because autograd keeps several float32 tensors over the
        whole vocabulary. Of logits l and the original's r: softmax(l) - onehot(target) and softmax(l) - softmax(r).
        """
        model, at = self.model, self.at
        answers = divergence = 0.0
        gradients = []
        head = torch.zeros_like(model.head_weight) if model.head_weight.requires_grad else None
        weights = self.answer_weight_B[at.row[here_K]]
        split = (x.split(_HEAD_ROWS) for x in (states_KD, at.target[here_K], at.kept[here_K], weights))
        for states, target, kept, answer_weight in zip(*split, strict=True):
            log_p = model.head(states).float().log_softmax(-1)
            learned, same = (target >= 0).nonzero()[:, 0], (kept >= 0).nonzero()[:, 0]
            answers -= float(log_p[learned, target[learned]].sum())
            right = None
            if len(same) and self.original_MD is not None:
                right = model.head(self.original_MD[kept[same]]).float().log_softmax(-1)
                difference = right - (log_p if len(same) == len(log_p) else log_p[same])
                divergence += float(torch.linalg.vecdot(right.exp_(), difference).sum())
            gradient = log_p.exp_().mul_((answer_weight * (target >= 0) + self.kept_weight * (kept >= 0))[:, None])
            gradient[learned, target[learned]] -= answer_weight[learned]
            if right is not None:
                gradient.index_add_(0, same, right, alpha=-self.kept_weight)
            gradients.append(gradient.to(model.head_weight.dtype) @ model.head_weight)
            if head is not None:
                head += gradient.T @ states
        return answers, divergence, torch.cat(gradients), head


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
) -> BatchResult:
    """Add the gradient of `weight` x (cross-entropy + divergence from the original model) to the parameters'.

    Of preferences it is that of DPO's loss with inverse temperature `beta`; the reference model is the start, which
    writes and reads memories of its own (paper 6.2).
    coding: gradients pass through it as through the identity. most_tokens, threads: see `BatchPasses`. References that
    no text reads are not written.
    """
    done = BatchResult()
    passes = BatchPasses(model, _without_unread_references(batch), prefix, most_tokens, threads, done)
    batch, at = passes.batch, _Predictions.of(passes.batch)
    labels, kept = int((at.target >= 0).sum()), 0 if batch.kept is None else len(batch.kept)
    start_B = _log_likelihoods_at_start(passes, coding) if batch.preferences else None
    written = passes.write()
    memory = joined(written, coding)
    original_MD = None if batch.kept is None else _original_states(passes, batch.kept)
    if start_B is None:
        margin_P = None
        answer_weight_B = torch.full((len(batch.ids),), weight / max(1, labels), device=batch.ids.device)
    else:
        gained_P2 = (_log_likelihoods(passes, memory) - start_B).view(-1, 2)
        margin_P = beta * (gained_P2[:, 0] - gained_P2[:, 1])
        slope_P = weight * beta * torch.sigmoid(-margin_P) / len(margin_P)
        answer_weight_B = torch.stack((slope_P, -slope_P), 1).flatten()
    loss = _Loss(model, at, answer_weight_B, weight / max(1, kept), original_MD)
    _add_gradients(passes, loss, memory, written)
    done.real += done.tokens
    done.answers /= max(1, labels)
    done.kept /= max(1, kept)
    if margin_P is not None:
        done.answers = float(-F.logsigmoid(margin_P).mean())
    return done


def _without_unread_references(batch: Batch) -> Batch:
    used, index = batch.memories.unique(return_inverse=True)
    none = int((used < 0).sum())  # the number of rows and chunks that read no memory, -1, is one of the used
    ids, lengths_N = (x[used[none:]] for x in (batch.reference_ids, batch.reference_lengths))
    return replace(batch, reference_ids=ids, reference_lengths=lengths_N, memories=index - none)


def _original_states(passes: BatchPasses, kept_K2: Tensor) -> Tensor:
    """Hidden states [K, D] of the model without its adapter, which may read the references as text, at `batch.kept`."""
    batch = passes.batch
    if batch.teacher_ids is not None and batch.taught is not None:
        ids, kept_K2 = batch.teacher_ids, batch.taught
        passes = replace(passes, batch=replace(batch, ids=ids, memories=batch.memories.new_full((len(ids), 1, 1), -1)))
    with original(passes.model):
        return passes.states(*kept_K2.T)


def _log_likelihoods_at_start(passes: BatchPasses, coding: Coding | None) -> Tensor:
    """Log likelihood [B] of each row's labels by the model as it was before tuning, which wrote its memories, too."""
    with torch.random.fork_rng([]), torch.no_grad(), at_start(passes.model):  # the same noise once more afterwards
        return _log_likelihoods(passes, joined(passes.write(), coding))


@torch.no_grad()
def _log_likelihoods(passes: BatchPasses, memory: MemoryBatch | None) -> Tensor:
    """Log likelihood [B] (nats, float32) of each row's labels."""
    ids, (row, column, target, _) = passes.batch.ids, _Predictions.of(passes.batch)
    states = passes.states(row, column, memory)
    found = torch.zeros(len(ids), device=ids.device)
    for part, answer, number in zip(*(x.split(_HEAD_ROWS) for x in (states, target, row)), strict=True):
        logits = passes.model.head(part).float()
        found.index_add_(0, number, F.cross_entropy(logits, answer, reduction="none"), alpha=-1)
    return found


def _add_gradients(passes: BatchPasses, loss: _Loss, memory: MemoryBatch | None, written: Sequence[Written]) -> None:
    """Add the gradients of the loss to those of the parameters, through reading and through writing."""
    parameters = [p for p in passes.model.parameters() if p.requires_grad]
    inputs = parameters if memory is None else [*parameters, memory.keys, memory.values]
    lengths = passes.lengths(loss.at.row, loss.at.column)
    read_share = partial(_reading_gradients, passes, loss, memory, inputs, lengths)
    gradients = passes.each(read_share, passes.shares(lengths))
    received = [_added(sides) for sides in zip(*(found[len(parameters) :] for found in gradients), strict=True)]
    if any(memories.keys.requires_grad for memories, _ in written) and None not in received:
        sides = cast("list[Tensor]", received)
        gradients += passes.each(partial(_writing_gradients, parameters, sides), written)
    for index, parameter in enumerate(parameters):
        parameter.grad = _added([parameter.grad, *(found[index] for found in gradients)])


def _reading_gradients(
    passes: BatchPasses,
    loss: _Loss,
    memory: MemoryBatch | None,
    inputs: Sequence[Tensor],
    lengths: list[int],
    rows: list[int],
    own: BatchResult,
) -> list[Tensor | None]:
    """Gradients of the inputs, which are parameters and memories, of some rows of the batch."""
    sums: list[Tensor | None] = [None] * len(inputs)
    for parts in passes.parts(rows, lengths, passes.reads()):
        own.tokens += sum(lengths[number] for part in parts for number in part)
        with own.timed("read"):
            here, states = passes.read(parts, lengths, loss.at.row, loss.at.column, own, memory)
            answers, divergence, gradient, head = loss.gradient(here, states.detach())
            own.answers += answers
            own.kept += divergence
        if not states.requires_grad:
            continue
        with own.timed("backward"):
            found: list[Tensor | None] = [*torch.autograd.grad(states, inputs, gradient, allow_unused=True)]
            if head is not None:
                index = next(n for n, tensor in enumerate(inputs) if tensor is passes.model.head_weight)
                found[index] = _added([head, found[index]])
            sums = [_added(pair) for pair in zip(sums, found, strict=True)]
    return sums


def _writing_gradients(
    parameters: Sequence[Tensor], received: Sequence[Tensor], share: Written, own: BatchResult
) -> list[Tensor | None]:
    """Gradients of the parameters through writing some references. received: those of all keys, of all values."""
    memories, order = share
    sides = (memories.keys, memories.values)
    with own.timed("backward"):
        at = [gradient[order].to(side.dtype) for side, gradient in zip(sides, received, strict=True)]
        return list(torch.autograd.grad(sides, parameters, at, allow_unused=True))


def _added(gradients: Iterable[Tensor | None]) -> Tensor | None:
    """Their sum, in place of the first; None where there is none."""
    there = [gradient for gradient in gradients if gradient is not None]
    for gradient in there[1:]:
        there[0].add_(gradient)
    return there[0] if there else None


def read_loss(model: Decoder, batch: Batch, prefix: Sequence[int], memory: MemoryBatch | None) -> Tensor:
    """Mean cross-entropy (nats) of the labels with memories that were written before."""
    hidden = read(model, batch.ids, prefix, memory, batch.chunks)
    learned = batch.labels[:, 1:] != IGNORE
    return F.cross_entropy(model.head(hidden[:, :-1][learned]).float(), batch.labels[:, 1:][learned])
