"""Write explicit memories: encode references, keep the most attended key-values of the memory heads.

Paper 3.2 (modified BOS, parallel positions) and 3.3 (which tokens). A reference is encoded alone behind
the prefix `<bos>Reference:`, the pass stops at the last memory layer, and for every head of the budget
the tokens that receive the most attention are kept, measured without causal mask and without rotary
position, prefix and padding excluded. Keys are kept rotated, rows in order of position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory3.codec.payload import ExplicitMemory
from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory3.text.chat import prefix_ids
from memory3.text.tokenizer import Tokenizer
from memory_model.nn.decoder import Decoder, MemoryBatch, PackedRows

BATCH_TOKENS = {"cpu": 2048, "cuda": 1 << 16}
"""Of one forward pass: sixteen references of full length, more does not help a processor; 512 keep a GPU busy."""


def received_attention(q_NhGRd: Tensor, k_NhRd: Tensor, real_NR: Tensor) -> Tensor:
    """w_j of paper 3.3: attention that token j receives from all tokens, float32 [N, h, R].

    Unrotated queries of each group and unrotated keys, no causal mask; summed over query tokens and over
    the query heads of the group. Padding neither gives nor receives (its weight is -inf).
    """
    scores = torch.einsum("nhgid,nhjd->nhgij", q_NhGRd.float(), k_NhRd.float()) / k_NhRd.shape[-1] ** 0.5
    receives, gives = real_NR[:, None, None, None, :], real_NR[:, None, None, :, None]
    scores = scores.masked_fill(~receives, float("-inf"))
    received = (scores.softmax(dim=-1) * gives).sum(dim=(2, 3))
    return received.masked_fill(~real_NR[:, None], float("-inf"))


def sparsify(
    q_NhGRd: Tensor, k_NhRd: Tensor, rotated_NhRd: Tensor, v_NhRd: Tensor, real_NR: Tensor, filled_ht: Tensor
) -> MemoryBatch:
    """The sparse tokens of all memory heads of one layer, flat as the budget table lists them: [N, rows, d].

    filled_ht marks those of the t rows that each head owns. Rows are in order of position; those that the reference is
    too short to fill come last and are not valid.
    """
    R, most = k_NhRd.shape[2], filled_ht.shape[1]
    keep = min(most, R)
    if bool((filled_ht.sum(1) < R).any()):
        received = received_attention(q_NhGRd, k_NhRd, real_NR)
        rank = received.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
        kept_NhR = (rank < filled_ht.sum(1)[None, :, None]) & real_NR[:, None]
    else:
        kept_NhR = real_NR[:, None].expand(-1, k_NhRd.shape[1], -1)
    # A stable sort of "not kept" puts the kept tokens first, in order of position.
    order = (~kept_NhR).long().argsort(dim=2, stable=True)[:, :, :keep]
    index = order[..., None].expand(-1, -1, -1, k_NhRd.shape[3])
    pad = most - keep
    keys = F.pad(rotated_NhRd.gather(2, index), (0, 0, 0, pad))
    values = F.pad(v_NhRd.gather(2, index), (0, 0, 0, pad))
    valid = F.pad(kept_NhR.gather(2, order), (0, pad))
    owned = filled_ht.flatten().nonzero()[:, 0]
    return MemoryBatch(*(x.flatten(1, 2)[:, owned] for x in (keys, values, valid)))


@dataclass(frozen=True)
class _PackedReferences:
    """The tokens of one pass: the prefix once, then the references of each part, padded, one after the other.

    ids_N, positions_N: int64, of every token. rows: the prefix, then the references of each part with the prefix in
    front, whose tokens `spread` numbers. real_nR: of each part, what is no padding.
    """

    ids_N: Tensor
    positions_N: Tensor
    rows: list[PackedRows]
    spread: Tensor
    real_nR: list[Tensor]

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor]], prefix: Sequence[int]) -> _PackedReferences:
        """parts: ids [n, R] and lengths [n] of each."""
        P, device = len(prefix), parts[0][0].device
        rows = [PackedRows(len(ids), P + ids.shape[1], shared=P) for ids, _ in parts]
        real = [torch.arange(ids.shape[1], device=device)[None] < lengths[:, None] for ids, lengths in parts]
        ids = torch.cat((torch.tensor(prefix, dtype=torch.long, device=device), *(ids.flatten() for ids, _ in parts)))
        columns = torch.arange(P, len(ids)).split([mask.numel() for mask in real])
        whole = [F.pad(x.view(mask.shape), (P, 0)) for x, mask in zip(columns, real, strict=True)]
        for x in whole:
            x[:, :P] = torch.arange(P)
        spread = torch.cat([torch.arange(P), *(x.flatten() for x in whole)]).to(device)
        positions = [torch.arange(P), *(torch.arange(P, part.length).repeat(part.count) for part in rows)]
        return cls(ids, torch.cat(positions).to(device), [PackedRows(1, P), *rows], spread, real)

    def of_parts(self, x_hNd: Tensor) -> list[Tensor]:
        """[n, h, R, d] of each part, from all tokens; the prefix is left out."""
        prefix = self.rows[0].length
        split = x_hNd[:, prefix:].split([mask.numel() for mask in self.real_nR], dim=1)
        return [x.unflatten(1, mask.shape).transpose(0, 1) for x, mask in zip(split, self.real_nR, strict=True)]


def write_memories(
    model: Decoder, ids_NR: Tensor, lengths_N: Tensor, prefix: Sequence[int], parts: Sequence[list[int]] = ()
) -> MemoryBatch:
    """Memories [N, budget, d] of padded references; differentiable, batched over references.

    ids_NR: int64 token ids, right-padded; lengths_N: real tokens of each (1..reference_tokens). parts: rows of like
    lengths, each padded to its longest, in whose order the memories are; by default all rows as they are.
    """
    last, device = model.config.memory.memory_layers[-1], ids_NR.device
    own = [(ids_NR[part, : int(lengths_N[part].max())], lengths_N[part]) for part in parts] or [(ids_NR, lengths_N)]
    packed = _PackedReferences.of(own, prefix)
    cos, sin = model.rotary(packed.positions_N)
    written: list[list[MemoryBatch]] = [[] for _ in own]
    with model.computing(device):
        x = model.embed_tokens(packed.ids_N).float()
        for i, layer in enumerate(model.blocks[: last + 1]):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            projected = attention.project(normed)
            if heads := attention.memory_heads:
                q, k, v = projected
                sides = (q, k[heads], attention.rotate(k[heads], cos, sin), v[heads])
                of_parts = map(packed.of_parts, sides)
                for into, mask, q_own, k_own, turned, v_own in zip(written, packed.real_nR, *of_parts, strict=True):
                    q_own = q_own.unflatten(1, (model.config.kv_heads, -1))[:, heads]
                    into.append(sparsify(q_own, k_own, turned, v_own, mask, attention.filled_Ht))
            if i < last:
                rows = packed.rows
                x = x + attention(normed, cos, sin, rows, [None] * len(rows), packed.spread, projected=projected)
                x = x + layer.mlp(layer.post_attention_layernorm(x))
    keys, values, valid = (
        torch.cat([torch.cat([getattr(layer, side) for layer in found], dim=1) for found in written])
        for side in ("keys", "values", "valid")
    )
    return MemoryBatch(keys * valid[..., None], values * valid[..., None], valid)


class MemoryWriter:
    """Texts in, explicit memories out; the cloud's half of the model. Not thread-safe: one call at a time."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer) -> None:
        """Works on the device that the model is on.

        batch_tokens: most tokens of one forward pass, padding included; halved when the device has no memory for so
        many. precision: of the matrix products only.
        """
        self.model, self.tokenizer, self.precision = model.eval(), tokenizer, torch.float32
        self.batch_tokens = BATCH_TOKENS.get(model.embed_tokens.weight.device.type, BATCH_TOKENS["cpu"])
        self.prefix = prefix_ids(tokenizer, model.config.memory)

    def write(self, references: Sequence[str]) -> list[ExplicitMemory]:
        """One memory for each reference text, in order; see `passes`."""
        memories: dict[int, ExplicitMemory] = {}
        for indices, written in self.passes(references):
            memories.update(zip(indices, written, strict=True))
        return [memories[index] for index in range(len(references))]

    def passes(self, references: Sequence[str]) -> Iterator[tuple[list[int], list[ExplicitMemory]]]:
        """The indices into `references` that one forward pass wrote, and their memories, short ones first.

        Raises InvalidInput for an empty reference or one longer than the configured number of tokens.
        """
        limit = self.model.config.memory.reference_tokens
        ids = self.tokenizer.encode_batch(references)
        for number, tokens in enumerate(ids):
            if not 1 <= len(tokens) <= limit:
                raise InvalidInput(f"reference {number} has {len(tokens)} tokens, expected 1 to {limit}: split it")
        waiting = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        while waiting:
            lengths = [len(self.prefix) + len(ids[n]) for n in waiting]
            batch = waiting[: rows_that_fit(lengths, self.batch_tokens)]
            try:
                written = self._forward([ids[n] for n in batch])
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                self.batch_tokens = max(self.batch_tokens // 2, 1)
                continue
            keys, values = written.keys.float().cpu().numpy(), written.values.float().cpu().numpy()
            sides = zip(keys, values, batch, strict=True)
            yield batch, [ExplicitMemory(np.array(k), np.array(v), len(ids[n])) for k, v, n in sides]
            waiting = waiting[len(batch) :]

    @torch.inference_mode()
    def _forward(self, ids: Sequence[Sequence[int]]) -> MemoryBatch:
        device = self.model.embed_tokens.weight.device
        padded, lengths = (t.to(device) for t in pad_ids(ids))
        with torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32):
            return write_memories(self.model, padded, lengths, self.prefix)


def rows_that_fit(lengths: Sequence[int], batch_tokens: int) -> int:
    """How many rows of ascending lengths one pass of so many tokens takes, padded to the last; at least one."""
    for count, length in enumerate(lengths):
        if count and (count + 1) * length > batch_tokens:
            return count
    return len(lengths)


def pad_ids(ids: Sequence[Sequence[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Right-padded ids [N, longest] and lengths [N], both int64."""
    lengths = torch.tensor([len(t) for t in ids])
    rows = [torch.tensor(tokens) for tokens in ids]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad), lengths


def stack_memories(
    memories: Sequence[Sequence[ExplicitMemory]], config: ModelConfig, device: torch.device | str = "cpu"
) -> MemoryBatch:
    """Memories of B conversations as tensors with leading dimensions [B, 1, m]; missing ones are not valid."""
    B, most = len(memories), max((len(m) for m in memories), default=0)
    shape = (B, 1, most, config.memory.budget, config.head_dim)
    keys, values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
    valid = torch.zeros(shape[:-1], dtype=torch.bool)
    for b, row in enumerate(memories):
        for m, memory in enumerate(row):
            sides: Iterable[tuple[Tensor, Any]] = (keys, memory.keys), (values, memory.values)
            for side, own in sides:
                side[b, 0, m] = own if isinstance(own, Tensor) else torch.from_numpy(np.array(own))
            valid[b, 0, m, torch.from_numpy(config.memory.valid_rows(memory.tokens))] = True
    return MemoryBatch(keys, values, valid.to(device))


def writing_device(name: str) -> torch.device:
    """`auto`: the GPU where torch sees one, the processor otherwise; or one by torch's name, such as `cuda:1`.

    Raises InvalidInput for a name that is none, or a GPU that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidInput(f"{name!r} is no device: give auto, cpu, cuda or cuda:<number>") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput(
            f"torch sees {torch.cuda.device_count()} GPUs, not {name}: install its build for CUDA, or write on cpu"
        )
    return device
