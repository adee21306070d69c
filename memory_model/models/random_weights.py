"""A model of random weights that is never in memory whole: each layer is made from its seed when asked for.

For shapes whose weights are not published, such as the paper's (2.4 B parameters, 9.7 GB in float32): what
such a model says means nothing, what it costs is real.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from memory_model.config import ModelConfig, weight_shapes
from memory_model.errors import InvalidInput
from memory_model.models.architectures import hugging_face_config
from memory_model.models.folder import Checkpoint
from memory_model.tokenizer import Tokenizer

SHARD_BYTES = 1 << 30


class RandomWeights(Mapping[str, np.ndarray]):
    """Weights with Hugging Face Llama names, float32, normal with variance 1 / inputs; norms are ones.

    The same seed gives the same numbers, tensor by tensor, in whatever order they are asked for. The last
    few tensors are kept, since an exporter asks for one several times; not thread-safe.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self._shapes = weight_shapes(config)
        self._make = lru_cache(maxsize=8)(self._made)

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


def write_random_folder(
    config: ModelConfig, out: str | Path, tokenizer: Checkpoint, *, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> Path:  # fmt: skip
    """Write a Hugging Face folder of a shape with random bfloat16 weights, one shard at a time; returns it.

    tokenizer: the checkpoint whose tokenizer and chat template it gets. progress: called with (tensors written,
    tensors). Raises InvalidInput where `out` holds something or the tokenizer has more tokens than the shape.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(f"{out} exists and is not empty: choose another folder")
    backend = Tokenizer.from_json(tokenizer.tokenizer_json, tokenizer.special_tokens).backend
    if backend.get_vocab_size() > config.vocabulary:
        raise InvalidInput(
            f"the tokenizer has {backend.get_vocab_size()} tokens, the shape {config.vocabulary}"
        )
    out.mkdir(parents=True, exist_ok=True)
    weights, places = RandomWeights(config, seed), {}
    shard: dict[str, torch.Tensor] = {}
    shards = size = 0

    def flush() -> None:
        nonlocal shards, size
        shards += 1
        save_file(shard, out / f"model-{shards:05}.safetensors")
        shard.clear()
        size = 0

    for number, name in enumerate(weights):
        tensor = torch.from_numpy(weights[name]).bfloat16()
        stored = name if name.startswith("lm_head") else f"model.{name}"
        if size and size + tensor.nbytes > SHARD_BYTES:
            flush()
        shard[stored], size = tensor, size + tensor.nbytes
        places[stored] = f"model-{shards + 1:05}.safetensors"
        progress(number + 1, len(weights))
    flush()
    index = {"metadata": {"total_size": 2 * config.parameters()}, "weight_map": places}
    special = tokenizer.special_tokens
    settings = {
        "bos_token": backend.id_to_token(special.bos), "eos_token": backend.id_to_token(special.eos),
        "chat_template": tokenizer.chat_template,
    }  # fmt: skip
    for file, data in (
        ("model.safetensors.index.json", index),
        ("tokenizer_config.json", settings),
        ("config.json", hugging_face_config(config)),
    ):
        (out / file).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (out / "tokenizer.json").write_text(tokenizer.tokenizer_json, encoding="utf-8")
    return out
