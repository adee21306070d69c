"""Adapter: the difference between a plain LLM and one that reads memories, low-rank or of whole weights.

Saved as safetensors, float16, with the memory budget and the base's SHA-256 in the metadata:

    low-rank   layers.8.self_attn.q_proj.a [rank, in] and .b [out, rank]   W' = W + (alpha / rank) b a
    full       layers.8.self_attn.q_proj.weight.delta, as W                W' = W + delta
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from memory_model.config import MemoryConfig
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.nn.decoder import Decoder

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


class FullDelta(nn.Module):
    """A trainable float32 difference to a frozen weight: the parametrization of a weight that is tuned whole."""

    def __init__(self, base: Tensor) -> None:
        super().__init__()
        self.delta = nn.Parameter(torch.zeros_like(base, dtype=torch.float32))
        self.enabled = True

    def forward(self, base: Tensor) -> Tensor:
        """The tuned weight, float32; the frozen one while switched off."""
        return base + self.delta if self.enabled else base


@dataclass(frozen=True)
class Adapter:
    """What was tuned and what it was made for.

    factors: (a, b) by module name, with the scale alpha / rank; deltas: by parameter name (full tuning).
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    scale: float
    memory: MemoryConfig
    base_sha256: str
    details: dict[str, Any]
    deltas: dict[str, Tensor] = field(default_factory=dict)

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
            factors = {n: (tensors[f"{n}.a"], tensors[f"{n}.b"]) for n in _named(tensors, ".a")}
            deltas = {n: tensors[f"{n}.delta"] for n in _named(tensors, ".delta")}
            memory = MemoryConfig.from_dict(header["memory"])
            return cls(
                factors, float(header["scale"]), memory, str(header["base_sha256"]), header["details"], deltas
            )
        except (SafetensorError, KeyError, ValueError) as error:
            raise CorruptFile(f"{path} is not an adapter file: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the adapter as float16, to a temporary name first."""
        path = Path(path)
        tensors = {f"{name}.delta": delta.half().contiguous() for name, delta in self.deltas.items()}
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

    @classmethod
    def mean(cls, adapters: Sequence[Adapter]) -> Adapter:
        """Every number the mean of the adapters': of checkpoints of one run this is often better than each of them.

        It means something only where one was tuned from the other, or both from a third. Raises InvalidInput for
        adapters of other bases, budgets or shapes.
        """
        first = adapters[0]
        if any(other._form() != first._form() for other in adapters):
            raise InvalidInput(
                "adapters of different bases, memory budgets, layers, ranks or scales have no mean"
            )
        factors = {
            name: tuple(torch.stack([one.factors[name][side] for one in adapters]).mean(0) for side in (0, 1))
            for name in first.factors
        }
        deltas = {name: torch.stack([one.deltas[name] for one in adapters]).mean(0) for name in first.deltas}
        details = {"mean_of": [one.details for one in adapters]}
        return cls(
            cast(dict[str, tuple[Tensor, Tensor]], factors), first.scale, first.memory, first.base_sha256, details,
            deltas,
        )  # fmt: skip

    def _form(self) -> tuple[Any, ...]:
        """What adapters must have in common to be put together."""
        factors = {name: (a.shape, b.shape) for name, (a, b) in self.factors.items()}
        return (
            self.base_sha256,
            self.memory,
            self.scale,
            factors,
            {n: d.shape for n, d in self.deltas.items()},
        )

    @torch.no_grad()
    def merge(self, model: Decoder) -> None:
        """Add the adapter to a plain model's weights, in float32. Raises InvalidInput where it does not fit."""
        weights = dict(model.named_parameters())
        for name, added in self.added().items():
            weight = weights.get(name)
            if weight is None or weight.shape != added.shape:
                raise InvalidInput(f"the adapter's {name.removesuffix('.weight')} does not fit this model")
            weight.add_(added)

    def added(self) -> dict[str, Tensor]:
        """What is added to each weight, float32, by parameter name."""
        low_rank = {f"{name}.weight": (b @ a) * self.scale for name, (a, b) in self.factors.items()}
        return {**low_rank, **self.deltas}


def _named(tensors: dict[str, Tensor], ending: str) -> list[str]:
    return sorted(name.removesuffix(ending) for name in tensors if name.endswith(ending))


def attach(model: Decoder, rank: int, alpha: float, first_layer: int) -> list[nn.Parameter]:
    """Put trainable low-rank layers on every projection from `first_layer` up; everything else is frozen.

    Frozen weights are held as bfloat16, the type that tuning computes in. Returns the trainable parameters.
    """
    _freeze(model)
    for layer in model.blocks[first_layer:]:
        for parent in (layer.self_attn, layer.mlp):
            for name in PROJECTIONS:
                if hasattr(parent, name):
                    setattr(parent, name, LowRankLinear(getattr(parent, name), rank, alpha))
    return _trainable(model)


def attach_full(model: Decoder, first_layer: int) -> list[nn.Parameter]:
    """Make every weight from `first_layer` up trainable, as a difference to what it was.

    The last norm is among them, and where `first_layer` is 0 the embedding and the head. Returns the trainable
    parameters. Frozen weights are held as bfloat16 beside them, so that the original model can still be asked.
    """
    _freeze(model)
    parts: list[nn.Module] = [*model.blocks[first_layer:], model.norm]
    if first_layer == 0:
        parts.append(model.embed_tokens)
        if model.lm_head is not None:
            parts.append(model.lm_head)
    for module in [m for part in parts for m in part.modules()]:
        for name, weight in list(module.named_parameters(recurse=False)):
            # unsafe: the delta is float32 beside a bfloat16 weight, and the sum takes float32
            parametrize.register_parametrization(module, name, FullDelta(weight), unsafe=True)
    return _trainable(model)


def _freeze(model: Decoder) -> None:
    model.requires_grad_(False)
    model.to(torch.bfloat16)


def _trainable(model: Decoder) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@contextmanager
def original(model: Decoder) -> Iterator[None]:
    """The model as it was before tuning, for the time of a `with`: what is trainable is switched off."""
    parts = [m for m in model.modules() if isinstance(m, (LowRankLinear, FullDelta))]
    for part in parts:
        part.enabled = False
    try:
        yield
    finally:
        for part in parts:
            part.enabled = True


@torch.no_grad()
def load_start(model: Decoder, adapter: Adapter) -> None:
    """Continue from an adapter: its values into what was attached.

    A low-rank adapter may be continued by full tuning. Raises InvalidInput for the other way round, and where
    a layer is not tuned now that was tuned then.
    """
    whole_weights = full_deltas(model)
    if whole_weights:
        for name, added in adapter.added().items():
            if name not in whole_weights:
                raise InvalidInput(
                    f"the adapter to continue from tunes {name}: begin at a lower --first-layer"
                )
            whole_weights[name].delta.copy_(added)
        return
    if adapter.deltas:
        raise InvalidInput("the adapter to continue from is one of whole weights: tune with --full too")
    modules = dict(model.named_modules())
    for name, (a, b) in adapter.factors.items():
        module = modules.get(name)
        if not isinstance(module, LowRankLinear):
            raise InvalidInput(f"the adapter to continue from tunes {name}: begin at a lower --first-layer")
        if module.a.shape != a.shape:
            raise InvalidInput(f"the adapter to continue from has rank {len(a)}: give --rank {len(a)}")
        module.a.copy_(a)
        module.b.copy_(b * (adapter.scale / module.scale))


def full_deltas(model: Decoder) -> dict[str, FullDelta]:
    """What `attach_full` made trainable, by the name of the parameter that it changes."""
    marks = {n: m for n, m in model.named_modules() if isinstance(m, FullDelta)}
    return {name.replace(".parametrizations.", ".").rpartition(".")[0]: m for name, m in marks.items()}


def whole(tensor: Tensor) -> Tensor:
    """A tensor on the CPU, without gradient; one that is spread over processes is gathered, so all must ask."""
    plain = tensor.detach()
    gather = getattr(plain, "full_tensor", None)  # only a distributed tensor has it
    return cast(Tensor, gather() if gather else plain).cpu()


def collect(model: Decoder, memory: MemoryConfig, base_sha256: str, details: dict[str, Any]) -> Adapter:
    """What was attached, as an adapter."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LowRankLinear)}
    factors = {n: (whole(m.a).float(), whole(m.b).float()) for n, m in layers.items()}
    deltas = {n: whole(m.delta).float() for n, m in full_deltas(model).items()}
    scale = next((m.scale for m in layers.values()), 1.0)
    return Adapter(factors, scale, memory, base_sha256, details, deltas)
