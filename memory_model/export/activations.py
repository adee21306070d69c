"""What flows into each linear layer while the model reads and answers: second moments for `export.rounding`.

The model reads texts twice: as they are, and with their own memories in the slots, because heads that read
memories must be rounded for what they read there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from memory_model.cache_layout import cache_layout

if TYPE_CHECKING:
    from memory_model.nn.load import LoadedModel

TEXTS = 48
"""Texts of at most a reference's length that are enough: some 10,000 tokens for a few thousand inputs."""
_AT_ONCE = 8
_MARGIN = 8


@torch.inference_mode()
def second_moments(
    loaded: LoadedModel, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> dict[str, np.ndarray]:
    """Sums of x x^T, float32 [inputs, inputs], by the exporter's layer names, inputs in the exporter's order.

    texts: at most TEXTS of them are read, each cut to a reference's length. progress: called with (texts
    read, texts).
    """
    from memory_model.evaluation.memories import stack_memories

    model, memory = loaded.model, loaded.config.memory
    # A cut inside a word may be spelled with a few tokens more.
    tokenizer, longest = loaded.tokenizer, memory.reference_tokens - _MARGIN
    texts = [tokenizer.decode(tokenizer.encode(t)[:longest]) for t in texts if t.strip()][:TEXTS]
    sums: dict[str, Tensor] = {}
    hooks = _listen(loaded, sums)
    try:
        for start in range(0, len(texts), _AT_ONCE):
            part = texts[start : start + _AT_ONCE]
            written = loaded.writer.write(part, batch_size=_AT_ONCE) if memory.heads else []
            for number, text in enumerate(part):
                ids = torch.tensor([tokenizer.encode(text)])
                positions = memory.reference_tokens + torch.arange(ids.shape[1])[None]
                model.head(model.hidden(ids, positions)[0])
                if written:
                    others = [written[number], *(w for n, w in enumerate(written) if n != number)]
                    batch = stack_memories([others[: memory.memories_per_chunk]], loaded)
                    model.head(model.hidden(ids, positions, memory=batch, chunk_BT=torch.zeros_like(ids))[0])
            if progress is not None:
                progress(min(start + _AT_ONCE, len(texts)), len(texts))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: total.numpy() for name, total in sums.items()}


def _listen(loaded: LoadedModel, sums: dict[str, Tensor]) -> list[torch.utils.hooks.RemovableHandle]:
    """Add every linear layer's inputs to `sums`, from now on."""
    model, config = loaded.model, loaded.config
    layout = cache_layout(config)
    handles = []

    def hear(module: nn.Module, name: str, order: Tensor | None = None) -> None:
        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].flatten(0, -2).float()
            x = x if order is None else x[:, order]
            sums[name] = sums[name] + x.T @ x if name in sums else x.T @ x

        handles.append(module.register_forward_pre_hook(add))

    def hear_output(module: nn.Module, name: str) -> None:
        def add(_: nn.Module, __: tuple[Tensor, ...], y: Tensor) -> None:
            x = y.flatten(0, -2).float()
            sums[name] = sums[name] + x.T @ x if name in sums else x.T @ x

        handles.append(module.register_forward_hook(add))

    for number, block in enumerate(model.blocks):
        at, attention = f"layers.{number}", block.self_attn
        heads = torch.tensor(layout.head_order(number))
        queries = (heads[:, None] * config.group + torch.arange(config.group)).reshape(-1, 1)
        hear(attention.q_proj, f"{at}.qkv")
        hear(
            attention.o_proj,
            f"{at}.o",
            (queries * config.head_dim + torch.arange(config.head_dim)).reshape(-1),
        )
        hear(block.mlp.gate_proj, f"{at}.gate_up")
        hear(block.mlp.down_proj, f"{at}.down")
    hear_output(model.norm, "lm_head" if model.lm_head is not None else "table")
    return handles
