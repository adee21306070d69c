"""Shapes of published models, without their weights, and a tiny one."""

from __future__ import annotations

from dataclasses import replace

from memory3.config import MemoryConfig, ModelConfig, uniform_budget

MEMORY3_2B = ModelConfig(
    name="memory3-2b",
    layers=44,
    query_heads=40,
    kv_heads=8,
    head_dim=80,
    mlp_width=3200,
    vocabulary=60416,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_embeddings=False,
    positions=2048,
    memory=MemoryConfig(heads=uniform_budget(22, 8, 8)),
)
"""The paper's model (3.4): 22 memory layers of 8 sparse tokens."""
SMOLLM2_135M = ModelConfig(
    name="smollm2-135m",
    layers=30,
    query_heads=9,
    kv_heads=3,
    head_dim=64,
    mlp_width=1536,
    vocabulary=49152,
    rope_base=100000.0,
    norm_epsilon=1e-5,
    tied_embeddings=True,
    positions=8192,
)
QWEN25_1B = ModelConfig(
    name="qwen2.5-1.5b",
    layers=28,
    query_heads=12,
    kv_heads=2,
    head_dim=128,
    mlp_width=8960,
    vocabulary=151936,
    rope_base=1000000.0,
    norm_epsilon=1e-6,
    tied_embeddings=True,
    attention_bias=True,
    positions=32768,
    memory=MemoryConfig(heads=uniform_budget(14, 2, 8)),
)
CODER_1B = replace(
    QWEN25_1B, name="qwen2.5-coder-1.5b", memory=MemoryConfig(reference_tokens=128, heads=uniform_budget(14, 2, 128))
)
"""As packaged: all tokens of 28 heads, here in the first layers."""
CODER_HALF_B = replace(
    QWEN25_1B,
    name="qwen2.5-coder-0.5b",
    layers=24,
    query_heads=14,
    head_dim=64,
    mlp_width=4864,
    memory=MemoryConfig(reference_tokens=128, heads=uniform_budget(24, 2, 128)),
)
"""As packaged: all tokens of all heads."""
TINY = ModelConfig(
    name="tiny",
    layers=4,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=96,
    vocabulary=49152,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_embeddings=False,
    positions=2048,
    memory=MemoryConfig(heads=uniform_budget(2, 2, 8)),
)
"""To try commands with."""
SHAPES = {shape.name: shape for shape in (MEMORY3_2B, QWEN25_1B, CODER_1B, CODER_HALF_B, SMOLLM2_135M, TINY)}
