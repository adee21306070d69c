"""Build an engine of a bundle's whole decoder with TensorRT-RTX, whose builder needs no GPU.

This proves that NVIDIA's parser and builder take the graph with the profile that devices use, not that a GPU runs it.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from edge_client.decoder.providers.tensorrt import decoder_profile
from memory3.config import ModelConfig
from memory3.files.bundle import Bundle

QUICK = 0
"""The builder's effort: every graph is parsed and compiled, kernels are not searched for."""


class BuildFailed(Exception):
    """The parser or the builder refused the graph; the message is theirs."""


def build_engine(decoder: Path, config: ModelConfig, *, context: int, parallel: int) -> tuple[memoryview, int]:
    """(engine for SM 8.6, number of the network's layers) of `decoder.onnx` and its weights; raises BuildFailed."""
    trt: Any = importlib.import_module("tensorrt_rtx_bindings")

    class Logger(trt.ILogger):
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
    if not parser.parse_from_file(str(decoder)):
        raise BuildFailed("; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
    settings = builder.create_builder_config()
    settings.builder_optimization_level = QUICK
    settings.num_compute_capabilities = 1
    settings.set_compute_capability(trt.ComputeCapability.SM86, 0)
    ranges = decoder_profile(config, context, parallel)
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    if {given.name for given in inputs} != set(ranges):
        raise BuildFailed(f"the profile has no range for each input, or too many: {[given.name for given in inputs]}")
    profile = builder.create_optimization_profile()
    for given in inputs:
        if any(n < 0 for n in given.shape):
            profile.set_shape(given.name, *ranges[given.name])
    settings.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, settings)
    if engine is None:
        raise BuildFailed("; ".join(logger.errors))
    return memoryview(engine), network.num_layers


def main() -> None:
    """Build the engine of a bundle's decoder and write it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--out", type=Path, required=True, help="file of the engine")
    options = arguments.parse_args()
    bundle = Bundle.open(options.bundle)
    engine, layers = build_engine(bundle.decoder, bundle.config, context=2048, parallel=1)
    options.out.write_bytes(engine)
    print(f"all {bundle.config.layers} layers of the decoder, {layers:,} of TensorRT's")


if __name__ == "__main__":
    main()
