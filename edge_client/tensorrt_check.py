"""Does an engine compute what the CPU computes? Asked after every build, before an engine is kept.

The CPU computes with the same weights in float32 (no int8 activations), so what may differ is rounding of
the engine's own types. Random inputs are enough: a miscompiled kernel is wrong everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from edge_client.errors import EngineMismatch
from edge_client.tensorrt_profiles import GraphInput, Profile

TOLERANCE = 0.03
"""Largest relative error (Frobenius norm) of an output: half precision of some hundred layers gives 0.01."""
SEED = 7


class Runs(Protocol):
    """Anything that computes a graph's outputs from its inputs."""

    def run(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """All outputs by name."""


@dataclass(frozen=True)
class Comparison:
    """One profile's result. error: the worst output's relative error; same_choice: share of rows of the
    first output whose largest entry is at the same place (the greedy token, for a decoder).
    """  # noqa: D205

    profile: str
    output: str
    error: float
    same_choice: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


class CpuRun:
    """The graph on ONNX Runtime's CPU provider, matrix products in the weights' full precision."""

    def __init__(self, path: str | Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [GraphInput(i.name, tuple(i.shape)) for i in self._session.get_inputs()]
        self.types = {i.name: str(i.type) for i in self._session.get_inputs()}
        self.outputs = [o.name for o in self._session.get_outputs()]
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name."""
        return dict(zip(self.outputs, self._session.run(self.outputs, dict(feeds)), strict=True))


DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
          "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}  # fmt: skip


def random_feeds(cpu: CpuRun, profile: Profile, vocabulary: int = 2) -> dict[str, np.ndarray]:
    """Inputs in the profile's typical shapes: small random numbers, valid ids, rows and positions.

    Masks let everything be seen; integers are 0 … length - 1 unless they are token ids.
    """
    rng = np.random.default_rng(SEED)
    feeds: dict[str, np.ndarray] = {}
    for given in cpu.inputs:
        shape = profile.shapes[given.name][1] if given.dynamic else tuple(map(int, given.shape))
        dtype = DTYPES[cpu.types[given.name]]
        if "mask" in given.name:
            feeds[given.name] = np.full(shape, 1 if np.issubdtype(dtype, np.integer) else 0, dtype)
        elif given.name in ("token_ids", "input_ids"):
            feeds[given.name] = rng.integers(0, vocabulary, shape).astype(dtype)
        elif dtype is np.uint8:
            feeds[given.name] = rng.integers(0, 256, shape).astype(dtype)
        elif np.issubdtype(dtype, np.integer):
            feeds[given.name] = np.resize(np.arange(shape[0] if shape else 1), shape).astype(dtype)
        else:
            feeds[given.name] = (0.5 * rng.standard_normal(shape)).astype(dtype)
    return feeds


def compare(name: str, found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> Comparison:
    """How far `found` is from `wanted`, by the worst output; NaN and infinity count as infinitely far."""
    worst, error = "", -1.0
    for output, right in wanted.items():
        left = np.asarray(found[output], np.float64)
        scale = float(np.linalg.norm(np.asarray(right, np.float64))) or 1.0
        distance = float(np.linalg.norm(left - right)) / scale if np.isfinite(left).all() else float("inf")
        if distance > error:
            worst, error = output, distance
    first = next(iter(wanted))
    same = np.asarray(found[first]).argmax(-1) == np.asarray(wanted[first]).argmax(-1)
    return Comparison(name, worst, error, float(np.mean(same)))


def check_engine(
    engine: Runs, cpu: CpuRun, profiles: Sequence[Profile], vocabulary: int = 2, *, what: str = "the engine"
) -> list[Comparison]:
    """Compare an engine with the CPU in every profile; raises EngineMismatch beyond the tolerance."""
    results = []
    for profile in profiles:
        feeds = random_feeds(cpu, profile, vocabulary)
        wanted = cpu.run({name: array.copy() for name, array in feeds.items()})
        result = compare(profile.name, engine.run(feeds), wanted)
        results.append(result)
        if not result.error <= TOLERANCE:
            raise EngineMismatch(
                f"{what} differs from the CPU by {result.error:.3g} in {result.output} (profile {profile.name}, "
                f"allowed {TOLERANCE}): it is not kept. Use --provider cuda or cpu, and report the release"
            )
    return results
