"""The metadata of a GGUF file as a `ModelConfig`; what the decoder cannot compute is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from memory3.config import ModelConfig, RopeScaling
from memory3.errors import CorruptFile, InvalidInput
from memory_model.models.gguf.header import Header

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3")
"""By `general.architecture`; llama.cpp's converter writes Llama, Mistral and SmolLM2 as "llama"."""
INTERLEAVED = ("llama", "smollm3")
"""Those whose query and key rows the converter permutes for interleaved rotary embedding."""
ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3's frequency divisors, one per pair of dimensions."""
_NUMBER = (int, float)
_OTHER_PARTS = ("v.", "a.", "mm.", "resampler.")
"""How the names of a vision or audio part's tensors begin."""
_PLAIN_EVERY = 4
"""Every fourth layer of SmolLM3 has no rotary embedding; not from the file but from llama.cpp's graph."""


def shape_of(header: Header, path: object, name: str, *, tied: bool) -> ModelConfig:
    """The model's shape, with an empty memory budget; raises InvalidInput, CorruptFile."""
    kind = _architecture(header, path)

    def get(key: str, default: Any = None, of: tuple[type, ...] = (int,)) -> Any:
        value = header.fields.get(f"{kind}.{key}", default)
        if value is None:
            raise CorruptFile(f"{path} has no field {kind}.{key}")
        if isinstance(value, list) and value:
            if value.count(value[0]) < len(value):
                raise InvalidInput(f"{path}: {kind}.{key} differs from layer to layer, which is not supported")
            value = value[0]
        if not isinstance(value, of):
            raise CorruptFile(f"{path}: {kind}.{key} is {value!r}, expected {' or '.join(t.__name__ for t in of)}")
        return value

    if get("expert_count", 0):
        raise InvalidInput(f"{path}: a mixture of {get('expert_count')} experts is not supported")
    hidden, heads, layers = get("embedding_length"), get("attention.head_count"), get("block_count")
    head_dim = get("attention.key_length", hidden // heads if heads else 0)
    for key, whole in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        if get(key, whole) != whole:
            raise InvalidInput(
                f"{path}: {kind}.{key} of {get(key)} is not supported, only heads of one size, all rotated"
            )
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise CorruptFile(f"{path} has no weight token_embd.weight")
    tokens = header.fields.get("tokenizer.ggml.tokens", [])
    if isinstance(tokens, list) and len(tokens) > embedding.shape[0]:
        raise InvalidInput(
            f"{path} has {len(tokens):,} tokens, its embedding {embedding.shape[0]:,} rows: another model's tokenizer"
        )
    positions = get("context_length", 0)
    config = ModelConfig(
        name=name,
        layers=layers,
        query_heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_width=get("feed_forward_length"),
        vocabulary=embedding.shape[0],
        rope_base=float(get("rope.freq_base", 10000.0, _NUMBER)),
        norm_epsilon=round(float(get("attention.layer_norm_rms_epsilon", of=_NUMBER)), 9),
        tied_embeddings=tied,
        attention_bias=kind == "qwen2",
        hidden=hidden,
        qk_norm=kind == "qwen3",
        plain_layers=tuple(range(_PLAIN_EVERY - 1, layers, _PLAIN_EVERY)) if kind == "smollm3" else (),
        positions=min(positions, get("attention.sliding_window", positions) or positions),
    )
    return replace(config, rope_scaling=_scaling(header, path, config, get))


def _architecture(header: Header, path: object) -> str:
    """`general.architecture`; raises InvalidInput for one that is not read, or a file that is no language model."""
    kind = header.fields.get("general.architecture")
    purpose = header.fields.get("general.type", "model")
    if kind == "clip" or purpose == "mmproj" or any(name.startswith(_OTHER_PARTS) for name in header.tensors):
        raise InvalidInput(
            f"{path} holds a vision or audio part, which is not read: give the language model's own file"
        )
    if purpose != "model":
        raise InvalidInput(f"{path} is of type {purpose}: give the file of a whole model")
    if kind not in ARCHITECTURES:
        raise InvalidInput(f"{path}: GGUF of architecture {kind} is not supported, only {', '.join(ARCHITECTURES)}")
    return str(kind)


def _scaling(header: Header, path: object, config: ModelConfig, get: Any) -> RopeScaling | None:
    """Rotary scaling, from metadata (linear, also where a factor has no type) or from stored divisors (Llama 3)."""
    kind = get("rope.scaling.type", "linear", (str,))
    factor = float(get("rope.scaling.factor", get("rope.scale_linear", 1.0, _NUMBER), _NUMBER)) or 1.0
    stored = header.tensors.get(ROPE_FACTORS)
    if stored is not None:
        if stored.kind.name != "F32" or stored.shape != (config.head_dim // 2,):
            raise CorruptFile(f"{path}: {ROPE_FACTORS} is not {config.head_dim // 2} numbers of type F32")
        return llama3_scaling(config.frequencies, stored.data.reshape(-1).view("<f4").astype(np.float64))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    return RopeScaling(str(kind), factor)


def llama3_scaling(plain: np.ndarray, divisors: np.ndarray) -> RopeScaling | None:
    """The Llama 3 scaling that divides frequencies [d / 2] by these numbers; None where all are 1.

    Between the two thresholds 1 / divisor is linear in the frequency. With the published thresholds, 1 and 4 turns,
    each such pair of dimensions gives the number of original positions; else two of them give the thresholds, with
    8,192 positions, since only the ratio of both matters. Raises InvalidInput for other divisors.
    """
    if np.allclose(divisors, 1.0):
        return None
    factor = float(divisors.max())
    usual = RopeScaling("llama3", factor)
    tried = [usual]
    between = (divisors > 1.0 + 1e-4) & (divisors < factor * (1 - 1e-4))
    kept = (1 / divisors[between] - 1 / factor) / (1 - 1 / factor)
    cycles = plain[between] / (2 * np.pi)
    if between.any():
        positions = np.median((usual.low + kept * (usual.high - usual.low)) / cycles)
        tried.append(replace(usual, original_positions=round(float(positions))))
    if between.sum() >= 2:
        slope, start = np.polyfit(usual.original_positions * cycles, kept, 1)
        low, high = -start / slope, (1 - start) / slope
        if 0 < low < high:
            tried.append(replace(usual, low=round(float(low), 3), high=round(float(high), 3)))
    for scaling in tried:
        if np.allclose(plain / scaling.stretched(plain), divisors, rtol=1e-3):
            return scaling
    raise InvalidInput(f"the divisors in {ROPE_FACTORS} are not those of Llama 3's scaling, which alone is supported")
