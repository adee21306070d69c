"""NVIDIA's parser and builder take the whole exported decoder of every architecture, with the profile we build with.

TensorRT-RTX from PyPI builds for a named GPU without having one. It has no Orin: this proves that the graph is taken
and that its profile is complete, not that a device runs it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from deploy.tensorrt_engine import build_engine
from experiments.training.random_base import random_weight
from memory3.config import ModelConfig, parse_budget, weight_shapes
from memory_model.export.decoder import decoder_graphs
from memory_model.export.weights import Precision
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model
from tests.edge_client.tiny_bundle import tiny_config
from tests.memory_model.models.published import ARCHITECTURES, published

pytestmark = pytest.mark.slow


def built(decoder: Path, config: ModelConfig) -> int:
    """Bytes of the engine."""
    return len(build_engine(decoder, config, context=512, parallel=4)[0])


def exported(weights: dict[str, np.ndarray], config: ModelConfig, precision: str, folder: Path) -> Path:
    path = folder / "decoder.onnx"
    graphs = decoder_graphs(weights, config, Precision.parse(precision), operators=["standard"])
    graphs["standard"].save(path)
    return path


@pytest.mark.parametrize("precision", ["float32", "int4", "int4-half"])
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_the_builder_takes_the_decoder_of_every_architecture(architecture: str, precision: str, tmp_path: Path) -> None:
    # TensorRT takes whole blocks of int4 weights only, which the real shape has too.
    whole = {"num_attention_heads": 4, "hidden_size": 320} if architecture == "memory3-2b" else {}
    published(tmp_path / "base", architecture, **whole)
    made = ModelFolder.create(
        tmp_path / "base", tmp_path / "model", memory=lambda config: parse_budget("all", config, 32)
    )
    loaded = load_model(made)
    with torch.inference_mode():
        weights = {name: tensor.numpy() for name, tensor in loaded.model.state_dict().items()}
    assert built(exported(weights, loaded.config, precision, tmp_path), loaded.config) > 1000


@pytest.mark.parametrize("precision", ["float16", "int8", "int4-64-table-int8", "float16-half"])
def test_the_builder_takes_every_precision_and_heads_of_different_budgets(precision: str, tmp_path: Path) -> None:
    config = tiny_config()
    weights = {name: random_weight(name, shape) for name, shape in weight_shapes(config).items()}
    assert built(exported(weights, config, precision, tmp_path), config) > 1000
