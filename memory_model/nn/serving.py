"""The decoder that reads on: a batch of sequences over static caches, with memory slots for each.

It computes with the weights of a `Decoder`, for a local server and for evaluation. Caches are allocated once, each row
of a cache has a fixed position, and on a GPU a step is one CUDA graph.

Letters as in `decoder`; s slot rows of a head, R text rows, S = s + R. A cache holds some KV heads of one layer:

    [memory slots: memories_per_chunk * tokens of the longest head | prefix | text | one spare row and more]

The prefix is computed once. It reads no memories; all text behind it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.cache_layout import TEXT, cache_layout
from memory_model.errors import InvalidInput
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.writing import pad_ids

_ALIGNED_ROWS = 8
"""Attention on a GPU reads masks whose rows are a multiple of this."""
_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class _Cache:
    """Keys and values [B, h, S, d] of some KV heads [h] of one layer; `layout` numbers its mask."""

    layout: int
    heads: Tensor
    keys: Tensor
    values: Tensor


class BatchedDecoder:
    """Sequences that are read and continued together. Not thread-safe: one call at a time.

    A sequence is empty at first and after `clear`. Its tokens read the memories that were injected last.
    """

    length: Tensor
    """int64 [B] on the device: rows of each sequence's text, prefix included."""

    @torch.inference_mode()
    def __init__(self, model: Decoder, prefix: Sequence[int], sequences: int, capacity: int) -> None:
        """Allocate the caches on the model's device, in the type that it computes products in.

        capacity: most tokens of a sequence, prefix included. Raises InvalidInput where it does not hold the prefix.
        """
        if sequences < 1 or capacity <= len(prefix):
            raise InvalidInput(f"{sequences} sequences of {capacity} tokens: one or more, longer than the prefix")
        config, layout = model.config, cache_layout(model.config)
        self.model, self.config, self.sequences, self.capacity = model, config, sequences, capacity
        self.device, self.prefix = model.embed_tokens.weight.device, len(prefix)
        with model.computing(self.device):
            on = torch.is_autocast_enabled(self.device.type)
            self.dtype = torch.get_autocast_dtype(self.device.type) if on else torch.float32
        rows = -(-(capacity + 1) // _ALIGNED_ROWS) * _ALIGNED_ROWS
        self._caches: list[list[_Cache]] = []
        for number in range(config.layers):
            self._caches.append([])
            for t in layout.of(number):
                shape = sequences, len(t.heads), layout.slots(t.layout) + rows, config.head_dim
                heads = torch.tensor(t.heads, device=self.device)
                self._caches[-1].append(_Cache(t.layout, heads, self._zeros(*shape), self._zeros(*shape)))
        self._order = [torch.tensor(block.self_attn.restore, device=self.device) for block in model.blocks]
        # By layout, [B, heads, s]: 0 where a slot row may be read, minus infinity elsewhere.
        self._slots = {TEXT: self._zeros(sequences, 1, 0)} if TEXT in layout.numbers else {}
        for number, tokens in enumerate(layout.layouts):
            slots = self._zeros(sequences, len(tokens), layout.slots(number))
            self._slots[number] = slots.fill_(float("-inf"))
        self._budget = [(b.self_attn.rows_Ht, b.self_attn.filled_Ht) for b in model.blocks]
        self._row = torch.arange(rows, device=self.device)
        first = config.memory.reference_tokens  # behind the prefix, the positions that all memories share
        self._cos, self._sin = model.rotary(self._row + torch.where(self._row < self.prefix, 0, first))
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
        self._graph, self._logits = self._captured()

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _captured(self) -> tuple[torch.cuda.CUDAGraph | None, Tensor]:
        """A step as a CUDA graph with the tensor that it writes logits to; no graph on a processor."""
        if self.device.type != "cuda":
            return None, self._zeros(0)
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
            raise InvalidInput(f"texts of {[len(t) for t in texts]} tokens make {ends}: 1 to {self.capacity} fit")
        ids, lengths = (x.to(self.device) for x in pad_ids(texts))
        step = torch.arange(ids.shape[1], device=self.device)
        # Padding writes rows that later tokens write again, or the spare row.
        rows = (start[:, None] + step).clamp_max(len(self._row) - 1)
        everyone = list(sequences) == list(range(self.sequences))
        hidden = self._hidden(ids, rows, None if everyone else chosen)
        self.length[chosen] = start + lengths
        self._longest = max(self._longest, *ends)
        return self.model.head(hidden[torch.arange(len(texts), device=self.device), lengths - 1]).float()

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

            def slotted(x: Tensor, rows_ht: Tensor = rows_ht) -> Tensor:  # [n, 1, m, rows, …] -> [n, h, m * t, …]
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

    def _advance(self) -> Tensor:
        """One step of static tensors only; an idle sequence writes a row that its next token writes again."""
        hidden = self._hidden(self._tokens.clamp_min(0)[:, None], self.length[:, None], None)
        self.length += self._tokens >= 0
        return self.model.head(hidden[:, 0]).float()

    def _hidden(self, ids_nT: Tensor, rows_nT: Tensor, chosen: Tensor | None) -> Tensor:
        """Normed hidden states [n, T, D]; writes keys and values to `rows_nT` of these sequences.

        chosen: int64 [n], None for all.
        """
        model, (n, T), G = self.model, ids_nT.shape, self.config.group
        writing = self._every if chosen is None else chosen
        reading = slice(None) if chosen is None else chosen
        masks = self._masks(rows_nT, reading)
        cos, sin = (x[rows_nT.flatten()] for x in (self._cos, self._sin))
        with model.computing(self.device):
            x_ND = model.embed_tokens(ids_nT.flatten()).float()
            for block, caches, order in zip(model.blocks, self._caches, self._order, strict=True):
                attention = block.self_attn
                q, k, v = attention.project(block.input_layernorm(x_ND))
                q, k = attention.rotate(q, cos, sin), attention.rotate(k, cos, sin)
                q_KGnTd = q.to(self.dtype).unflatten(0, (-1, G)).unflatten(2, (n, T))
                outs = []
                for cache in caches:
                    rows = rows_nT + self._slots[cache.layout].shape[2]
                    for kept, new in ((cache.keys, k), (cache.values, v)):
                        own = new[cache.heads].unflatten(1, (n, T)).to(self.dtype)  # [h, n, T, d]
                        kept[writing[:, None], :, rows] = own.permute(1, 2, 0, 3)
                    # Query heads of a group are queries of one head: [n, h, G T, d].
                    grouped = q_KGnTd[cache.heads].permute(2, 0, 1, 3, 4).flatten(2, 3)
                    sides = cache.keys[reading], cache.values[reading]
                    out = F.scaled_dot_product_attention(grouped, *sides, attn_mask=masks[cache.layout])
                    outs.append(out.unflatten(2, (G, T)))
                joined = torch.cat(outs, dim=1)[:, order]  # [n, K, G, T, d]
                x_ND = x_ND + attention.o_proj(joined.permute(0, 3, 1, 2, 4).flatten(2).flatten(0, 1))
                x_ND = x_ND + block.mlp(block.post_attention_layernorm(x_ND))
            return cast(Tensor, model.norm(x_ND)).unflatten(0, (n, T))

    def _masks(self, rows_nT: Tensor, reading: slice | Tensor) -> dict[int, Tensor]:
        """Additive masks [n, 1 or h, G T, S] by layout: valid slot rows, and text up to the token itself."""
        T, G = rows_nT.shape[1], self.config.group
        seen = self._row <= rows_nT[..., None]
        text = self._zeros(*seen.shape).masked_fill_(~seen, float("-inf"))[:, None]
        masks = {}
        for layout, slots in self._slots.items():
            own = slots[reading][:, :, None].expand(-1, -1, T, -1)
            mask = torch.cat((own, text.expand(-1, own.shape[1], -1, -1)), dim=-1)
            masks[layout] = mask[:, :, None].expand(-1, -1, G, -1, -1).flatten(2, 3)
        return masks
