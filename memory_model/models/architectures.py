"""A Hugging Face `config.json` as a `ModelConfig`; whatever the decoder cannot compute is refused by name.

One decoder expresses all of them: Llama 2 and 3.x, SmolLM2 and the paper's own shape (`llama`), Mistral, Qwen2 and
Qwen2.5 (biases), Qwen3 (normed queries and keys), SmolLM3 (layers without rotary embedding).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory3.config import ModelConfig, RopeScaling
from memory3.errors import CorruptFile, InvalidInput

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
_NOT_READ = "gguf, gptq, awq and the like are not read: give the folder of the plain weights"


def config_of(data: Mapping[str, Any], name: str) -> ModelConfig:
    """The shape that a `config.json` describes, with an empty memory budget.

    Raises InvalidInput for what is not supported, CorruptFile where a field is missing or of another type.
    """
    kind = data.get("model_type")
    if kind not in ARCHITECTURES:
        raise InvalidInput(f"architecture {kind!r} is not supported, only {', '.join(ARCHITECTURES)}")
    try:
        _refuse(data)
        hidden, heads = int(data["hidden_size"]), int(data["num_attention_heads"])
        layers = int(data["num_hidden_layers"])
        base, scaling = _rotary(data)
        return ModelConfig(
            name=name,
            layers=layers,
            query_heads=heads,
            kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or hidden // heads),
            mlp_width=int(data["intermediate_size"]),
            vocabulary=int(data["vocab_size"]),
            rope_base=base,
            norm_epsilon=float(data["rms_norm_eps"]),
            tied_embeddings=bool(data.get("tie_word_embeddings", kind == "smollm3")),
            attention_bias=kind == "qwen2",
            hidden=hidden,
            qk_norm=kind == "qwen3",
            plain_layers=_plain_layers(data, layers),
            rope_scaling=scaling,
            positions=_positions(data),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise CorruptFile(f"config.json of {name} lacks a field or has one of another kind: {error!r}") from error


def _refuse(data: Mapping[str, Any]) -> None:
    """Raise InvalidInput for the first thing that the decoder does not compute."""
    kind = data["model_type"]
    if data.get("hidden_act", "silu") != "silu":
        raise InvalidInput(f"activation {data['hidden_act']!r} is not supported, only silu")
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method", "unknown")
        raise InvalidInput(f"the weights are quantised ({method}): {_NOT_READ}")
    for flag in ("mlp_bias", "attention_bias"):
        if data.get(flag) and not (flag == "attention_bias" and kind == "qwen2"):
            raise InvalidInput(f"{flag} of {kind} is not supported: only Qwen2's biases of queries, keys and values")
    if data.get("use_sliding_window"):
        raise InvalidInput("use_sliding_window is not supported: every layer must see the whole text")
    other = set(data.get("layer_types") or ()) - {"full_attention"}
    if other:
        raise InvalidInput(f"layers of type {', '.join(sorted(other))} are not supported, only full_attention")


def _rotary(data: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from whichever of the fields that transformers reads, old or new, has them.

    `rope_scaling`, as people add it for longer texts, goes before `rope_parameters` (since version 5), and what either
    of the two holds before the same field beside them.
    """
    given = {**data, **(data.get("rope_scaling") or data.get("rope_parameters") or {})}
    default = 2000000.0 if data["model_type"] == "smollm3" else 10000.0
    base = float(given.get("rope_theta") or default)
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise InvalidInput("partial_rotary_factor is not supported: the whole head is rotated")
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return base, None
    if kind != "llama3":
        return base, RopeScaling(str(kind), float(given.get("factor") or 1.0))
    # A number beside the scaling goes before one in it, unlike the others.
    original = data.get("original_max_position_embeddings", given.get("original_max_position_embeddings"))
    return base, RopeScaling(
        "llama3",
        float(given["factor"]),
        float(given["low_freq_factor"]),
        float(given["high_freq_factor"]),
        int(data["max_position_embeddings"] if original is None else original),
    )


def _plain_layers(data: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """SmolLM3's layers without rotary embedding: those marked 0, or every n-th."""
    if data["model_type"] != "smollm3":
        return ()
    every = int(data.get("no_rope_layer_interval") or 4)
    marks = data.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    if len(marks) != layers:
        raise InvalidInput(f"no_rope_layers has {len(marks)} marks for {layers} layers")
    return tuple(layer for layer, rotates in enumerate(marks) if not rotates)


def _positions(data: Mapping[str, Any]) -> int:
    """The longest text: all of it is seen in every layer, also within Mistral's window (4,096 where none is named)."""
    positions = int(data.get("max_position_embeddings") or 0)
    window = data.get("sliding_window", 4096) if data["model_type"] == "mistral" else None
    return min(positions, int(window)) if window else positions
