"""A model of random weights that is never in memory whole: each layer is made from its seed when asked for.

For shapes whose weights are not published, such as the paper's (2.4 B parameters, 9.7 GB in float32): what
such a model says means nothing, what it costs is real.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from memory_model.config import ModelConfig


class RandomWeights(Mapping[str, np.ndarray]):
    """Weights with Hugging Face Llama names, float32, normal with variance 1 / inputs; norms are ones.

    The same seed gives the same numbers, tensor by tensor, in whatever order they are asked for. The last
    few tensors are kept, since an exporter asks for one several times; not thread-safe.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self._shapes = weight_shapes(config)
        self._make = lru_cache(maxsize=8)(self._made)

    @property
    def model_id(self) -> str:
        """SHA-256 (hex) of what the numbers follow from."""
        sources = json.dumps(["random", self.seed, self.config.to_dict()], sort_keys=True)
        return hashlib.sha256(sources.encode()).hexdigest()

    def __getitem__(self, name: str) -> np.ndarray:
        return self._make(name)

    def _made(self, name: str) -> np.ndarray:
        shape = self._shapes[name]
        if len(shape) == 1:
            return np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        weight = rng.standard_normal(shape, np.float32)
        weight *= np.float32(shape[1] ** -0.5)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a decoder, by its name."""
    d, kv, width = config.hidden, config.kv_heads * config.head_dim, config.mlp_width
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocabulary, d), "norm.weight": (d,)}
    for layer in range(config.layers):
        at = f"layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (d,), f"{at}.post_attention_layernorm.weight": (d,),
            f"{at}.self_attn.q_proj.weight": (d, d), f"{at}.self_attn.k_proj.weight": (kv, d),
            f"{at}.self_attn.v_proj.weight": (kv, d), f"{at}.self_attn.o_proj.weight": (d, d),
            f"{at}.mlp.gate_proj.weight": (width, d), f"{at}.mlp.up_proj.weight": (width, d),
            f"{at}.mlp.down_proj.weight": (d, width),
        }  # fmt: skip
        if config.attention_bias:
            shapes |= {f"{at}.self_attn.{p}_proj.bias": (n,) for p, n in (("q", d), ("k", kv), ("v", kv))}
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocabulary, d)
    return shapes
