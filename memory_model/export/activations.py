"""What flows into each linear layer while the model reads and answers: second moments for `export.quantize`.

The model reads questions with five memories in the slots, one of them the right one, and their answers; and some of
the references as text (decision 0016).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from memory3.runtime.cache_layout import cache_layout, projection_rows
from memory3.text.chat import prefix_ids, text_start
from memory_model.nn.decoder import PackedRows
from memory_model.nn.fused import product_type, products
from memory_model.nn.writing import stack_memories

if TYPE_CHECKING:
    from memory3.codec.payload import ExplicitMemory
    from memory_model.models.load import LoadedModel

PLAIN = 0.5
"""Weight of plain text relative to questions, in moments of equal trace."""
TEXTS = 48
"""References that are read as text: some 6,000 tokens."""
AT_ONCE = 8
"""Questions that are read together."""
MOST_INPUTS = 4096
"""Of a layer that is calibrated: moments of 28 layers of 8,960 inputs would take 9 GB, and their inverses an hour."""
KEYS = ("knowledge", "question", "right_answer")

CalibrationRow = Mapping[str, str]
"""{knowledge, question, right_answer}, as `memory-model eval` reads them; the knowledge fits a reference."""


@torch.inference_mode()
def second_moments(
    loaded: LoadedModel, rows: Sequence[CalibrationRow], progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, np.ndarray]:
    """Means of x x^T, float32 [inputs, inputs], by the exporter's layer names, inputs in the exporter's order.

    progress: called with (rows read, rows). A model without memory reads the references as text only.
    """
    memory = loaded.config.memory
    references = [loaded.tokenizer.encode(row["knowledge"])[: memory.reference_tokens] for row in rows]
    writer = copy(loaded.writer)
    writer.precision = product_type("cpu")
    written = writer.write([row["knowledge"] for row in rows]) if memory.heads else []
    questions, plain, rng = _Moments(loaded), _Moments(loaded), random.Random(0)
    for start in range(0, len(rows), AT_ONCE):
        batch, texts = rows[start : start + AT_ONCE], references[start : min(start + AT_ONCE, TEXTS)]
        read: list[list[ExplicitMemory]] = [[] for _ in batch]
        if written:
            for number, memories in enumerate(read, start):
                others = [m for n, m in enumerate(written) if n != number]
                memories += [written[number], *rng.sample(others, min(len(others), memory.memories_per_chunk - 1))]
                rng.shuffle(memories)
            questions.add([_conversation(loaded, row) for row in batch], read)
        if texts:  # every second one with memories, its own among them
            plain.add(texts, [memories if n % 2 else [] for n, memories in enumerate(read[: len(texts)])])
        for done in range(start, start + len(batch)):
            progress(done + 1, len(rows))
    found: dict[str, np.ndarray] = {}
    for sums, weight in ((questions.sums, 1.0), (plain.sums, PLAIN)):
        for name, total in sums.items():
            part = (total * (weight / total.trace())).numpy()
            found[name] = found[name] + part if name in found else part
    return found


def _conversation(loaded: LoadedModel, row: CalibrationRow) -> list[int]:
    """A row's question and its answer, as token ids."""
    prompt = loaded.chat.prompt([{"role": "user", "content": row["question"]}]).ids
    return [*prompt, *loaded.chat.encode_answer(row["right_answer"]), loaded.tokenizer.end_of_turn_id]


class _Moments:
    """Sums of x x^T of every linear layer's inputs x, by the exporter's names, over all texts added."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.sums = loaded, dict[str, Tensor]()
        self.prefix = prefix_ids(loaded.tokenizer, loaded.config.memory)

    def add(self, texts: Sequence[Sequence[int]], memories: Sequence[Sequence[ExplicitMemory]]) -> None:
        """Read texts behind the prefix, where the device reads them, each with its memories in the slots."""
        config, P = self.loaded.config, len(self.prefix)
        first, parts = text_start(self.prefix, config.memory), []
        for text, own in zip(texts, memories, strict=True):
            memory = stack_memories([own], config) if own else None
            parts.append(PackedRows(1, P + len(text), memory, torch.tensor([[-1] * P + [0] * len(text)])))
        ids = torch.tensor([token for text in texts for token in (*self.prefix, *text)])
        positions = torch.tensor([n for text in texts for n in (*range(P), *range(first, first + len(text)))])
        with self._listening(), products("cpu"):
            self.loaded.model.packed(ids, positions, parts)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Add every linear layer's inputs to the sums within."""
        config, layout = self.loaded.config, cache_layout(self.loaded.config)
        handles = []

        def add(name: str, inputs: Tensor, order: Tensor | None = None) -> None:
            x = (inputs if order is None else inputs[:, order]).float()
            if name not in self.sums:
                self.sums[name] = x.new_zeros((x.shape[1], x.shape[1]))
            with torch.autocast("cpu", enabled=False):
                self.sums[name].addmm_(x.T, x)

        def hear(module: nn.Module, name: str, order: Tensor | None = None) -> None:
            handles.append(module.register_forward_pre_hook(lambda _, inputs: add(name, inputs[0], order)))

        for number, block in enumerate(self.loaded.model.blocks):
            at, attention = f"layers.{number}", block.self_attn
            columns = torch.from_numpy(projection_rows(config, layout.head_order(number), config.group))
            hear(attention.q_proj, f"{at}.qkv")
            hear(attention.o_proj, f"{at}.o", columns)
            hear(block.mlp.gate_proj, f"{at}.gate_up")
            if config.mlp_width <= MOST_INPUTS:
                hear(block.mlp.down_proj, f"{at}.down")
        head = "lm_head" if self.loaded.model.lm_head is not None else "table"
        handles.append(self.loaded.model.norm.register_forward_hook(lambda _, __, y: add(head, y)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
