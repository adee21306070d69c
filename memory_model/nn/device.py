"""Where memories are written and with how many tokens at a time: a processor, or a GPU by the memory it has free."""

from __future__ import annotations

import torch

from memory_model.config import ModelConfig
from memory_model.errors import InvalidInput
from memory_model.nn.writing import BATCH_TOKENS

_SHARE_OF_FREE = 0.5
_MOST_TOKENS = 1 << 16  # 512 references: a GPU is busy long before that, and what comes back must fit here
_FLOAT_BYTES = 4


def writing_device(name: str) -> torch.device:
    """`auto`: the GPU where torch sees one, the processor otherwise; or one by torch's name, such as `cuda:1`.

    Raises InvalidInput for a name that is none, or a GPU that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidInput(f"{name!r} is no device: give auto, cpu, cuda or cuda:<number>") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput(
            f"torch sees {torch.cuda.device_count()} GPUs, not {name}: install its build for CUDA, or write on cpu"
        )
    return device


def fitting_batch_tokens(config: ModelConfig, device: torch.device) -> int:
    """Tokens of one forward pass that the device has room for; the model is on it already."""
    if device.type != "cuda":
        return BATCH_TOKENS
    free_bytes, _ = torch.cuda.mem_get_info(device)
    fitting = int(_SHARE_OF_FREE * free_bytes) // working_bytes_per_token(config)
    return max(BATCH_TOKENS, min(fitting, _MOST_TOKENS))


def working_bytes_per_token(config: ModelConfig) -> int:
    """Largest working memory of a pass for each of its tokens, float32: one layer, and what the memory keeps.

    The widest moments of a layer are the MLP (gate, up, their product) and the selection of tokens (scores of
    every query head of the memory heads over a reference, and their softmax).
    """
    memory = config.memory
    residual = 4 * config.hidden + 2 * config.hidden + 4 * config.kv_heads * config.head_dim
    heads = max((len(memory.heads_of(layer)) for layer in memory.memory_layers), default=0)
    selection = 3 * heads * config.group * memory.reference_tokens
    kept = 2 * memory.budget * config.head_dim // memory.reference_tokens
    return _FLOAT_BYTES * (residual + max(3 * config.mlp_width, selection) + kept)
