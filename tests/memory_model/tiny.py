"""Tiny models with random weights and real shapes: grouped heads, unequal memory budgets."""

from collections.abc import Sequence

import torch

from memory3.codec.payload import ExplicitMemory
from memory3.config import MemoryConfig, MemoryHead, ModelConfig
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.writing import stack_memories

PREFIX = [1, 7, 9]


def tiny_config(**changes: object) -> ModelConfig:
    """3 layers, 6 query and 3 KV heads of 8; memory heads of unequal budgets in layers 0 and 2."""
    heads = (MemoryHead(0, 1, 4), MemoryHead(2, 0, 16), MemoryHead(2, 2, 6))
    fields: dict[str, object] = {
        "name": "tiny",
        "layers": 3,
        "query_heads": 6,
        "kv_heads": 3,
        "head_dim": 8,
        "mlp_width": 40,
        "vocabulary": 64,
        "rope_base": 10000.0,
        "norm_epsilon": 1e-5,
        "tied_embeddings": True,
        "memory": MemoryConfig(heads=heads, reference_tokens=16, chunk_tokens=8),
    }
    return ModelConfig(**{**fields, **changes})  # type: ignore[arg-type]


def tiny_model(config: ModelConfig | None = None, seed: int = 0) -> Decoder:
    """The tiny shape with random weights."""
    torch.manual_seed(seed)
    return random_model(config or tiny_config(), seed)


def chunk_memories(chunks: Sequence[Sequence[ExplicitMemory]], config: ModelConfig) -> MemoryBatch:
    """What each chunk of one text reads: [1, chunks, m, budget, d]."""
    stacked = stack_memories(chunks, config)
    return MemoryBatch(*(x.transpose(0, 1) for x in (stacked.keys, stacked.values, stacked.valid)))


def random_model(config: ModelConfig, seed: int = 0) -> Decoder:
    """A decoder with random weights of unit-variance activations, for shapes without published weights."""
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)
