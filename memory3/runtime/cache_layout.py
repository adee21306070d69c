"""Which cache tensor holds which key-value heads: the contract between the exported decoder and its runtime.

In every layer the heads with memory have a cache tensor of their own, whose rows begin with memory slots:

    [memory slots: memories_per_chunk * tokens | text rows]

In a sequence without memory the text begins at row 0 instead. A slot layout is the tuple of tokens that the memory
heads of a layer keep. Layers of equal layout share one mask over the slots and one first row (graph inputs
`memory_mask_0`, `memory_rows_0`, …); all others share `text_rows` and need no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memory3.config import ModelConfig

TEXT = -1
"""The layout number of heads without memory."""


@dataclass(frozen=True)
class CacheTensor:
    """Keys (and a twin of values) of some heads of one layer: [sequences, len(heads), rows, head_dim].

    `tokens`: how many tokens of a memory each head keeps, empty for heads without memory.
    `first_rows`: where these tokens begin in an explicit memory's rows. `layout`: number of the slot layout.
    """

    layer: int
    heads: tuple[int, ...]
    layout: int
    tokens: tuple[int, ...] = ()
    first_rows: tuple[int, ...] = ()

    @property
    def keys(self) -> str:
        """Name of the graph input that holds the keys; the output is `<name>_out`."""
        return f"{'memory' if self.tokens else 'text'}_keys_{self.layer}"

    @property
    def values(self) -> str:
        """Name of the graph input that holds the values."""
        return f"{'memory' if self.tokens else 'text'}_values_{self.layer}"

    @property
    def queries(self) -> str:
        """Name of the graph output that holds queries, of heads with memory only.

        Of every token the first h G d numbers are its queries, divided by sqrt(d), before the rotary embedding.
        """
        return f"memory_queries_{self.layer}"


@dataclass(frozen=True)
class CacheLayout:
    """All cache tensors of a model, layer by layer, and its distinct slot layouts.

    memories: how many of them the slots hold.
    """

    tensors: tuple[CacheTensor, ...]
    layouts: tuple[tuple[int, ...], ...]
    memories: int

    def of(self, layer: int) -> tuple[CacheTensor, ...]:
        """The tensors of one layer: memory heads first, then the rest; one of both may be missing."""
        return tuple(t for t in self.tensors if t.layer == layer)

    def head_order(self, layer: int) -> tuple[int, ...]:
        """KV heads of a layer in the order of its tensors."""
        return tuple(h for t in self.of(layer) for h in t.heads)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the layouts that occur, TEXT first."""
        return sorted({t.layout for t in self.tensors})

    def slots(self, number: int) -> int:
        """Rows of a layout before the text of a sequence with memory."""
        return 0 if number == TEXT else self.memories * max(self.layouts[number])

    def lead(self, number: int) -> int:
        """First dimension of a layout's mask: heads that keep different numbers of tokens have masks of their own."""
        tokens = self.layouts[number]
        return 1 if len(set(tokens)) == 1 else len(tokens)


def mask_name(layout: int) -> str:
    """Graph input with the additive mask over a layout's slots, float32 [B, lead, slots]."""
    return f"memory_mask_{layout}"


def rows_name(layout: int) -> str:
    """Graph input with the row of each sequence's first new token, int64 [B]; the others follow it."""
    return "text_rows" if layout == TEXT else f"memory_rows_{layout}"


def fused_path(decoder: Path) -> Path:
    """The variant for ONNX Runtime's CPU provider: `decoder.cpu.onnx`, next to `decoder.onnx`."""
    return decoder.with_name(f"{decoder.stem}.cpu{decoder.suffix}")


def projection_rows(config: ModelConfig, heads: Sequence[int], group: int) -> np.ndarray:
    """The rows of a projection that belong to these KV heads, `group` heads for each."""
    numbers = np.asarray(heads)[:, None] * group + np.arange(group)
    return (numbers.reshape(-1, 1) * config.head_dim + np.arange(config.head_dim)).reshape(-1)


def cache_layout(config: ModelConfig) -> CacheLayout:
    """The cache tensors of a model shape."""
    starts = dict(zip(config.memory.heads, config.memory.offsets, strict=True))
    tensors: list[CacheTensor] = []
    layouts: list[tuple[int, ...]] = []
    for layer in range(config.layers):
        kept = config.memory.heads_of(layer)
        plain = tuple(h for h in range(config.kv_heads) if h not in {k.head for k in kept})
        if kept:
            tokens = tuple(k.tokens for k in kept)
            if tokens not in layouts:
                layouts.append(tokens)
            heads, rows = tuple(k.head for k in kept), tuple(starts[k] for k in kept)
            tensors.append(CacheTensor(layer, heads, layouts.index(tokens), tokens, rows))
        if plain:
            tensors.append(CacheTensor(layer, plain, TEXT))
    return CacheLayout(tuple(tensors), tuple(layouts), config.memory.memories_per_chunk)
