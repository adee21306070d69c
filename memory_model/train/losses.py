"""The losses of a batch and their gradients, computed in passes over rows of like lengths.

A batch's references are written once, with the model itself. Its texts are read packed, rows of like lengths beside
each other, in as many passes as memory asks for; each pass leaves its gradient in the memories, and at the end that
gradient goes back through writing. The result is that of one pass over the padded batch, in less time and memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.chat import text_start
from memory_model.data.batches import IGNORE, Batch, Teacher, buckets
from memory_model.nn.adapter import original, unchanging
from memory_model.nn.decoder import Decoder, MemoryBatch, Rows
from memory_model.nn.writing import write_memories

Coding = Callable[[MemoryBatch], MemoryBatch]
"""What happens to memories between writing and reading."""

_HEAD_ROWS = 256
"""Positions whose logits exist at once: float32 over the whole vocabulary."""
_PART_TOKENS = {"cpu": 8}
"""What attention to one more length costs, in tokens; on a GPU, where it is starting kernels, 128."""
_PASS_TOKENS = {"cpu": 96}
"""What one more pass costs, in tokens: reading the weights; on a GPU 512."""


@dataclass
class Pass:
    """What was computed for a batch: losses in nats a token, tokens and seconds.

    answers: cross-entropy of the labels; teacher: divergence from the teacher; 0 where there is none. tokens: of
    references and texts without padding; real, computed: the teacher's texts included, without and with padding.
    """

    answers: float = 0.0
    teacher: float = 0.0
    tokens: int = 0
    real: int = 0
    computed: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("write", "read", "teacher", "backward"), 0.0)
    )

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
    model: Decoder, batch: Batch, prefix: Sequence[int], *, coding: Coding | None = None,
    distillation: float = 1.0, weight: float = 1.0, most_tokens: int = 8192,
) -> Pass:  # fmt: skip
    """Add the gradient of `weight` x (cross-entropy + `distillation` x divergence) to the parameters'.

    An original model as teacher counts in full whatever `distillation` is: it is the only loss of such a batch.
    most_tokens: of one pass, padding included.
    """
    with unchanging(model):
        return _batch_gradients(model, batch, prefix, coding, distillation, weight, most_tokens)


def _batch_gradients(
    model: Decoder, batch: Batch, prefix: Sequence[int], coding: Coding | None, distillation: float, weight: float,
    most_tokens: int,
) -> Pass:  # fmt: skip
    done = Pass()
    written = leaf = None
    if len(batch.reference_ids):
        with done.timed("write"):
            written = _written(model, batch, prefix, done, most_tokens)
            written = coding(written) if coding else written
            keys, values = (x.detach().float().requires_grad_() for x in (written.keys, written.values))
            leaf = MemoryBatch(keys, values, written.valid)
    teacher = batch.teacher
    if teacher is not None and not (distillation or teacher.original):
        teacher = None
    seen = None
    if teacher is not None:
        with done.timed("teacher"):
            seen = _seen(model, teacher, prefix, done, most_tokens)
    labels = int((batch.labels[:, 1:] != IGNORE).sum())
    lengths = _lengths(batch.ids, batch.lengths)
    for parts in _passes(batch.ids, lengths, (batch.memories >= 0).any(dim=(1, 2)).tolist(), most_tokens):
        chosen = [row for rows in parts for row in rows]
        done.tokens += sum(lengths[row] for row in chosen)
        with done.timed("read"):
            hidden, start_B = _read_packed(model, batch.ids, lengths, prefix, parts, done, batch, leaf)
            row, column = (batch.labels[:, 1:] != IGNORE).nonzero().T
            inside = start_B[row] >= 0
            row, column = row[inside], column[inside]
            positions, targets = [start_B[row] + column], batch.labels[row, column + 1]
            right, scale = None, 0.0
            if teacher is not None and seen is not None:
                place = start_B[teacher.matched[:, 0]]
                own = place >= 0
                positions.append((place + teacher.matched[:, 1])[own])
                right, scale = seen[own], (1.0 if teacher.original else distillation) / len(teacher.matched)
            needed, where = torch.cat(positions).unique(return_inverse=True)
            states = hidden[needed]
            leaves = states.detach().requires_grad_()
            answers, divergence = _head_losses(
                model, leaves, where[: len(row)], targets, where[len(row) :], right, weight / max(1, labels),
                weight * scale,
            )  # fmt: skip
            done.answers += answers / max(1, labels)
            done.teacher += divergence / max(1, len(teacher.matched) if teacher else 0)
        if leaves.grad is not None and states.requires_grad:
            with done.timed("backward"):
                states.backward(leaves.grad)
    if written is not None and leaf is not None and leaf.keys.grad is not None and written.keys.requires_grad:
        assert leaf.values.grad is not None
        with done.timed("backward"):
            torch.autograd.backward(
                [written.keys, written.values],
                [leaf.keys.grad.to(written.keys.dtype), leaf.values.grad.to(written.values.dtype)],
            )
    done.real += done.tokens
    return done


def _head_losses(
    model: Decoder, states_KD: Tensor, asked: Tensor, targets: Tensor, matched: Tensor, right_MD: Tensor | None,
    answer_weight: float, teacher_weight: float,
) -> tuple[float, float]:  # fmt: skip
    """Sums of cross-entropy and divergence; their weighted gradient is left in `states_KD`.

    asked, matched: places in states_KD, of `targets` and of the teacher's hidden states.
    """
    answers = divergence = 0.0
    for start in range(0, len(states_KD), _HEAD_ROWS):
        end = min(start + _HEAD_ROWS, len(states_KD))
        logits = model.head(states_KD[start:end]).float().log_softmax(-1)
        loss = logits.new_zeros(())
        inside = (asked >= start) & (asked < end)
        if bool(inside.any()):
            summed = F.nll_loss(logits[asked[inside] - start], targets[inside], reduction="sum")
            answers += float(summed.detach())
            loss = loss + answer_weight * summed
        inside = (matched >= start) & (matched < end)
        if right_MD is not None and bool(inside.any()):
            with torch.no_grad():
                right = model.head(right_MD[inside]).float().log_softmax(-1)
            summed = F.kl_div(logits[matched[inside] - start], right, reduction="sum", log_target=True)
            divergence += float(summed.detach())
            loss = loss + teacher_weight * summed
        if loss.requires_grad:
            loss.backward()
    return answers, divergence


def _written(
    model: Decoder, batch: Batch, prefix: Sequence[int], done: Pass, most_tokens: int
) -> MemoryBatch:
    """Memories [N, budget, d] of the batch's references."""
    lengths = batch.reference_lengths.tolist()
    parts, order = [], []
    fixed = _PASS_TOKENS.get(batch.ids.device.type, 512)
    for rows in buckets(lengths, fixed=fixed, most=most_tokens):
        longest = lengths[rows[-1]]
        chosen = torch.tensor(rows, device=batch.ids.device)
        ids = batch.reference_ids[chosen, :longest]
        parts.append(write_memories(model, ids, batch.reference_lengths[chosen], prefix))
        order += rows
        done.tokens += sum(lengths[row] for row in rows)
        done.computed += len(rows) * longest
    back = torch.tensor(order, device=batch.ids.device).argsort()
    keys, values, valid = (
        torch.cat(sides)[back] for sides in zip(*((p.keys, p.values, p.valid) for p in parts), strict=True)
    )
    return MemoryBatch(keys, values, valid)


@torch.no_grad()
def _seen(model: Decoder, teacher: Teacher, prefix: Sequence[int], done: Pass, most_tokens: int) -> Tensor:
    """The teacher's hidden states [K, D] at its places."""
    lengths = _lengths(teacher.ids, teacher.lengths)
    found = None
    with original(model) if teacher.original else nullcontext():
        for parts in _passes(teacher.ids, lengths, [False] * len(lengths), most_tokens):
            hidden, start_B = _read_packed(model, teacher.ids, lengths, prefix, parts, done)
            if found is None:
                found = hidden.new_empty(len(teacher.places), hidden.shape[-1])
            place = start_B[teacher.places[:, 0]]
            found[place >= 0] = hidden[(place + teacher.places[:, 1])[place >= 0]]
    assert found is not None
    done.real += sum(lengths)
    return found


def _passes(
    ids_BT: Tensor, lengths: list[int], reads: list[bool], most_tokens: int
) -> Iterator[list[list[int]]]:
    """Rows of like lengths together, those that read no memory apart; as many lengths a pass as it may have tokens."""
    fixed = _PART_TOKENS.get(ids_BT.device.type, 128)
    parts: list[list[int]] = []
    tokens = 0
    for kind in (True, False):
        rows = [row for row, own in enumerate(reads) if own == kind]
        for numbers in buckets([lengths[row] for row in rows], fixed=fixed, most=most_tokens):
            part = [rows[number] for number in numbers]
            size = len(part) * lengths[part[-1]]
            if parts and tokens + size > most_tokens:
                yield parts
                parts, tokens = [], 0
            parts.append(part)
            tokens += size
    if parts:
        yield parts


def _read_packed(
    model: Decoder, ids_BT: Tensor, lengths: list[int], prefix: Sequence[int], parts: list[list[int]], done: Pass,
    batch: Batch | None = None, memory: MemoryBatch | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Normed hidden states [N, D] of rows behind the prefix, and where each text starts in them [B], -1 for none.

    parts: the rows of each length; each token of `batch` reads its chunk's memories, where any of a part's do.
    """
    P, device = len(prefix), ids_BT.device
    first = text_start(prefix, model.config.memory)
    start_B = torch.full((len(ids_BT),), -1, device=device)
    ids, positions, packed = [], [], []
    end = 0
    for part in parts:
        rows, longest = torch.tensor(part, device=device), lengths[part[-1]]
        count = len(part)
        ids.append(
            torch.cat((torch.tensor(prefix, device=device).expand(count, P), ids_BT[rows, :longest]), 1)
        )
        own = torch.cat((torch.arange(P), torch.arange(first, first + longest))).to(device)
        positions.append(own.repeat(count))
        start_B[rows] = end + P + (P + longest) * torch.arange(count, device=device)
        end += count * (P + longest)
        done.computed += count * longest
        read = None
        chunks = None
        if batch is not None and memory is not None and bool((batch.memories[rows] >= 0).any()):
            read = memory.select(batch.memories[rows])
            chunks = torch.cat((torch.full((count, P), -1, device=device), batch.chunks[rows, :longest]), 1)
        packed.append(Rows(count, P + longest, read, chunks))
    hidden = model.packed(torch.cat([x.flatten() for x in ids]), torch.cat(positions), packed)
    return hidden, start_B


def _lengths(ids_BT: Tensor, lengths_B: Tensor | None) -> list[int]:
    return [ids_BT.shape[1]] * len(ids_BT) if lengths_B is None else list(lengths_B.tolist())


def read(
    model: Decoder,
    ids_BT: Tensor,
    prefix: Sequence[int],
    memory: MemoryBatch | None,
    chunks_BT: Tensor | None,
) -> Tensor:
    """Normed hidden states [B, T, D] of texts behind the prefix, each token reading its chunk's memories."""
    B, T = ids_BT.shape
    P, device = len(prefix), ids_BT.device
    ids = torch.cat((torch.tensor(prefix, device=device).expand(B, P), ids_BT), dim=1)
    first = text_start(prefix, model.config.memory)
    positions = torch.cat((torch.arange(P), torch.arange(first, first + T))).to(device)[None]
    chunks = None
    if memory is not None and chunks_BT is not None:
        chunks = torch.cat((torch.full((B, P), -1, device=device), chunks_BT), dim=1)
    hidden, _ = model.hidden(ids, positions, memory=memory if chunks is not None else None, chunk_BT=chunks)
    return hidden[:, P:]


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
            spread = (((x_NMd - mean) * valid).square().sum(0) / valid.sum(0).clamp_min(1)).mean(
                -1, keepdim=True
            )
            noise = torch.randn_like(x_NMd, dtype=torch.float32) * (spread * share).sqrt() * valid
        return x_NMd + noise.to(x_NMd.dtype)

    return MemoryBatch(noisy(memory.keys), noisy(memory.values), memory.valid)
