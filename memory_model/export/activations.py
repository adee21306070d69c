"""What flows into each linear layer while the model reads and answers: second moments for `export.quantize`.

The model reads questions with five memories in the slots, one of them the right one, and their answers; and some of
the references as text (decision 0016).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from memory_model.cache_layout import cache_layout, projection_rows
from memory_model.chat import prefix_ids
from memory_model.nn.generate import read
from memory_model.nn.writing import stack_memories

if TYPE_CHECKING:
    from memory_model.codec.payload import ExplicitMemory
    from memory_model.models.load import LoadedModel

PLAIN = 0.5
"""Weight of plain text beside questions, in moments of equal trace."""
TEXTS = 48
"""References that are read as text: some 6,000 tokens."""
KEYS = ("knowledge", "question", "right_answer")

Row = Mapping[str, str]
"""{knowledge, question, right_answer}, as `memory-model eval` reads them; the knowledge fits a reference."""


@torch.inference_mode()
def second_moments(
    loaded: LoadedModel, rows: Sequence[Row], progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, np.ndarray]:
    """Means of x x^T, float32 [inputs, inputs], by the exporter's layer names, inputs in the exporter's order.

    progress: called with (rows read, rows). A model without memory reads the references as text only.
    """
    memory = loaded.config.memory
    references = [loaded.tokenizer.encode(row["knowledge"])[: memory.reference_tokens] for row in rows]
    written = loaded.writer.write([row["knowledge"] for row in rows]) if memory.heads else []
    asked: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    rng = random.Random(0)
    for number, row in enumerate(rows):
        chosen: list[ExplicitMemory] = []
        if written:
            others = [m for n, m in enumerate(written) if n != number]
            chosen = [written[number], *rng.sample(others, min(len(others), memory.memories_per_chunk - 1))]
            rng.shuffle(chosen)
            prompt = loaded.chat.prompt([{"role": "user", "content": row["question"]}]).ids
            answer = [*loaded.tokenizer.encode_next(row["right_answer"]), loaded.tokenizer.end_of_turn_id]
            with _listening(loaded, asked):
                _read(loaded, [*prompt, *answer], chosen)
        if number < TEXTS:
            # Every second one beside memories, its own among them.
            with _listening(loaded, plain):
                _read(loaded, references[number], chosen if number % 2 else [])
        progress(number + 1, len(rows))
    found: dict[str, np.ndarray] = {}
    for sums, weight in ((asked, 1.0), (plain, PLAIN)):
        for name, total in sums.items():
            part = weight * (total / total.trace()).numpy()
            found[name] = found[name] + part if name in found else part
    return found


def _read(loaded: LoadedModel, text: Sequence[int], memories: Sequence[ExplicitMemory]) -> None:
    """Read text behind the prefix, where the device reads it, with memories in the slots or none."""
    ids = torch.tensor([text])
    memory = stack_memories([memories], loaded.config) if memories else None
    read(loaded.model, ids, prefix_ids(loaded.tokenizer, loaded.config.memory), memory, torch.zeros_like(ids))


@contextmanager
def _listening(loaded: LoadedModel, sums: dict[str, Tensor]) -> Iterator[None]:
    """Add every linear layer's inputs to `sums` within."""
    config, layout = loaded.config, cache_layout(loaded.config)
    handles = []

    def add(name: str, inputs: Tensor, order: Tensor | None = None) -> None:
        x = inputs.flatten(0, -2).float()
        x = x if order is None else x[:, order]
        sums[name] = sums[name] + x.T @ x if name in sums else x.T @ x

    def hear(module: nn.Module, name: str, order: Tensor | None = None) -> None:
        handles.append(module.register_forward_pre_hook(lambda _, inputs: add(name, inputs[0], order)))

    for number, block in enumerate(loaded.model.blocks):
        at, attention = f"layers.{number}", block.self_attn
        columns = torch.from_numpy(projection_rows(config, layout.head_order(number), config.group))
        hear(attention.q_proj, f"{at}.qkv")
        hear(attention.o_proj, f"{at}.o", columns)
        hear(block.mlp.gate_proj, f"{at}.gate_up")
        hear(block.mlp.down_proj, f"{at}.down")
    head = "lm_head" if loaded.model.lm_head is not None else "table"
    handles.append(loaded.model.norm.register_forward_hook(lambda _, __, y: add(head, y)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
