"""The decoder that reads on: a batch of sequences over static caches, with memory slots for each.

It computes with the weights of a `Decoder`, for a local server (`models.engine`) and for evaluation. Caches are
allocated once, each row of a cache has a fixed position, and on a GPU a step is one CUDA graph.

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

from memory3.errors import InvalidInput
from memory3.runtime.cache_layout import TEXT, cache_layout
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.writing import pad_ids

_ALIGNED_ROWS = 8
"""Attention on a GPU reads masks whose rows are a multiple of this."""
_WARM_UP_STEPS = 3
_SHORTEST = 256
"""Text rows that the shortest step reads. Longer ones read twice as many, and so on up to all."""


_Graph = tuple[torch.cuda.CUDAGraph, Tensor, list[Tensor]]
"""A step, its logits, and the queries that it records."""


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
    queries: list[Tensor]
    """Of the last run that recorded them, [n, T, h G d] of every layer with memory heads, see `CacheTensor.queries`."""
    text: dict[str, Tensor]
    """Text rows [B, h, R, d] of the caches, prefix first, by the names of `CacheTensor`."""

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
        self.text, self._caches = {}, list[list[_Cache]]()
        for number in range(config.layers):
            self._caches.append([])
            for t in layout.of(number):
                shape = sequences, len(t.heads), layout.slots(t.layout) + rows, config.head_dim
                heads = torch.tensor(t.heads, device=self.device)
                sides = self._zeros(*shape), self._zeros(*shape)
                self._caches[-1].append(_Cache(t.layout, heads, *sides))
                own = (side[:, :, layout.slots(t.layout) :] for side in sides)
                self.text.update(zip((t.keys, t.values), own, strict=True))
        self._order = [torch.tensor(block.self_attn.restore, device=self.device) for block in model.blocks]
        # By layout, [B, heads, s]: 0 where a slot row may be read, minus infinity elsewhere.
        self._slots = {TEXT: self._zeros(sequences, 1, 0)} if TEXT in layout.numbers else {}
        for number, tokens in enumerate(layout.layouts):
            slots = self._zeros(sequences, len(tokens), layout.slots(number))
            self._slots[number] = slots.fill_(float("-inf"))
        self._budget = [(b.self_attn.rows_Ht, b.self_attn.filled_Ht) for b in model.blocks]
        self._row = torch.arange(rows, device=self.device)
        self._sizes = [*(n for e in range(32) if (n := _SHORTEST << e) < rows), rows]
        first = config.memory.reference_tokens  # behind the prefix, the positions that all memories share
        self._cos, self._sin = model.rotary(self._row + torch.where(self._row < self.prefix, 0, first))
        self._every = torch.arange(sequences, device=self.device)
        self.length = torch.zeros(sequences, dtype=torch.long, device=self.device)
        self._tokens = torch.full_like(self.length, -1)
        self._longest = 0
        if prefix:
            self.prefill([0], [prefix])
            for x in self.text.values():
                x[1:] = x[:1]
        self.length.fill_(self.prefix)
        self.queries = []
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._graphs: dict[bool, dict[int, _Graph]] = {False: self._captured(records=False)}

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _captured(self, records: bool) -> dict[int, _Graph]:
        """By text rows, a step as a CUDA graph with the tensors that it writes; none on a processor."""
        graphs: dict[int, _Graph] = {}
        for seen in self._sizes if self._pool else ():
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP_STEPS):  # of idle sequences: their tokens are negative
                    self._advance(seen, records)
            torch.cuda.current_stream(self.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                logits = self._advance(seen, records)
            graphs[seen] = graph, logits, self.queries
        return graphs

    # What a caller does with sequences

    @torch.inference_mode()
    def clear(self, sequences: Sequence[int]) -> None:
        """Empty these sequences: neither text nor memories."""
        chosen = self._numbers(sequences)
        self.length[chosen] = self.prefix
        for slots in self._slots.values():
            slots[chosen] = float("-inf")

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[int], texts: Sequence[Sequence[int]], records: bool = False) -> Tensor:
        """Append a text to each of these different sequences; float32 logits [n, V] behind its last token.

        records: leave `queries` of the last tokens, [n, 1, h G d] of each layer. Raises InvalidInput for an empty
        text or one that does not fit; then nothing was appended.
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
        hidden = self._hidden(ids, rows, slice(None) if everyone else chosen, self._seen(max(ends)), records)
        last = torch.arange(len(texts), device=self.device), lengths - 1
        self.queries = [layer[last][:, None] for layer in self.queries]
        self.length[chosen] = start + lengths
        self._longest = max(self._longest, *ends)
        return self.model.head(hidden[last]).float()

    @torch.inference_mode()
    def step(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to every sequence; float32 logits [B, V], valid until the next step.

        tokens: int64 [B]. A sequence whose token is negative is unchanged, and its logits are undefined.
        Raises InvalidInput where a sequence is full; then nothing was appended.
        """
        self._tokens.copy_(torch.as_tensor(tokens))
        if self._longest >= self.capacity:  # an upper bound: sequences may be cleared, and full ones may be idle
            self._longest = int(self.length.max())
            if bool(((self._tokens >= 0) & (self.length >= self.capacity)).any()):
                raise InvalidInput(f"a sequence has {self.capacity} tokens: its cache is full")
        self._longest += 1
        return self._replayed(self._seen(self._longest))

    @torch.inference_mode()
    def run(
        self, first: int, ids_nT: Sequence[Sequence[int]], lengths: Sequence[int], every: bool, records: bool = False
    ) -> Tensor:
        """Append tokens to the sequences from `first` on, as many to each, behind the first `lengths` rows of each.

        float32 logits [n, V] behind the last tokens, with `every` [n T, V] behind all; valid until the next run. What
        the other sequences hold is kept, but not their `length`: a caller of `run` keeps lengths itself. records: leave
        `queries`, which are valid as long.
        """
        ids, start = (torch.tensor(x, device=self.device) for x in (ids_nT, lengths))
        sequences, seen = slice(first, first + len(ids)), self._seen(max(lengths) + ids.shape[1])
        if self._pool and ids.shape[1] == 1:
            self._tokens.fill_(-1)
            self.length.fill_(self.capacity)  # others write to the spare row
            if records not in self._graphs:
                self._graphs[records] = self._captured(records)
            self._tokens[sequences], self.length[sequences] = ids[:, 0], start
            logits = self._replayed(seen, records)
            self.queries = [layer[sequences] for layer in self.queries]
            return logits[sequences]
        rows = start[:, None] + torch.arange(ids.shape[1], device=self.device)
        hidden = self._hidden(ids, rows, sequences, seen, records)
        return self.model.head(hidden if every else hidden[:, -1:]).float().flatten(0, 1)

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

    def _seen(self, longest: int) -> int:
        """Text rows to read where no sequence is longer."""
        return next(size for size in self._sizes if size >= longest)

    def _replayed(self, seen: int, records: bool = False) -> Tensor:
        """A step of `_tokens` behind `length` that reads `seen` text rows, by its CUDA graph where there is one."""
        if seen not in self._graphs[records]:
            return self._advance(seen, records)
        graph, logits, self.queries = self._graphs[records][seen]
        graph.replay()
        return logits

    def _advance(self, seen: int, records: bool) -> Tensor:
        """One step of static tensors only; an idle sequence writes a row that its next token writes again."""
        hidden = self._hidden(self._tokens.clamp_min(0)[:, None], self.length[:, None], slice(None), seen, records)
        self.length += self._tokens >= 0
        return self.model.head(hidden[:, 0]).float()

    def _hidden(
        self, ids_nT: Tensor, rows_nT: Tensor, chosen: Tensor | slice, seen: int, records: bool = False
    ) -> Tensor:
        """Normed hidden states [n, T, D] of `chosen` sequences; writes their rows `rows_nT`, reads the first `seen`."""
        self.queries = []
        model, (n, T), G = self.model, ids_nT.shape, self.config.group
        masks = self._masks(rows_nT, chosen, seen)
        cos, sin = (x[rows_nT.flatten()] for x in (self._cos, self._sin))
        with model.computing(self.device):
            x_ND = model.embed_tokens(ids_nT.flatten()).float()
            for block, caches, order in zip(model.blocks, self._caches, self._order, strict=True):
                attention = block.self_attn
                q, k, v = attention.project(block.input_layernorm(x_ND))
                for cache in caches if records else ():
                    if cache.layout != TEXT:
                        scaled = q.unflatten(0, (-1, G))[cache.heads].float() * self.config.head_dim**-0.5
                        self.queries.append(scaled.permute(2, 0, 1, 3).flatten(1).unflatten(0, (n, T)))
                q, k = attention.rotate(q, cos, sin), attention.rotate(k, cos, sin)
                q_KGnTd = q.to(self.dtype).unflatten(0, (-1, G)).unflatten(2, (n, T))
                outs = []
                for cache in caches:
                    self._write_rows(cache, k, v, rows_nT, chosen)
                    outs.append(self._attend(cache, q_KGnTd, chosen, seen, masks[cache.layout]))
                joined = torch.cat(outs, dim=1)[:, order]  # [n, K, G, T, d]
                x_ND = x_ND + attention.o_proj(joined.permute(0, 3, 1, 2, 4).flatten(2).flatten(0, 1))
                x_ND = x_ND + block.mlp(block.post_attention_layernorm(x_ND))
            return cast(Tensor, model.norm(x_ND)).unflatten(0, (n, T))

    def _write_rows(self, cache: _Cache, k_KNd: Tensor, v_KNd: Tensor, rows_nT: Tensor, chosen: Tensor | slice) -> None:
        """Keys and values of new tokens, n sequences side by side, to their rows behind the slots."""
        sequences, rows = self._every[chosen][:, None], rows_nT + self._slots[cache.layout].shape[2]
        for kept, new in ((cache.keys, k_KNd), (cache.values, v_KNd)):
            own_hnTd = new[cache.heads].unflatten(1, rows_nT.shape).to(self.dtype)
            kept[sequences, :, rows] = own_hnTd.permute(1, 2, 0, 3)

    def _attend(self, cache: _Cache, q_KGnTd: Tensor, chosen: Tensor | slice, seen: int, mask: Tensor) -> Tensor:
        """What the heads of a cache read of its slots and its first `seen` rows of text: [n, h, G, T, d]."""
        G, T = q_KGnTd.shape[1], q_KGnTd.shape[3]
        # Query heads of a group are queries of one head: [n, h, G T, d].
        grouped = q_KGnTd[cache.heads].permute(2, 0, 1, 3, 4).flatten(2, 3)
        stop = seen + self._slots[cache.layout].shape[2]
        sides = cache.keys[chosen, :, :stop], cache.values[chosen, :, :stop]
        return F.scaled_dot_product_attention(grouped, *sides, attn_mask=mask).unflatten(2, (G, T))

    def _masks(self, rows_nT: Tensor, chosen: Tensor | slice, seen: int) -> dict[int, Tensor]:
        """Additive masks [n, 1 or h, G T, S] by layout: valid slot rows, and text up to the token itself."""
        T, G = rows_nT.shape[1], self.config.group
        hidden = self._row[:seen] > rows_nT[..., None]
        text = self._zeros(*hidden.shape).masked_fill_(hidden, float("-inf"))[:, None]
        masks = {}
        for layout, slots in self._slots.items():
            own = slots[chosen][:, :, None].expand(-1, -1, T, -1)
            mask = torch.cat((own, text.expand(-1, own.shape[1], -1, -1)), dim=-1)
            masks[layout] = mask[:, :, None].expand(-1, -1, G, -1, -1).flatten(2, 3)
        return masks
