"""The decoder for a local server: a batch of sequences over static caches, with memory slots for each.

It computes what `Decoder` computes, with the same weights. Differences are of form: caches are allocated once, each
row of a cache has a fixed position, projections of a layer are one matrix product, and on a GPU a step is one CUDA
graph. `nn.payloads` decompresses memories on the device.

Letters as in `decoder`; s slot rows of a head, R text rows, S = s + R. A cache holds some KV heads of one layer:

    [memory slots: memories_per_chunk * tokens of the longest head | prefix | text | one spare row and more]

The prefix is computed once. It reads no memories; all text behind it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.cache_layout import TEXT, cache_layout
from memory_model.errors import InvalidInput
from memory_model.nn.decoder import Decoder, Layer, MemoryBatch
from memory_model.nn.writing import pad_ids

_ALIGNED_ROWS = 8
"""Attention on a GPU reads masks whose rows are a multiple of this."""
_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class _Weights:
    """One layer, with KV heads in the order of its caches. qk_norm: [H + K, d] where queries and keys are normed."""

    attention_norm: Tensor
    qkv: Tensor
    bias: Tensor | None
    qk_norm: Tensor | None
    rotates: bool
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Layer, heads: Sequence[int], device: torch.device, dtype: torch.dtype) -> _Weights:
        """A copy of the layer's weights for KV heads in another order."""
        attention, config, mlp = layer.self_attn, layer.self_attn.config, layer.mlp
        d, order = config.head_dim, torch.tensor(heads, device=layer.self_attn.o_proj.weight.device)

        def moved(x: Tensor, kind: torch.dtype = dtype) -> Tensor:
            return x.detach().to(device, kind)

        def ordered(x: Tensor) -> Tensor:  # [heads * d, ...] of queries, keys or values
            return x.unflatten(0, (config.kv_heads, -1))[order].flatten(0, 1)

        projections = attention.q_proj, attention.k_proj, attention.v_proj
        biases = [ordered(p.bias) for p in projections if p.bias is not None]
        qk_norm = None
        if attention.q_norm is not None and attention.k_norm is not None:
            normed = (attention.q_norm, config.query_heads), (attention.k_norm, config.kv_heads)
            qk_norm = moved(torch.cat([n.weight.expand(count, d) for n, count in normed]), torch.float32)
        return cls(
            moved(layer.input_layernorm.weight, torch.float32),
            moved(torch.cat([ordered(p.weight) for p in projections])),
            moved(torch.cat(biases)) if biases else None, qk_norm, attention.rotates,
            moved(ordered(attention.o_proj.weight.T).T.contiguous()),
            moved(layer.post_attention_layernorm.weight, torch.float32),
            moved(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))), moved(mlp.down_proj.weight),
        )  # fmt: skip


@dataclass(frozen=True)
class _Cache:
    """Keys and values [B, heads, S, d] of some heads of one layer; `layout` numbers its mask."""

    layout: int
    keys: Tensor
    values: Tensor


class BatchedDecoder:
    """Sequences that are read and continued together. Not thread-safe: one call at a time.

    A sequence is empty at first and after `clear`. Its tokens read the memories that were injected last.
    """

    length: Tensor
    """int64 [B] on the device: rows of each sequence's text, prefix included."""

    @torch.inference_mode()
    def __init__(
        self, model: Decoder, prefix: Sequence[int], sequences: int, capacity: int, device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32, compiled: bool = False,
    ) -> None:  # fmt: skip
        """Copy the weights and allocate the caches.

        capacity: most tokens of a sequence, prefix included. dtype: of matrix products and caches; the residual
        stream, norms and rotations stay float32. compiled: let torch.compile fuse a step's small operations.
        Raises InvalidInput for a capacity that does not hold the prefix.
        """
        if sequences < 1 or capacity <= len(prefix):
            raise InvalidInput(
                f"{sequences} sequences of {capacity} tokens: at least one, longer than the prefix ({len(prefix)})"
            )
        config, layout = model.config, cache_layout(model.config)
        self.config, self.sequences, self.capacity, self.dtype = config, sequences, capacity, dtype
        self.device = torch.device(device)
        self.prefix = len(prefix)
        rows = -(-(capacity + 1) // _ALIGNED_ROWS) * _ALIGNED_ROWS
        self._embedding = model.embed_tokens.weight.detach().to(self.device, dtype)
        self._head = model.head_weight.detach().to(self.device, dtype)
        self._norm = model.norm.weight.detach().to(self.device, torch.float32)
        self._layers = [
            _Weights.of(b, layout.head_order(i), self.device, dtype) for i, b in enumerate(model.blocks)
        ]
        slots = {
            number: config.memory.memories_per_chunk * max(tokens) for number, tokens in enumerate(layout.layouts)
        }  # fmt: skip
        self._caches: list[list[_Cache]] = []
        for number in range(config.layers):
            shapes = [
                (t.layout, (sequences, len(t.heads), slots.get(t.layout, 0) + rows, config.head_dim))
                for t in layout.of(number)
            ]
            self._caches.append([_Cache(k, self._zeros(*shape), self._zeros(*shape)) for k, shape in shapes])
        # By layout, [B, heads, s]: 0 where a slot row may be read, minus infinity elsewhere.
        self._slots = {TEXT: self._zeros(sequences, 1, 0)} if TEXT in layout.numbers else {}
        for number, tokens in enumerate(layout.layouts):
            self._slots[number] = self._zeros(sequences, len(tokens), slots[number]).fill_(float("-inf"))
        self._budget = [(a.rows_Ht.to(self.device), a.filled_Ht.to(self.device)) for a in
                        (block.self_attn for block in model.blocks)]  # fmt: skip
        self._row = torch.arange(rows, device=self.device)
        first = config.memory.reference_tokens  # behind the prefix, the positions that all memories share
        position = self._row + torch.where(self._row < self.prefix, 0, first)
        cos, sin = model.rotary(position[None])
        self._cos, self._sin = (x[0, :, None, : config.head_dim // 2].contiguous() for x in (cos, sin))
        self._every = torch.arange(sequences, device=self.device)
        self.length = torch.zeros(sequences, dtype=torch.long, device=self.device)
        self._tokens = torch.full_like(self.length, -1)
        self._longest = 0
        if prefix:
            self.prefill([0], [prefix])
            for cache in (cache for caches in self._caches for cache in caches):
                for x in (cache.keys, cache.values):
                    x[1:] = x[:1]
        self.length.fill_(self.prefix)
        self._advance = torch.compile(self._advance_once) if compiled else self._advance_once
        self._graph, self._logits = self._captured()

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _captured(self) -> tuple[torch.cuda.CUDAGraph | None, Tensor]:
        """A step as a CUDA graph with the tensor that it writes logits to; no graph on a processor."""
        if self.device.type != "cuda":
            return None, self._logits_of(self._zeros(self.sequences, self.config.hidden))
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):  # of idle sequences: their tokens are negative
                self._advance()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._advance()
        return graph, logits

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads whole; of the embedding it reads a row for each sequence."""
        tensors = [x for w in self._layers for x in vars(w).values() if isinstance(x, Tensor)]
        return sum(x.nbytes for x in (*tensors, self._norm, self._head))

    # What a caller does with sequences

    @torch.inference_mode()
    def clear(self, sequences: Sequence[int]) -> None:
        """Empty these sequences: neither text nor memories."""
        chosen = self._numbers(sequences)
        self.length[chosen] = self.prefix
        for slots in self._slots.values():
            slots[chosen] = float("-inf")

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Append a text to each of these different sequences; float32 logits [n, V] behind its last token.

        Raises InvalidInput for an empty text or one that does not fit; then nothing was appended.
        """
        chosen = self._numbers(sequences)
        start = self.length[chosen]
        ends = [old + len(text) for old, text in zip(start.tolist(), texts, strict=True)]
        if not all(texts) or max(ends) > self.capacity:
            raise InvalidInput(
                f"texts of {[len(t) for t in texts]} tokens make sequences of {ends}: 1 to {self.capacity} fit"
            )
        ids, lengths = (x.to(self.device) for x in pad_ids(texts))
        step = torch.arange(ids.shape[1], device=self.device)
        # Padding writes rows that later tokens write again, or the spare row.
        rows = (start[:, None] + step).clamp_max(len(self._row) - 1)
        everyone = list(sequences) == list(range(self.sequences))
        hidden = self._hidden(ids, rows, None if everyone else chosen)
        self.length[chosen] = start + lengths
        self._longest = max(self._longest, *ends)
        return self._logits_of(hidden[torch.arange(len(texts), device=self.device), lengths - 1])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to every sequence; float32 logits [B, V], valid until the next step.

        tokens: int64 [B]. A sequence whose token is negative stays as it is, and its logits mean nothing.
        Raises InvalidInput where a sequence is full; then nothing was appended.
        """
        self._tokens.copy_(torch.as_tensor(tokens))
        if self._longest >= self.capacity:  # an upper bound: full sequences may be idle or cleared
            self._longest = int(self.length.where(self._tokens >= 0, 0).max())
            if self._longest >= self.capacity:
                raise InvalidInput(f"a sequence has {self.capacity} tokens: its cache is full")
        self._longest += 1
        if self._graph is None:
            self._logits = self._advance()
        else:
            self._graph.replay()
        return self._logits

    @torch.inference_mode()
    def inject(self, sequences: Sequence[int], memory: MemoryBatch) -> None:
        """Put memories [n, 1, m] into the slots of these sequences, in place of those that were there.

        Raises InvalidInput for more than a sequence has slots for.
        """
        chosen = self._numbers(sequences)
        n, _, m = memory.valid.shape[:3]
        most = self.config.memory.memories_per_chunk
        if m > most or n != len(sequences):
            raise InvalidInput(f"{m} memories for {n} of {len(sequences)} sequences: each has {most} slots")
        for slots in self._slots.values():
            slots[chosen] = float("-inf")
        for layer, own in memory.by_layer(self.config.memory).items():
            cache, (rows_ht, filled_ht) = self._caches[layer][0], self._budget[layer]

            def slotted(
                x: Tensor, rows_ht: Tensor = rows_ht
            ) -> Tensor:  # [n, 1, m, rows, …] -> [n, h, m * t, …]
                return x.to(self.device)[:, 0][:, :, rows_ht].movedim(2, 1).flatten(2, 3)

            used = m * filled_ht.shape[1]
            cache.keys[chosen, :, :used] = slotted(own.keys).to(self.dtype)
            cache.values[chosen, :, :used] = slotted(own.values).to(self.dtype)
            seen = slotted(own.valid) & filled_ht.repeat(1, m)
            self._slots[cache.layout][chosen, :, :used] = torch.where(seen, 0.0, float("-inf")).to(self.dtype)

    def _numbers(self, sequences: Sequence[int]) -> Tensor:
        if not sequences or len(set(sequences)) < len(sequences):
            raise InvalidInput("name one sequence or more, each once")
        if not 0 <= min(sequences) <= max(sequences) < self.sequences:
            raise InvalidInput(f"sequences are numbered 0 to {self.sequences - 1}, not {list(sequences)}")
        return torch.tensor(list(sequences), device=self.device)

    # The maths

    def _advance_once(self) -> Tensor:
        """One step of static tensors only; an idle sequence writes a row that its next token writes again."""
        hidden = self._hidden(self._tokens.clamp_min(0)[:, None], self.length[:, None], None)
        self.length += self._tokens >= 0
        return self._logits_of(hidden[:, 0])

    def _logits_of(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.to(self.dtype), self._head).float()

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm over the last dimension, float32."""
        return F.rms_norm(x, x.shape[-1:], eps=self.config.norm_epsilon) * weight

    def _hidden(self, ids_nT: Tensor, rows_nT: Tensor, chosen: Tensor | None) -> Tensor:
        """Normed hidden states [n, T, D], float32; writes keys and values to `rows_nT` of these sequences.

        chosen: int64 [n], None for all.
        """
        config, d, G = self.config, self.config.head_dim, self.config.group
        writing = self._every if chosen is None else chosen
        reading = slice(None) if chosen is None else chosen
        masks = self._masks(rows_nT, reading)
        cos, sin = self._cos[rows_nT], self._sin[rows_nT]
        heads = config.query_heads, config.kv_heads
        x = self._embedding[ids_nT].float()
        for weights, caches in zip(self._layers, self._caches, strict=True):
            normed = self._normed(x, weights.attention_norm).to(self.dtype)
            qkv = F.linear(normed, weights.qkv, weights.bias).unflatten(-1, (-1, d))
            qk, v = qkv.split((sum(heads), config.kv_heads), dim=2)
            if weights.qk_norm is not None:
                qk = self._normed(qk.float(), weights.qk_norm)
            if weights.rotates:
                a, b = qk.float().chunk(2, dim=-1)
                qk = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
            q, k = qk.to(self.dtype).split(heads, dim=2)
            outs, first = [], 0
            for cache in caches:
                h = cache.keys.shape[1]
                own = slice(first, first + h)
                rows = rows_nT + self._slots[cache.layout].shape[2]
                cache.keys[writing[:, None], :, rows] = k[:, :, own]
                cache.values[writing[:, None], :, rows] = v[:, :, own]
                # Query heads of a group are queries of one head: [n, h, G T, d].
                grouped = q[:, :, first * G : (first + h) * G].unflatten(2, (h, G)).permute(0, 2, 3, 1, 4)
                out = F.scaled_dot_product_attention(
                    grouped.flatten(2, 3),
                    cache.keys[reading],
                    cache.values[reading],
                    attn_mask=masks[cache.layout],
                )
                outs.append(out.unflatten(2, (G, -1)).permute(0, 3, 1, 2, 4).flatten(2))
                first += h
            x = x + F.linear(torch.cat(outs, dim=-1), weights.out)
            normed = self._normed(x, weights.mlp_norm).to(self.dtype)
            gate, up = F.linear(normed, weights.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, weights.down)
        return self._normed(x, self._norm)

    def _masks(self, rows_nT: Tensor, reading: slice | Tensor) -> dict[int, Tensor]:
        """Additive masks [n, 1 or h, G T, S] by layout: valid slot rows, and text up to the token itself."""
        T, G = rows_nT.shape[1], self.config.group
        text = self._slots_like(self._row <= rows_nT[..., None])[:, None]
        masks = {}
        for layout, slots in self._slots.items():
            own = slots[reading][:, :, None].expand(-1, -1, T, -1)
            mask = torch.cat((own, text.expand(-1, own.shape[1], -1, -1)), dim=-1)
            masks[layout] = mask[:, :, None].expand(-1, -1, G, -1, -1).flatten(2, 3)
        return masks

    def _slots_like(self, seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(
            ~seen, float("-inf")
        )
