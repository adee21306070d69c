"""A tiny model with an adapter, and the gradients of its parameters."""

import torch

from memory_model.nn.adapter import attach
from memory_model.nn.decoder import Decoder
from tests.edge_client.tiny_bundle import tiny_loaded


def tuned() -> tuple[Decoder, list[torch.nn.Parameter]]:
    """A tiny model whose adapter already does something."""
    model = tiny_loaded().model
    parameters = attach(model, 4, 4.0, 1)
    torch.manual_seed(3)
    for parameter in parameters:
        parameter.data.normal_(0, 0.2)
    return model, parameters


def gradients(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
