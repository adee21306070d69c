"""NVIDIA's parser and builder take the whole exported decoder of every architecture, with the profile we build with.

TensorRT-RTX from PyPI builds for a named GPU without having one. It has no Orin: this proves that the graph is taken
and that its profile is complete, not that a device runs it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_client.decoder.providers import decoder_profile
from experiments.random_base import random_weight
from memory_model.config import ModelConfig, parse_budget, weight_shapes
from memory_model.export.decoder import decoder_graphs
from memory_model.export.weights import Precision
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model
from tests.edge_client.tiny_bundle import tiny_config
from tests.memory_model.models.published import ARCHITECTURES, published

CONTEXT, PARALLEL = 512, 4
QUICK = 0  # the builder's effort: every graph is parsed and compiled, kernels are not searched for
pytestmark = pytest.mark.slow


def build(model: Path, config: ModelConfig) -> int:
    """Bytes of the engine that TensorRT-RTX builds of a file; fails with what it says."""
    trt: Any = importlib.import_module("tensorrt_rtx_bindings")

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(model)), [parser.get_error(i).desc() for i in range(parser.num_errors)]
    settings = builder.create_builder_config()
    settings.builder_optimization_level = QUICK
    settings.num_compute_capabilities = 1
    settings.set_compute_capability(trt.ComputeCapability.SM86, 0)
    profile = builder.create_optimization_profile()
    ranges = decoder_profile(config, CONTEXT, PARALLEL)
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    assert {i.name for i in inputs} == set(ranges)
    for given in inputs:
        if any(n < 0 for n in given.shape):
            profile.set_shape(given.name, *ranges[given.name])
    settings.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, settings)
    assert plan is not None, logger.errors
    return len(bytes(plan))


def exported(weights: dict[str, np.ndarray], config: ModelConfig, precision: str, folder: Path) -> Path:
    path = folder / "decoder.onnx"
    graphs = decoder_graphs(weights, config, Precision.parse(precision), operators=["standard"])
    graphs["standard"].save(path, external=True)
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
    assert build(exported(weights, loaded.config, precision, tmp_path), loaded.config) > 1000


@pytest.mark.parametrize("precision", ["float16", "int8", "int4-64-table-int8", "float16-half"])
def test_the_builder_takes_every_precision_and_heads_of_different_budgets(precision: str, tmp_path: Path) -> None:
    config = tiny_config()
    weights = {name: random_weight(name, shape) for name, shape in weight_shapes(config).items()}
    assert build(exported(weights, config, precision, tmp_path), config) > 1000
