"""`edge-client build --tensorrt`: a bundle's graphs into engines, each checked against the CPU, then kept.

operators known? -> parse and build -> same results as the CPU? -> kept in the cache
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_client.cuda_memory import CudaMemory
from edge_client.errors import EngineMismatch
from edge_client.onnx_nodes import read_nodes
from edge_client.tensorrt_api import Progress, TensorRt, build_engine, load_tensorrt
from edge_client.tensorrt_cache import EngineCache
from edge_client.tensorrt_check import Comparison, CpuRun, Runs, check_engine
from edge_client.tensorrt_operators import JETSON_RELEASES, Finding, check_graph
from edge_client.tensorrt_profiles import (
    GraphInput,
    Profile,
    decoder_profiles,
    embedder_profile,
)
from edge_client.tensorrt_run import EngineRun
from memory_model.bundle import Bundle
from memory_model.config import ModelConfig
from memory_model.embedder import CONFIG, MODEL, EmbedderConfig

GRAPHS = ("decoder.onnx", "embedder.onnx")
Opening = Callable[[TensorRt, bytes, tuple[Profile, ...]], Runs]
"""Makes a built engine runnable on this machine."""


@dataclass(frozen=True)
class Outcome:
    """What became of one graph. checks: empty where the engine could not be run, being for another GPU."""

    graph: str
    place: Path
    seconds: float
    megabytes: float
    layers: int
    cautions: tuple[Finding, ...]
    checks: tuple[Comparison, ...]
    was_there: bool = False


def graph_profiles(
    name: str, config: ModelConfig, capacity: int, max_tokens: int, inputs: list[GraphInput]
) -> tuple[Profile, ...]:
    """The profiles of one of a bundle's graphs."""
    if name == "decoder.onnx":
        return decoder_profiles(config, capacity, inputs)
    return (embedder_profile(max_tokens, inputs),)


def build_bundle(
    bundle: Bundle,
    *,
    api: TensorRt | None = None,
    root: Path | None = None,
    target: str = "",
    progress: Progress | None = None,
    again: bool = False,
) -> Iterator[Outcome]:
    """Build and check every graph of a bundle but an int8 embedder's, one after the other.

    api: by default the one that is installed. root: of the cache. target: "SM86" and the like, for an API
    that builds for another machine; such engines are built and not checked. again: also what is there.
    Raises GraphUnsupported, EngineNotBuilt, EngineMismatch, ProviderError; what was kept before stays.
    """
    api = api or load_tensorrt()
    architecture = (target or "SM86").removeprefix("SM") if api.cross else CudaMemory().architecture
    opening: Opening | None = None if api.cross else _open
    embedder = EmbedderConfig.read(bundle.folder / CONFIG)
    for name in GRAPHS:
        path = bundle.folder / name
        if name == MODEL and embedder.precision == "int8":
            continue  # its operators are a processor's, where it runs
        if path.is_file():
            yield build_graph(
                path, bundle, api, architecture, root=root, progress=progress, again=again, opening=opening
            )


def build_graph(
    path: Path,
    bundle: Bundle,
    api: TensorRt,
    architecture: str,
    *,
    root: Path | None = None,
    progress: Progress | None = None,
    again: bool = False,
    opening: Opening | None = None,
) -> Outcome:
    """One graph; see `build_bundle`. opening: how the engine is run for the check, None leaves it out."""
    cautions = [f for release in releases(api) for f in check_graph(path, release)]
    inputs = [GraphInput(name, shape) for name, shape in read_nodes(path).inputs.items()]
    config = bundle.config
    embedder_tokens = json.loads((bundle.folder / "embedder.json").read_text(encoding="utf-8"))["max_tokens"]
    profiles = graph_profiles(path.name, config, bundle.manifest.capacity, embedder_tokens, inputs)
    cache = EngineCache.of(path, profiles, version=api.version, architecture=architecture, root=root)
    if cache.plan.is_file() and not again:
        megabytes = cache.plan.stat().st_size / 1e6
        return Outcome(path.name, cache.plan, 0.0, megabytes, 0, tuple(cautions), (), was_there=True)
    built = build_engine(
        api, path, profiles, timing=cache.timing(), keep_timing=cache.keep_timing, progress=progress,
        target=f"SM{architecture}" if api.cross else "",
    )  # fmt: skip
    checks: list[Comparison] = []
    if opening is not None:
        try:
            engine = opening(api, built.plan, profiles)
            checks = check_engine(
                engine, CpuRun(path), profiles, config.vocabulary, what=f"the engine of {path.name}"
            )
        except EngineMismatch:
            cache.refuse()
            raise
    cache.keep(built.plan, {"checks": [c.to_dict() for c in checks], "tensorrt": api.version})
    return Outcome(
        path.name, cache.plan, built.seconds, len(built.plan) / 1e6, built.layers, tuple(cautions), tuple(checks)
    )  # fmt: skip


def releases(api: TensorRt) -> tuple[str, ...]:
    """The releases whose operators a graph needs: this one, or those of the Jetsons when it builds for others."""
    return JETSON_RELEASES if api.cross else (".".join(api.version.split(".")[:2]),)


def _open(api: TensorRt, plan: bytes, profiles: tuple[Profile, ...]) -> Runs:
    return EngineRun(api, plan, profiles)
