"""A Hugging Face folder with random weights, for shapes whose weights are not published, such as the paper's.

What such a model says means nothing, what it costs is real. It is never in memory whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors.torch import save_file

from memory3.config import ModelConfig, weight_shapes
from memory3.errors import InvalidInput
from memory3.text.tokenizer import Tokenizer
from memory_model.models.folder import Checkpoint, ModelFolder
from memory_model.terminal import console, progress_bar, write_json
from testing.shapes import SHAPES

SHARD_BYTES = 1 << 30


def random_weight(name: str, shape: tuple[int, ...], exponent: float = -0.5) -> np.ndarray:
    """A weight (float32) by its name: normal, deviation inputs ** exponent; norms are ones, biases zeros."""
    if len(shape) == 1:
        return np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
    weight = np.random.default_rng([0, zlib.crc32(name.encode())]).standard_normal(shape, np.float32)
    weight *= np.float32(shape[1] ** exponent)
    return weight


def hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a Llama's or Qwen2's shape, as `memory_model.models.architectures.config_of` reads it."""
    return {
        "model_type": "qwen2" if config.attention_bias else "llama",
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.query_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width,
        "vocab_size": config.vocabulary,
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_embeddings,
        "max_position_embeddings": config.positions or 2048,
        "torch_dtype": "bfloat16",
    }


def write_random_folder(
    config: ModelConfig,
    out: str | Path,
    like: Checkpoint,
    *,
    exponent: float = -0.5,
    progress: Callable[[], None] = lambda: None,
) -> Path:
    """Write the folder in bfloat16, one shard at a time; returns it.

    like: whose tokenizer and chat template it gets. progress: called at each tensor. Raises
    InvalidInput where `out` holds something or the tokenizer has more tokens than the shape.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(f"{out} exists and is not empty: choose another folder")
    backend, special = (Tokenizer.from_json(like.tokenizer_json, like.special_tokens).backend, like.special_tokens)
    if backend.get_vocab_size() > config.vocabulary:
        raise InvalidInput(f"the tokenizer has {backend.get_vocab_size()} tokens, the shape {config.vocabulary}")
    out.mkdir(parents=True, exist_ok=True)
    shapes = weight_shapes(config)
    files: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    for number, (name, shape) in enumerate(shapes.items(), 1):
        stored = name if name.startswith("lm_head") else f"model.{name}"
        shard[stored] = torch.from_numpy(random_weight(name, shape, exponent)).bfloat16()
        if sum(tensor.nbytes for tensor in shard.values()) >= SHARD_BYTES or number == len(shapes):
            file = f"model-{len(set(files.values())) + 1:05}.safetensors"
            save_file(shard, out / file)
            files |= dict.fromkeys(shard, file)
            shard.clear()
        progress()
    ends = {"bos_token": backend.id_to_token(special.bos), "eos_token": backend.id_to_token(special.eos)}
    write_json(out / "model.safetensors.index.json", {"weight_map": files})
    write_json(out / "tokenizer_config.json", ends | {"chat_template": like.chat_template})
    write_json(out / "config.json", hugging_face_config(config))
    (out / "tokenizer.json").write_text(like.tokenizer_json, encoding="utf-8")
    return out


def random_base(
    shape: Annotated[str, typer.Argument(help=f"One of {', '.join(SHAPES)}.")],
    out: Annotated[Path, typer.Option(help="Hugging Face folder to write.")],
    exponent: Annotated[
        float, typer.Option(help="Of a weight's deviation: inputs ** exponent; lower is smaller (paper, 3.5).")
    ] = -0.5,
) -> None:
    """Write a base model with random weights, to measure the cost of a shape; its text is meaningless.

    The output is a Hugging Face folder in bfloat16 with the packaged model's tokenizer, written shard by shard. The
    paper's shape takes 5.6 GB of disk (2.4 B parameters and both token tables) and 3 GB of memory.
    """
    if shape not in SHAPES:
        raise InvalidInput(f"no shape is called {shape!r}: give one of {', '.join(SHAPES)}")
    config = SHAPES[shape]
    with progress_bar(f"random weights of {config.name}", len(weight_shapes(config))) as advance:
        write_random_folder(config, out, ModelFolder.open().checkpoint, exponent=exponent, progress=advance)
    console.print(f"{config.parameters() / 1e9:.2f} B random parameters in [bold]{out}[/bold]")
