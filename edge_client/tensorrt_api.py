"""TensorRT's Python API: found, loaded and reduced to what a build needs.

NVIDIA ships one API under two names: `tensorrt` (JetPack brings it; engines for the GPU at hand) and
`tensorrt_rtx_bindings` (from PyPI, builds for a named GPU without having one). What is built here with the
second goes through the same lines as on a Jetson with the first.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_client.errors import EngineNotBuilt, TensorRtMissing
from edge_client.tensorrt_profiles import Profile

MODULES = ("tensorrt", "tensorrt_rtx_bindings")
WORKSPACE_BYTES = 1 << 30
"""Scratch memory that a kernel may ask for; a Jetson shares its memory with the weights."""

Progress = Callable[[str, int, int], None]
"""Called with (phase, steps done, steps in all)."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorRt:
    """The loaded module. `cross`: it builds for a GPU that is named, not for the one at hand."""

    module: Any
    name: str

    @property
    def version(self) -> str:
        """Such as 10.3.0."""
        return str(self.module.__version__)

    @property
    def cross(self) -> bool:
        """Whether the target GPU must be named."""
        return self.name != "tensorrt"


@dataclass(frozen=True)
class Built:
    """An engine, serialized."""

    plan: bytes
    layers: int
    seconds: float


def load_tensorrt(names: Sequence[str] = MODULES) -> TensorRt:
    """The first of these modules that loads; raises TensorRtMissing, which says how to get it."""
    reasons = []
    for name in names:
        try:
            return TensorRt(importlib.import_module(name), name)
        except (ImportError, OSError) as error:  # OSError: the libraries behind the bindings
            reasons.append(f"{name}: {error}")
    raise TensorRtMissing(
        "TensorRT's Python API is not here: on a Jetson `sudo apt install python3-libnvinfer` and a virtual "
        f"environment made with --system-site-packages ({'; '.join(reasons)})"
    )


def build_engine(
    api: TensorRt,
    model: str | Path,
    profiles: Sequence[Profile],
    *,
    timing: bytes = b"",
    keep_timing: Callable[[bytes], None] | None = None,
    progress: Progress | None = None,
    target: str = "",
    effort: int = 3,
) -> Built:
    """Parse an ONNX file and build its engine, strongly typed: the file's types are the engine's.

    timing: what an earlier build measured; keep_timing: called with what is measured now, also when the
    build fails or is interrupted. target: the GPU, such as "SM86", where the API builds for another machine.
    effort: 0 to 5, how long kernels are looked for. Takes minutes on a device. Raises EngineNotBuilt with
    what TensorRT said; Ctrl-C ends the build at its next step.
    """
    trt = api.module
    begun = time.perf_counter()
    logger = _logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        problems = [parser.get_error(i) for i in range(parser.num_errors)]
        said = "; ".join(f"{e.node_operator()} {e.node_name()}: {e.desc()}" for e in problems)
        raise EngineNotBuilt(f"TensorRT {api.version} cannot parse {Path(model).name}: {said}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    config.builder_optimization_level = effort
    if api.cross:
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.__members__[target or "SM86"], 0)
    _check_inputs(network, profiles)
    for profile in profiles:
        made = builder.create_optimization_profile()
        for name, (least, typical, most) in profile.shapes.items():
            made.set_shape(name, least, typical, most)
        config.add_optimization_profile(made)
    cache = config.create_timing_cache(timing)
    config.set_timing_cache(cache, False)
    monitor = _monitor(trt, progress)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    measured = config.get_timing_cache()
    if keep_timing is not None and measured is not None:
        keep_timing(bytes(measured.serialize()))
    if monitor.interrupted:
        raise KeyboardInterrupt
    if plan is None:
        raise EngineNotBuilt(
            f"TensorRT {api.version} cannot build {Path(model).name}: {'; '.join(logger.errors) or 'no reason given'}"
        )
    return Built(bytes(plan), network.num_layers, time.perf_counter() - begun)


def _check_inputs(network: Any, profiles: Sequence[Profile]) -> None:
    """Every dynamic input has a range in every profile, and no profile names an input that is not there."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    dynamic = {t.name for t in inputs if any(n < 0 for n in t.shape)}
    for profile in profiles:
        if dynamic != set(profile.shapes):
            wrong = sorted(dynamic ^ set(profile.shapes))
            raise EngineNotBuilt(f"profile {profile.name} and the graph disagree about {', '.join(wrong)}")


def _logger(trt: Any) -> Any:
    """A logger of TensorRT's own kind: its errors are kept for the message of an exception."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)
            log.debug("tensorrt %s %s", severity, message)

    return Logger()


def _monitor(trt: Any, progress: Progress | None) -> Any:
    """TensorRT's progress monitor: tells the outermost phases, and ends the build on Ctrl-C."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            super().__init__()
            self.interrupted = False
            self.steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.steps[phase_name] = num_steps
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(phase_name, step + 1)
            return not self.interrupted

        def phase_finish(self, phase_name: str) -> None:
            self._tell(phase_name, self.steps.get(phase_name, 0))

        def _tell(self, phase: str, done: int) -> None:
            try:
                if progress is not None:
                    progress(phase, done, self.steps.get(phase, 0))
            except KeyboardInterrupt:  # must not pass through the library's own code
                self.interrupted = True

    return Monitor()
