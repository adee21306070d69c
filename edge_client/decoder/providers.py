"""Which execution provider runs a graph: names for settings, the fallback order, and what is really active.

    auto        the fastest that is there: a TensorRT engine that was already built, else CUDA, else the CPU
    cpu         the CPU
    cuda        CUDA, else the CPU
    tensorrt    TensorRT (builds its engine at first use, minutes), else CUDA, else the CPU

A wanted provider that is not active is never silent: one warning line in the log, one `Active.warning`.
CUDA and TensorRT are written by their documentation and were not run by the authors: no GPU was at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edge_client.cli.device_facts import DeviceFacts, device_facts, gpu_wheel
from edge_client.tensorrt_cache import EngineCache
from memory_model.errors import InvalidInput

NAMES = ("auto", "cpu", "cuda", "tensorrt")
RUNTIME_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
ORDER = ("tensorrt", "cuda", "cpu")
"""A provider falls back on those behind it."""

Options = dict[str, Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Active:
    """wanted: the name in the settings; provider: what runs (cpu, cuda, tensorrt); warning: "" if that is right.

    device: where inputs, outputs and key-values should lie, in ONNX Runtime's words ("cpu" or "cuda").
    """

    wanted: str
    provider: str
    warning: str = ""

    @property
    def device(self) -> str:
        """Where tensors should lie."""
        return "cpu" if self.provider == "cpu" else "cuda"


@dataclass(frozen=True)
class OpenedSession:
    """A session and who runs it."""

    session: ort.InferenceSession
    active: Active


def check_name(name: str) -> None:
    """Raise InvalidInput for a provider that does not exist."""
    if name not in NAMES:
        raise InvalidInput(f"provider must be one of {', '.join(NAMES)}, not {name!r}")


def fallback_order(wanted: str, available: Sequence[str], *, engine_ready: bool = False) -> tuple[str, ...]:
    """The providers to try for a wanted name, best first; always ends with "cpu".

    available: ONNX Runtime's names of those that its wheel has. engine_ready: whether TensorRT need not
    build first; "auto" does not begin a build of minutes.
    """
    check_name(wanted)
    start = {"auto": 0 if engine_ready else 1}.get(wanted)
    order = ORDER[ORDER.index(wanted) if start is None else start :]
    return tuple(name for name in order if name == "cpu" or RUNTIME_NAMES[name] in available)


def open_session(
    path: str | Path,
    options: ort.SessionOptions,
    wanted: str = "auto",
    *,
    cache: EngineCache | None = None,
    facts: DeviceFacts | None = None,
    served: Sequence[str] = ORDER,
) -> OpenedSession:
    """Open a graph with the best provider of the fallback order that takes it.

    cache: where TensorRT keeps engines, its profiles included; without one TensorRT is left out. facts: of
    this device, for the advice in the warning. served: providers whose memory the caller can feed: one who
    binds arrays of the host's must not get CUDA, which would read a copy of them. Raises InvalidInput for
    an unknown name, and whatever the runtime raises if not even the CPU takes the file.
    """
    check_name(wanted)
    ready = cache is not None and cache.ready
    order = fallback_order(wanted, ort.get_available_providers(), engine_ready=ready)
    if cache is None:
        order = tuple(name for name in order if name != "tensorrt")
    reasons = [
        f"{name}: this program cannot keep key-values there yet" for name in order if name not in served
    ]
    order = tuple(name for name in order if name in served)
    for name in order:
        chain = [(RUNTIME_NAMES[n], provider_options(n, cache)) for n in order[order.index(name) :]]
        try:
            session = ort.InferenceSession(str(path), options, providers=chain)
        except Exception as error:  # the runtime has no common class for its errors
            if name == "cpu":
                raise
            reasons.append(f"{name}: {' '.join(str(error).split())[:200]}")
            continue
        # A provider whose libraries are missing is dropped by the runtime without an error.
        active = _short_name(session.get_providers()[0])
        return OpenedSession(session, _judged(wanted, active, reasons, facts, cache))
    raise AssertionError("the order ends with the CPU")


def provider_options(name: str, cache: EngineCache | None) -> Options:
    """ONNX Runtime's options of a provider."""
    if name == "tensorrt":
        assert cache is not None
        return cache.provider_options()
    if name == "cuda":
        return {
            "device_id": "0",
            # Caches are allocated once; growing in powers of two would double their memory.
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "HEURISTIC",
            "use_tf32": "0",  # logits are compared with the CPU's
        }
    return {}


def _judged(
    wanted: str, active: str, reasons: Sequence[str], facts: DeviceFacts | None, cache: EngineCache | None
) -> Active:
    """What is active, and a warning where more was asked for or is idle."""
    if active == wanted or wanted == "cpu":
        return Active(wanted, active)
    facts = facts or device_facts()
    if wanted == "auto" and (active != "cpu" or not facts.gpu):
        return Active(wanted, active)
    reason = "; ".join(reasons) or (
        "this graph has no profile for TensorRT"
        if wanted == "tensorrt" and cache is None
        else "this wheel of onnxruntime has no such provider, or its libraries do not load"
    )
    expected = "cuda" if wanted == "auto" else wanted
    warning = f"provider_inactive wanted={expected} active={active} reason={reason!r} do={gpu_wheel(facts)!r}"
    log.warning(warning)
    return Active(wanted, active, warning)


def _short_name(runtime_name: str) -> str:
    return next((short for short, name in RUNTIME_NAMES.items() if name == runtime_name), runtime_name)
