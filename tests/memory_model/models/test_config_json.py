"""The config.json of a base: a shape with its rotary embedding, or refused by the name of what is not supported."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import transformers as tf
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from experiments.training.random_base import hugging_face_config
from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory_model.models.architectures import config_of
from testing.shapes import SHAPES


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_the_config_json_of_random_weights_says_their_shape(shape: ModelConfig) -> None:
    read = config_of(hugging_face_config(shape), shape.name)
    assert read.with_memory(shape.memory) == replace(shape, positions=shape.positions or 2048)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "evenly"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        config_of({**LLAMA, **changes}, "x")


BLENDED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "rotary",
    [
        {},
        {"rope_theta": 500000.0},
        {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 500000.0}},
        {"rope_parameters": {"rope_theta": 500000.0}, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 500000.0, "rope_scaling": BLENDED},
        {"rope_parameters": BLENDED | {"original_max_position_embeddings": 32}},
        {"rope_parameters": BLENDED, "original_max_position_embeddings": 64},
    ],
)
@pytest.mark.parametrize("kind", [tf.LlamaConfig, tf.SmolLM3Config])
def test_rotary_embedding_is_what_transformers_reads_wherever_it_is_written(
    kind: type[tf.PretrainedConfig], rotary: dict[str, Any]
) -> None:
    data = {**LLAMA, "model_type": kind.model_type, "max_position_embeddings": 128, **deepcopy(rotary)}
    theirs = LlamaRotaryEmbedding(kind.from_dict(deepcopy(data)))
    np.testing.assert_allclose(config_of(data, "x").frequencies, theirs.inv_freq.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("window", "longest"), [({"sliding_window": 2048}, 2048), ({"sliding_window": None}, 32768), ({}, 4096)]
)
def test_a_sliding_window_bounds_the_longest_text(window: dict[str, Any], longest: int) -> None:
    data = {**LLAMA, "model_type": "mistral", "max_position_embeddings": 32768, **window}
    assert config_of(data, "x").positions == longest
