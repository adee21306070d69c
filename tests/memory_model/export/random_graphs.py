"""Exported decoders of random models, with memory budgets of several shapes."""

from pathlib import Path

import numpy as np

from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import open_decoder
from edge_client.decoder.sequence import Sequence
from memory3.codec.payload import ExplicitMemory
from memory3.config import MemoryConfig, MemoryHead, ModelConfig
from memory_model.export.decoder import decoder_graphs
from memory_model.models.engine import TorchBackend
from memory_model.nn.decoder import Decoder
from tests.edge_client.tiny_bundle import random_memory
from tests.memory_model.tiny import tiny_config

BUDGETS = {
    "one head": ((1, 1, 128),),
    "whole layers": tuple((layer, head, 8) for layer in (0, 1) for head in range(3)),
    "unequal heads": ((0, 2, 20), (1, 0, 5), (1, 2, 64), (2, 1, 20)),
}
PREFIX, WINDOW = 3, 128


def config_of(budget: str = "one head", **changes: object) -> ModelConfig:
    memory = MemoryConfig(tuple(MemoryHead(*row) for row in BUDGETS.get(budget, ())))
    return tiny_config(head_dim=32, mlp_width=96, vocabulary=200, memory=memory, **changes)


def weights_of(model: Decoder) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def opened(path: Path, prefix: list[int]) -> BatchingDecoder:
    return BatchingDecoder(open_decoder(path, threads=1, provider="cpu"), prefix, context=300, parallel=1)


def exported(
    model: Decoder, folder: Path, precision: str = "float32", variant: str = "fused", prefix: tuple[int, ...] = ()
) -> Sequence:
    path, prefix = folder / "decoder.onnx", prefix or tuple(range(PREFIX))
    if variant == "torch":
        return BatchingDecoder(TorchBackend(model), prefix, context=300, parallel=1).sequence()
    decoder_graphs(weights_of(model), model.config, precision, operators=[variant])[variant].save(path)
    return opened(path, list(prefix)).sequence()


def memories(config: ModelConfig, count: int, seed: int) -> list[ExplicitMemory]:
    return [random_memory(config, seed * 100 + n) for n in range(count)] if config.memory.heads else []
