"""What tuning a model of some size takes: memory and time, computed; docs/training.md has the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory_model.config import ModelConfig, qwen25_1b, smollm2_135m

_SHAPES: tuple[ModelConfig, ...] = (
    smollm2_135m(),
    replace(
        qwen25_1b(), name="0.5 B", layers=24, hidden=896, query_heads=14, head_dim=64, mlp_width=4864,
    ),
    replace(qwen25_1b(), name="1.5 B"),
    replace(qwen25_1b(), name="3 B", layers=36, hidden=2048, query_heads=16, mlp_width=11008),
    replace(
        qwen25_1b(), name="8 B", layers=32, hidden=4096, query_heads=32, kv_heads=8, mlp_width=14336,
        vocabulary=128256, tied_embeddings=False, attention_bias=False,
    ),
)  # fmt: skip


def adapter_parameters(config: ModelConfig, rank: int) -> int:
    """Numbers of a low-rank adapter on every projection of every layer."""
    d, q, kv, w = config.hidden, config.query_width, config.kv_heads * config.head_dim, config.mlp_width
    return config.layers * rank * ((d + q) + 2 * (d + kv) + (q + d) + 3 * (d + w))


def memory_bytes(config: ModelConfig, tokens: int, rank: int, *, checkpoint: bool) -> float:
    """Of one GPU: weights in bfloat16, the adapter with gradient and moments in float32, and what layers keep.

    Without checkpointing the weights of the layers are kept twice, as they were and merged with the adapter.

    A layer keeps for each token its input and middle (float32), two normed inputs, queries, keys, values, what was
    read, and three widths of the MLP (bfloat16); with checkpointing all but one keep their input alone. Memories,
    logits and the allocator's own are left out.
    """
    d, q, kv = config.hidden, config.query_width, config.kv_heads * config.head_dim
    layer = 8 * d + 4 * d + 2 * (2 * q + 2 * kv) + 6 * config.mlp_width
    kept = 4 * d * config.layers + layer if checkpoint else layer * config.layers
    merged = 0 if checkpoint else config.parameters(embeddings=False)
    return 2 * (config.parameters() + merged) + 16 * adapter_parameters(config, rank) + tokens * kept


def step_tflop(config: ModelConfig, tokens: int, *, checkpoint: bool) -> float:
    """Of a step: forward, gradient of inputs, the teacher over half of the tokens; forward again if checkpointed."""
    return (2 + 2 + 1 + 2 * checkpoint) * config.parameters(embeddings=False) * tokens / 1e12


def training_cost(
    tokens: Annotated[int, typer.Option(help="Of a step: references and texts.")] = 4096,
    rank: Annotated[int, typer.Option(help="Of the adapter.")] = 32,
    tflops: Annotated[float, typer.Option(help="What the device computes a second, in TFLOP.")] = 300.0,
) -> None:
    """Print memory and time of a step of `memory-model adapt` for models of 0.1 to 8 B parameters."""
    show = Table("model", "adapter, M", "GB", "GB, checkpointed", "s a step", "s, checkpointed")
    for config in _SHAPES:
        memory = [memory_bytes(config, tokens, rank, checkpoint=c) / 1e9 for c in (False, True)]
        seconds = [step_tflop(config, tokens, checkpoint=c) / tflops for c in (False, True)]
        adapter = adapter_parameters(config, rank) / 1e6
        show.add_row(
            config.name, f"{adapter:.0f}", *(f"{m:.1f}" for m in memory), *(f"{s:.3g}" for s in seconds)
        )
    Console().print(show)
