"""Adapter: the low-rank difference between a plain LLM and one that reads memories (LoRA).

Saved as safetensors, float16, with the memory budget and the base's SHA-256 in the metadata:

    layers.8.self_attn.q_proj.a [rank, in] and .b [out, rank]     W' = W + (alpha / rank) b a
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memory3.config import MemoryConfig
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.nn import fused
from memory_model.nn.decoder import Decoder
from memory_model.nn.low_rank import LowRankLinear

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Adapter:
    """What was tuned and what it was made for; factors: (a, b) by module name, scale: alpha / rank."""

    factors: dict[str, tuple[Tensor, Tensor]]
    scale: float
    memory: MemoryConfig
    base_sha256: str
    details: dict[str, Any]

    @property
    def rank(self) -> int:
        """Rank of every factor."""
        return len(next(iter(self.factors.values()))[0])

    @property
    def digest(self) -> str:
        """What runs that continue from it are told from others by."""
        found = sha256(repr(self.scale).encode())
        for name, factors in sorted(self.factors.items()):
            found.update(name.encode())
            for factor in factors:
                found.update(factor.half().contiguous().numpy().data)
        return found.hexdigest()[:16]

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read an adapter file; raises MissingFile or CorruptFile."""
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no adapter at {path}: make one with `memory-model adapt`")
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["memory3"])
                tensors = {k: file.get_tensor(k).float() for k in file.keys()}  # noqa: SIM118 - not a mapping
            names = sorted(name.removesuffix(".a") for name in tensors if name.endswith(".a"))
            if not names:
                raise KeyError("it has no low-rank factors")
            factors = {name: (tensors[f"{name}.a"], tensors[f"{name}.b"]) for name in names}
            for name, (a, b) in factors.items():
                if a.ndim != 2 or b.ndim != 2 or b.shape[1] != len(a):
                    raise ValueError(f"factors of {name} have shapes {list(a.shape)} and {list(b.shape)}")
            memory = MemoryConfig.from_dict(header["memory"])
            return cls(factors, float(header["scale"]), memory, str(header["base_sha256"]), header["details"])
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise CorruptFile(f"{path} is not an adapter file: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the adapter as float16, to a temporary name first."""
        path = Path(path)
        tensors = {}
        for name, (a, b) in self.factors.items():
            tensors[f"{name}.a"], tensors[f"{name}.b"] = a.half().contiguous(), b.half().contiguous()
        header = {n: x for n, x in vars(self).items() if n != "factors"} | {"memory": self.memory.to_dict()}
        partial = path.with_name(path.name + ".partial")
        save_file(tensors, partial, metadata={"memory3": json.dumps(header, sort_keys=True)})
        partial.chmod(0o644)  # safetensors makes it readable for its owner only
        partial.replace(path)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shape of each weight that something is added to, by parameter name."""
        return {f"{name}.weight": (len(b), a.shape[1]) for name, (a, b) in self.factors.items()}

    def added_to(self, weight: str) -> Tensor:
        """What is added to one weight, float32, by its parameter name."""
        a, b = self.factors[weight.removesuffix(".weight")]
        return (b @ a) * self.scale

    def added(self) -> dict[str, Tensor]:
        """What is added to each weight, float32, by parameter name."""
        return {name: self.added_to(name) for name in self.shapes}


def attach(model: Decoder, rank: int, alpha: float, first_layer: int, device: str = "cpu") -> list[nn.Parameter]:
    """Put trainable low-rank layers on every projection from `first_layer` up; everything else is frozen.

    Frozen weights are held in the type that tuning computes in on the device. Returns the trainable parameters.
    """
    model.requires_grad_(False)
    model.to(fused.product_type(device))
    for layer in model.blocks[first_layer:]:
        for parent in (layer.self_attn, layer.mlp):
            for name in PROJECTIONS:
                if hasattr(parent, name):
                    setattr(parent, name, LowRankLinear(getattr(parent, name), rank, alpha))
    return [p for p in model.parameters() if p.requires_grad]


@contextmanager
def original(model: Decoder) -> Iterator[None]:
    """The model as it was before tuning, for the time of a `with`: its low-rank layers are switched off."""
    parts = [m for m in model.modules() if isinstance(m, LowRankLinear)]
    for part in parts:
        part.enabled = False
    try:
        yield
    finally:
        for part in parts:
            part.enabled = True


@contextmanager
def at_start(model: Decoder) -> Iterator[None]:
    """The model with the adapter that `load_start` gave it, for the time of a `with`."""

    def swap() -> None:
        for part in (m for m in model.modules() if isinstance(m, LowRankLinear)):
            for n, factor in enumerate((part.a, part.b)):
                factor.data, part.start[n] = part.start[n].to(factor.device), factor.data

    swap()
    try:
        yield
    finally:
        swap()


@torch.no_grad()
def load_start(model: Decoder, adapter: Adapter) -> None:
    """Continue from an adapter: its values into what was attached, and kept for `at_start`.

    Raises InvalidInput where a layer is not tuned now that was tuned then, and for another rank.
    """
    modules = dict(model.named_modules())
    for name, (a, b) in adapter.factors.items():
        module = modules.get(name)
        if not isinstance(module, LowRankLinear):
            raise InvalidInput(f"the adapter to continue from tunes {name}: begin at a lower --first-layer")
        if module.a.shape != a.shape:
            raise InvalidInput(f"the adapter to continue from has rank {len(a)}: give --rank {len(a)}")
        module.a.copy_(a)
        module.b.copy_(b * (adapter.scale / module.scale))
        module.start = [module.a.detach().clone(), module.b.detach().clone()]


def collect(model: Decoder, memory: MemoryConfig, base_sha256: str, details: dict[str, Any]) -> Adapter:
    """What was attached, as an adapter of float32 tensors on the CPU."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LowRankLinear)}
    factors = {n: (m.a.detach().cpu().float().clone(), m.b.detach().cpu().float().clone()) for n, m in layers.items()}
    scale = next((m.scale for m in layers.values()), 1.0)
    return Adapter(factors, scale, memory, base_sha256, details)


def checkpoint_layers(model: Decoder) -> None:
    """Keep only the inputs of every attention and MLP for the backward pass, and compute the rest again there.

    Takes a third more time, and memory for two hidden states a layer.
    """
    for layer in model.blocks:
        for part in (layer.self_attn, layer.mlp):
            part.forward = partial(_recomputed, part.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
