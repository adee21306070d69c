"""The decoder: single-device maths only, for training, writing memories and as the oracle of the exports.

Letters: B batch, T query tokens, S keys of the same text, C chunks, N tokens of packed rows or references, R reference
tokens, M memory rows a chunk sees, D hidden, H query heads, K KV heads, G = H / K, d head dimension.

Texts are read whole, rows of different lengths packed one after the other. Positions are explicit, and memories are one
more set of rows for the heads that have them (paper 3.2, eq. 4). `nn.serving` reads on from caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory3.config import MemoryConfig, ModelConfig
from memory_model.nn import fused
from memory_model.nn.low_rank import LowRankLinear


@dataclass
class MemoryBatch:
    """Memories as tensors, in the layout of the budget table.

    keys, values: [..., budget, d]; valid: bool [..., budget], False for rows that hold nothing.
    Leading dimensions are [N] after writing and [B, C, m] when read: m memories for each of C chunks.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor

    def select(self, index: Tensor) -> MemoryBatch:
        """Memories `index` [B, C, m] of [N]; an index of -1 is an empty slot."""
        safe = index.clamp_min(0)
        return MemoryBatch(self.keys[safe], self.values[safe], self.valid[safe] & (index >= 0)[..., None])

    def by_layer(self, table: MemoryConfig) -> dict[int, MemoryBatch]:
        """Each memory layer's own rows, which are neighbours in the budget table."""
        sizes = [sum(head.tokens for head in table.heads_of(layer)) for layer in table.memory_layers]
        parts = zip(self.keys.split(sizes, -2), self.values.split(sizes, -2), self.valid.split(sizes, -1), strict=True)
        return dict(zip(table.memory_layers, (MemoryBatch(*part) for part in parts), strict=True))

    def of_chunks(self) -> list[MemoryBatch]:
        """What each of C chunks reads, [B, 1, m, rows, d], of [B, C, m, rows, d]."""
        sides = zip(*(x.unbind(1) for x in (self.keys, self.values, self.valid)), strict=True)
        return [MemoryBatch(*(x[:, None] for x in side)) for side in sides]


@dataclass
class PackedRows:
    """Rows of one length in a packed batch: `count` rows of `length` tokens, one after the other.

    shared: of the tokens in front, computed with another row that has the same prefix.
    memory: leading dimensions [count, C, m]; chunk_BT [count, length], as in `Decoder.hidden`; where there are
    several chunks they are runs of tokens, the same in every row.
    """

    count: int
    length: int
    memory: MemoryBatch | None = None
    chunk_BT: Tensor | None = None
    shared: int = 0

    @cached_property
    def chunks(self) -> list[tuple[int, int, int]]:
        """(chunk, first token, end) of every run of tokens."""
        assert self.chunk_BT is not None
        numbers, lengths = self.chunk_BT[0].unique_consecutive(return_counts=True)
        ends = lengths.cumsum(0)
        return list(zip(numbers.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True))


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 whatever the input's type."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normed [..., D] of x [..., D], in the type that the following product computes in."""
        kind, on = x.device.type, torch.is_autocast_enabled(x.device.type)
        return fused.rms_norm(x, self.weight, self.epsilon, torch.get_autocast_dtype(kind) if on else x.dtype)


class Attention(nn.Module):
    """Grouped-query attention; heads listed in the budget of this layer also attend to memories."""

    rows_Ht: Tensor
    filled_Ht: Tensor

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        bias, width = config.attention_bias, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.query_width, bias=bias)
        self.k_proj = nn.Linear(config.hidden, width, bias=bias)
        self.v_proj = nn.Linear(config.hidden, width, bias=bias)
        self.o_proj = nn.Linear(config.query_width, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_epsilon) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_epsilon) if config.qk_norm else None
        self.rotates = layer not in config.plain_layers
        self.set_memory_heads(config, layer)

    def set_memory_heads(self, config: ModelConfig, layer: int) -> None:
        """Take this layer's part of the budget: its KV heads and their rows in a memory.

        Heads of one layer are computed together, padded to the longest of them: `rows_Ht` are rows of the layer's
        part of a memory, `filled_Ht` marks those that a shorter head owns.
        """
        self.config = config
        heads = config.memory.heads_of(layer)
        self.memory_heads = [h.head for h in heads]
        plain = [k for k in range(config.kv_heads) if k not in self.memory_heads]
        order = self.memory_heads + plain
        self.plain_heads, self.restore = plain, [order.index(k) for k in range(config.kv_heads)]
        # In numpy: torch's cumsum on "meta" would import its compiler.
        step_t = np.arange(max((h.tokens for h in heads), default=0))
        tokens_H = np.array([h.tokens for h in heads], dtype=np.int64)
        start_H = tokens_H.cumsum() - tokens_H
        filled = step_t < tokens_H[:, None]
        self.register_buffer("filled_Ht", torch.tensor(filled), persistent=False)
        self.register_buffer("rows_Ht", torch.tensor(np.where(filled, start_H[:, None] + step_t, 0)), persistent=False)

    def project(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unrotated q [H, N, d], k and v [K, N, d] of normed states; q and k normed where the model norms them."""
        q, k, v = (p(x_ND).unflatten(1, (-1, self.config.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        return q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)

    def rotate(self, x_HNd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor) -> Tensor:
        """Queries or keys at their positions; unchanged in a layer without rotary embedding."""
        return fused.rotate(x_HNd, cos_Nd, sin_Nd) if self.rotates else x_HNd

    def forward(
        self,
        x_ND: Tensor,
        cos_Nd: Tensor,
        sin_Nd: Tensor,
        parts: Sequence[PackedRows],
        memories: Sequence[MemoryBatch | None],
        spread: Tensor | None = None,
        needed: Tensor | None = None,
        projected: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attention output [N, D] of packed rows, each causal and by itself; memories: this layer's, of each part.

        spread: int64, which of the N every token of the rows is, where tokens are shared. needed: int64 [K], the tokens
        whose output is returned, [K, D]. projected: what `project` gave for x_ND, if called already.
        """
        q_HNd, k_KNd, v_KNd = projected or self.project(x_ND)
        q_HNd, k_KNd = (self.rotate(x, cos_Nd, sin_Nd) for x in (q_HNd, k_KNd))
        if spread is not None:
            k_KNd, v_KNd = k_KNd.index_select(1, spread), v_KNd.index_select(1, spread)
        keys = [part.count * part.length for part in parts]
        queries = [size - part.count * part.shared for size, part in zip(keys, parts, strict=True)]
        outs: list[Tensor] = []
        split = zip(q_HNd.split(queries, 1), k_KNd.split(keys, 1), v_KNd.split(keys, 1), strict=True)
        for part, memory, own in zip(parts, memories, split, strict=True):
            q, k, v = (x.unflatten(1, (part.count, -1)).transpose(0, 1) for x in own)
            if memory is None or memory.valid.shape[1] == 1:
                out_BHTd = self._attended(q, k, v, memory, part.chunk_BT)
            else:
                read, spans = memory.of_chunks(), []
                for chunk, start, end in part.chunks:
                    here = part.chunk_BT[:, start:end].clamp_max(0) if part.chunk_BT is not None else None
                    seen = read[chunk] if chunk >= 0 else None
                    spans.append(self._attended(q[:, :, start:end], k[:, :, :end], v[:, :, :end], seen, here))
                out_BHTd = torch.cat(spans, dim=2)
            outs.append(out_BHTd.transpose(1, 2).flatten(0, 1).flatten(1))
        out = torch.cat(outs)
        return cast(Tensor, self.o_proj(out if needed is None else out[needed]))

    def _attended(
        self, q_BHTd: Tensor, k_BKSd: Tensor, v_BKSd: Tensor, memory: MemoryBatch | None, chunk_BT: Tensor | None
    ) -> Tensor:
        """[B, H, T, d]; causal, the queries being the last T of S tokens."""
        if memory is None:
            return fused.attend(q_BHTd, k_BKSd, v_BKSd, None)
        assert chunk_BT is not None
        q_BKGTd = q_BHTd.unflatten(1, (self.config.kv_heads, self.config.group))
        heads, rest = self.memory_heads, self.plain_heads
        joined = self._with_memory(q_BKGTd[:, heads], k_BKSd[:, heads], v_BKSd[:, heads], memory, chunk_BT)
        if rest:
            out_rest = fused.attend(q_BKGTd[:, rest].flatten(1, 2), k_BKSd[:, rest], v_BKSd[:, rest], None)
            joined = torch.cat((joined, out_rest.unflatten(1, (-1, self.config.group))), dim=1)
        return joined[:, self.restore].flatten(1, 2)

    def _with_memory(
        self, q_BhGTd: Tensor, k_BhSd: Tensor, v_BhSd: Tensor, memory: MemoryBatch, chunk_BT: Tensor
    ) -> Tensor:
        """All memory heads h of this layer over one chunk's memories and the context in one softmax (paper eq. 4)."""
        B, h, G, T, _ = q_BhGTd.shape
        same_rows = self.rows_Ht.numel() == memory.valid.shape[-1]

        def rows(x: Tensor) -> Tensor:  # [B, 1, m, rows of the layer, ...] -> [B, h, m * t, ...]
            by_head = x.unflatten(3, (h, -1)) if same_rows else x[:, :, :, self.rows_Ht]
            return by_head.movedim(3, 1).flatten(2, 4)

        keys = torch.cat((rows(memory.keys).to(k_BhSd.dtype), k_BhSd), dim=2)
        values = torch.cat((rows(memory.values).to(v_BhSd.dtype), v_BhSd), dim=2)
        filled = rows(memory.valid) & self.filled_Ht.repeat(1, memory.valid.shape[2])
        sees = filled[:, :, None] & (chunk_BT >= 0)[:, None, :, None]
        text = fused.causal(T, k_BhSd.shape[2], filled.device).expand(B, h, T, -1)
        out = fused.attend(q_BhGTd.flatten(1, 2), keys, values, torch.cat((sees, text), dim=3))
        return out.unflatten(1, (h, G))


class Layer(nn.Module):
    """Pre-norm attention and gated MLP."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.norm_epsilon)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_epsilon)
        self.mlp = GatedMLP(config)


class GatedMLP(nn.Module):
    """down(silu(gate x) * up x), without bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.mlp_width, bias=False)
        self.down_proj: nn.Module = nn.Linear(config.mlp_width, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """MLP output [..., D] of x [..., D]."""
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
        return down.gated(gate, up) if isinstance(down, LowRankLinear) else down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Llama and its relatives, by configuration; state-dict names are Hugging Face's without `model.`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # The normal distribution of nn.Embedding on "meta" would import torch's compiler: a second of every start.
        drawn = torch.empty(config.vocabulary, config.hidden).uniform_(-1, 1)
        self.embed_tokens = nn.Embedding.from_pretrained(drawn, freeze=False)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_epsilon)
        self.lm_head = None if config.tied_embeddings else nn.Linear(config.hidden, config.vocabulary, bias=False)

    def set_memory(self, config: ModelConfig) -> None:
        """Use another memory budget with the same weights."""
        self.config = config
        for i, block in enumerate(self.blocks):
            block.self_attn.set_memory_heads(config, i)

    @property
    def blocks(self) -> list[Layer]:
        """The layers, by number."""
        return cast("list[Layer]", list(self.layers))

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin [..., d] (float32) of explicit positions [...]."""
        frequency = torch.from_numpy(self.config.frequencies).to(positions.device)
        angle = positions.double()[..., None] * frequency
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().float(), angle.sin().float()

    def hidden(
        self, ids_BT: Tensor, positions_BT: Tensor, memory: MemoryBatch | None = None, chunk_BT: Tensor | None = None
    ) -> Tensor:
        """Normed hidden states [B, T, D] of causal texts of one length.

        memory: leading dimensions [B, C, m]; chunk_BT: which of the C chunks a token belongs to, -1 for tokens (the
        prefix) that read no memory; several chunks are the same in every row.
        """
        positions = positions_BT.expand_as(ids_BT).flatten()
        rows = PackedRows(ids_BT.shape[0], ids_BT.shape[1], memory, chunk_BT)
        return self.packed(ids_BT.flatten(), positions, [rows]).unflatten(0, ids_BT.shape)

    def computing(self, device: torch.device) -> torch.autocast:
        """Matrix products in the type of the weights; an autocast that is on already stays."""
        on = torch.is_autocast_enabled(device.type)
        kind = torch.get_autocast_dtype(device.type) if on else self.embed_tokens.weight.dtype
        return torch.autocast(device.type, kind, enabled=on or kind != torch.float32)

    def packed(
        self, ids_N: Tensor, positions_N: Tensor, parts: Sequence[PackedRows], needed: Tensor | None = None
    ) -> Tensor:
        """Normed hidden states [N, D] of rows of different lengths, packed without padding.

        Each row is causal and sees itself and its memories only; `parts` give the counts and lengths of the rows in
        order. A common prefix of rows is computed once, up to the first layer in which they read memories.
        needed: int64 [K], the tokens whose states are returned, [K, D].
        """
        lower, kept, spread = _shared_once(ids_N, positions_N, parts)
        sharing = len(kept) < len(spread)
        with self.computing(ids_N.device):
            x_ND = self.embed_tokens(ids_N[kept]).float()
            cos, sin = self.rotary(positions_N[kept])
            table = self.config.memory
            own = [part.memory.by_layer(table) if part.memory is not None else {} for part in parts]
            for i, layer in enumerate(self.blocks):
                memories = [memory.get(i) for memory in own]
                if sharing and any(memories):
                    x_ND, cos, sin = (x.index_select(0, spread) for x in (x_ND, cos, sin))
                    sharing = False
                only = needed if i == len(self.layers) - 1 else None
                if sharing and i == len(self.layers) - 1:
                    only = spread if needed is None else spread[needed]
                rows, seen = (lower, [None] * len(lower)) if sharing else (parts, memories)
                normed, of = layer.input_layernorm(x_ND), spread if sharing else None
                attended = layer.self_attn(normed, cos, sin, rows, seen, of, only)
                x_ND = (x_ND if only is None else x_ND[only]) + attended
                x_ND = x_ND + layer.mlp(layer.post_attention_layernorm(x_ND))
            return cast(Tensor, self.norm(x_ND))

    @property
    def head_weight(self) -> Tensor:
        """[V, D]: the head's own weight, or the embedding where it serves as head."""
        return (self.embed_tokens if self.lm_head is None else self.lm_head).weight

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of normed hidden states."""
        return F.linear(hidden.to(self.head_weight.dtype), self.head_weight)


def _shared_once(
    ids_N: Tensor, positions_N: Tensor, parts: Sequence[PackedRows]
) -> tuple[list[PackedRows], Tensor, Tensor]:
    """Rows that share what an earlier one begins with, which tokens are computed, and which of these each of N is."""
    length_R = [part.length for part in parts for _ in range(part.count)]
    tokens = (ids_N << 32 | positions_N).split(length_R)
    token_RC = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-1)
    common = [(token_RC[:r] == token_RC[r]).long().cumprod(1).sum(1).max(0) for r in range(1, len(length_R))]
    most_R = [[0, 0], *(torch.stack([torch.stack(x) for x in common]).tolist() if common else [])]
    lower: list[PackedRows] = []
    kept: list[Tensor] = []
    spread: list[Tensor] = []
    row = computed = start = 0
    for part in [PackedRows(1, length_R[0]), PackedRows(parts[0].count - 1, length_R[0]), *parts[1:]]:
        of = range(row, row + part.count)
        shared = min([most_R[r][0] for r in of] + [part.length - 1])
        own = part.length - shared
        for r in of:
            before = [x[:shared] for x in spread[most_R[r][1] :][:1]]
            spread.append(torch.cat([*before, torch.arange(computed, computed + own)]))
            kept.append(torch.arange(start + shared, start + part.length))
            computed, start = computed + own, start + part.length
        lower += [PackedRows(part.count, part.length, shared=shared)][: part.count]
        row += part.count
    return lower, torch.cat(kept).to(ids_N.device), torch.cat(spread).to(ids_N.device)
