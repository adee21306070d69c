"""Low-rank adapter: the small difference between a plain LLM and one that reads memories.

Saved as safetensors, float16, `layers.8.self_attn.q_proj.a` [rank, in] and `.b` [out, rank], with the
memory budget and the base's SHA-256 in the metadata. W' = W + (alpha / rank) b a.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from memory_model.config import MemoryConfig
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.nn.model import Decoder

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a trainable product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        """W x + (alpha / rank) b a x; W x alone while switched off."""
        if not self.enabled:
            return cast(Tensor, self.base(x))
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


@dataclass(frozen=True)
class Adapter:
    """A read adapter: factors by weight name, scale alpha / rank, and what it was made for."""

    factors: dict[str, tuple[Tensor, Tensor]]
    scale: float
    memory: MemoryConfig
    base_sha256: str
    details: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read an adapter file; raises MissingFile or CorruptFile."""
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no adapter at {path}: make one with `memory-model adapt`")
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["memory3"])
                names = sorted({k.rsplit(".", 1)[0] for k in file.keys()})  # noqa: SIM118 - not a mapping
                factors = {
                    n: (file.get_tensor(f"{n}.a").float(), file.get_tensor(f"{n}.b").float()) for n in names
                }
            memory = MemoryConfig.from_dict(header["memory"])
            return cls(factors, float(header["scale"]), memory, str(header["base_sha256"]), header["details"])
        except (SafetensorError, KeyError, ValueError) as error:
            raise CorruptFile(f"{path} is not an adapter file: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the adapter as float16, to a temporary name first."""
        path = Path(path)
        tensors = {}
        for name, (a, b) in self.factors.items():
            tensors[f"{name}.a"], tensors[f"{name}.b"] = a.half().contiguous(), b.half().contiguous()
        header = {
            "scale": self.scale,
            "memory": self.memory.to_dict(),
            "base_sha256": self.base_sha256,
            "details": self.details,
        }
        partial = path.with_name(path.name + ".partial")
        save_file(tensors, partial, metadata={"memory3": json.dumps(header, sort_keys=True)})
        partial.chmod(0o644)  # safetensors makes it readable for its owner only
        partial.replace(path)

    @torch.no_grad()
    def merge(self, model: Decoder) -> None:
        """Add the adapter to a plain model's weights, in float32. Raises InvalidInput where it does not fit."""
        modules = dict(model.named_modules())
        for name, (a, b) in self.factors.items():
            linear = modules.get(name)
            if not isinstance(linear, nn.Linear) or linear.weight.shape != (b.shape[0], a.shape[1]):
                raise InvalidInput(f"the adapter's {name} does not fit this model")
            linear.weight += (b @ a) * self.scale


def attach(model: Decoder, rank: int, alpha: float, first_layer: int) -> list[nn.Parameter]:
    """Put trainable low-rank layers on every projection from `first_layer` up; everything else is frozen.

    Frozen weights are held as bfloat16, the type that tuning computes in. Returns the trainable parameters.
    """
    model.requires_grad_(False)
    model.to(torch.bfloat16)
    for layer in model.blocks[first_layer:]:
        for parent in (layer.self_attn, layer.mlp):
            for name in PROJECTIONS:
                if hasattr(parent, name):
                    setattr(parent, name, LowRankLinear(getattr(parent, name), rank, alpha))
    return [p for p in model.parameters() if p.requires_grad]


@contextmanager
def original(model: Decoder) -> Iterator[None]:
    """The model as it was before tuning, for the time of a `with`: its low-rank layers are switched off."""
    layers = [m for m in model.modules() if isinstance(m, LowRankLinear)]
    for layer in layers:
        layer.enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.enabled = True


def load_factors(model: Decoder, adapter: Adapter) -> None:
    """Continue from an adapter: its factors into the attached layers."""
    for name, (a, b) in adapter.factors.items():
        module = model.get_submodule(name)
        assert isinstance(module, LowRankLinear)
        ratio = adapter.scale / module.scale
        with torch.no_grad():
            module.a.copy_(a)
            module.b.copy_(b * ratio)


def whole(tensor: Tensor) -> Tensor:
    """A tensor on the CPU, without gradient; one that is spread over processes is gathered, so all must ask."""
    plain = tensor.detach()
    gather = getattr(plain, "full_tensor", None)  # only a distributed tensor has it
    return cast(Tensor, gather() if gather else plain).cpu()


def collect(model: Decoder, memory: MemoryConfig, base_sha256: str, details: dict[str, Any]) -> Adapter:
    """The attached layers' factors as an adapter."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LowRankLinear)}
    factors = {n: (whole(m.a).float(), whole(m.b).float()) for n, m in layers.items()}
    return Adapter(factors, next(iter(layers.values())).scale, memory, base_sha256, details)
