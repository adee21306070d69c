"""Which of ONNX Runtime's execution providers runs the decoder, with which options, and why another one does not.

    auto        TensorRT if its engine was built (`edge-client build`), else CUDA, else the CPU
    cpu         the CPU, with the fused spelling of the graph
    cuda        CUDA, with the standard spelling: its GroupQueryAttention takes neither a mask nor float32
    tensorrt    TensorRT, with the standard spelling; the first load builds the engine, which takes minutes
    torch       not ONNX Runtime: a model folder's weights in torch, on a GPU or the CPU, for a local server

A provider that is named and cannot be had is a ProviderError; `auto` takes the next one and gives a warning where a
GPU stays unused. CUDA and TensorRT follow ONNX Runtime's documentation and source; they were not run by the authors.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edge_client.errors import ProviderError
from memory3.cache_layout import TEXT, cache_layout, fused_path, mask_name, rows_name
from memory3.config import ModelConfig
from memory3.errors import CorruptFile, InvalidInput, Memory3Error
from memory3.onnx_runtime import ort, runtime_errors

NAMES = ("auto", "cpu", "cuda", "tensorrt", "torch")
RUNTIME_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
ORDER = ("tensorrt", "cuda", "cpu")
"""`auto` takes the first that can be had."""
INSTALL = (
    "pip install 'memory3-edge[edge-{extra}]' && pip uninstall --yes onnxruntime && "
    "pip install --force-reinstall --no-deps 'onnxruntime-gpu<1.27'"
)
CONTEXT, PARALLEL = 2048, 4
"""Text rows and sequences where nothing else is chosen; a context of 0 is this one."""
PROMPT_TOKENS = 64
"""Most tokens of a sequence in one run (paper 3.1: a chunk)."""
TYPICAL_ROWS = 512
"""Text rows for which TensorRT chooses its kernels."""
OUT_OF_MEMORY = (
    "bad_alloc",
    "out of memory",
    "failed to allocate",
    "cuda failure 2",
    "alloc_failed",
    "outofmemory",
    "can't allocate memory",
)

log = logging.getLogger(__name__)
Shape = tuple[int | str, ...]
Range = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. architecture: compute capability without the dot, "87" for Orin."""

    name: str
    architecture: str


def check_name(name: str) -> None:
    """Raise InvalidInput for a provider that does not exist."""
    if name not in NAMES:
        raise InvalidInput(f"provider must be one of {', '.join(NAMES)}, not {name!r}")


def graph_path(decoder: Path, provider: str) -> Path:
    """The spelling of the graph that a provider takes: the fused one for the CPU, if there is one."""
    fused = fused_path(decoder)
    return fused if provider == "cpu" and fused.is_file() else decoder


def missing(provider: str) -> str:
    """Why a provider cannot run on this machine, and what to install; "" if nothing is known against it."""
    if provider in ("cpu", "torch"):  # opening says what torch lacks
        return ""
    extra = "gpu" if provider == "cuda" else "tensorrt"
    if gpu() is None:
        return "no NVIDIA GPU: libcuda.so.1, which the driver brings, does not load or finds none"
    if RUNTIME_NAMES[provider] not in ort.get_available_providers():
        return (
            f"onnxruntime {ort.__version__} is built without it: install the extra edge-{extra} "
            f"({INSTALL.format(extra=extra)}); on a Jetson the wheel that `edge-client doctor` names"
        )
    if provider == "tensorrt" and not tensorrt_version():
        return (
            "TensorRT's library libnvinfer.so.10 does not load: install the extra edge-tensorrt, "
            "on a Jetson `sudo apt install libnvinfer10 libnvonnxparsers10`"
        )
    return ""


def torch_graph(decoder: Path, model: Path | None, threads: int | str) -> Any:
    """The weights of a bundle's model folder in torch, a `TorchBackend`; devices do without torch and that module."""
    try:
        engine = importlib.import_module("memory_model.models.engine")
    except ImportError as error:
        raise ProviderError(
            f"provider torch: {error.name} is not installed: pip install memory3-service", reason="NOT_INSTALLED"
        ) from error
    with named_errors(str(decoder.parent)):
        return engine.TorchBackend.open(decoder.parent, model, threads)


def open_session(
    decoder: Path, options: ort.SessionOptions, wanted: str, engines: EngineCache | None = None
) -> tuple[ort.InferenceSession, str, str]:
    """The decoder on the provider that is named, or for "auto" on the best that can be had; which; why no better one.

    engines: where TensorRT's engine is kept; None leaves TensorRT out. Raises ProviderError (NOT_INSTALLED,
    OUT_OF_MEMORY, UNSUPPORTED_GRAPH, NOT_BUILT, LOAD_FAILED), CorruptFile, InvalidInput.
    """
    check_name(wanted)
    reasons: list[str] = []
    for name in ORDER if wanted == "auto" else (wanted,):
        try:
            if reason := missing(name):
                raise ProviderError(f"provider {name}: {reason}", reason="NOT_INSTALLED")
            if name == "tensorrt" and (engines is None or (wanted == "auto" and not engines.ready)):
                why = "no engine was built for this GPU: run `edge-client build`" if engines else "needs a bundle"
                raise ProviderError(f"provider {name}: {why}", reason="NOT_BUILT")
            session = _open(decoder, options, name, engines)
        except Memory3Error as error:
            if name in (wanted, "cpu"):
                raise
            reasons.append(str(error))
            continue
        idle = gpu() is not None and name == "cpu" and wanted == "auto"
        warning = f"provider_inactive active={name} reason={'; '.join(reasons)!r}" if idle else ""
        if warning:
            log.warning(warning)
        return session, name, warning
    raise AssertionError("the CPU is the last one, and it opens or raises")


def _open(decoder: Path, options: ort.SessionOptions, name: str, engines: EngineCache | None) -> ort.InferenceSession:
    """A session on this provider or an error; TensorRT's engine is built anew if the one in the cache is broken."""
    path = graph_path(decoder, name)
    chain: list[tuple[str, Mapping[str, str]]] = [(RUNTIME_NAMES["cpu"], {})]
    if name != "cpu":
        if hasattr(ort, "preload_dlls"):  # CUDA's libraries from PyPI, where they are installed
            ort.preload_dlls()
        chain.insert(0, (RUNTIME_NAMES["cuda"], CUDA_OPTIONS))
    built = False
    if name == "tensorrt" and engines is not None:
        built = engines.ready
        chain.insert(0, (RUNTIME_NAMES["tensorrt"], engines.options()))
    try:
        with named_errors(str(path)):
            # Without `enable_fallback=0` the runtime would go to the CPU and only print it.
            session = ort.InferenceSession(str(path), options, providers=chain, enable_fallback=0)
    except ProviderError as error:
        if not built or engines is None or error.reason == "OUT_OF_MEMORY":
            raise
        log.warning(f"engine_rebuilt folder={engines.folder} reason={str(error)!r}")
        engines.clear()
        return _open(decoder, options, name, engines)
    if session.get_providers()[0] != RUNTIME_NAMES[name]:  # the runtime left it out
        raise ProviderError(
            f"provider {name}: onnxruntime {ort.__version__} has it, but its libraries do not load "
            "(CUDA 12 with cuDNN 9, and TensorRT 10 for tensorrt): install them, see `edge-client doctor`",
            reason="NOT_INSTALLED",
        )
    return session


CUDA_OPTIONS: Mapping[str, str] = {
    "device_id": "0",
    "arena_extend_strategy": "kSameAsRequested",  # growing in powers of two would double the weights' memory
    "cudnn_conv_algo_search": "HEURISTIC",
    "use_tf32": "0",  # float32 products as on the CPU, with which logits are compared
}


@dataclass(frozen=True)
class EngineCache:
    """A folder with TensorRT's engine and timings for one graph, context, TensorRT and GPU; its name holds all four.

    An engine of another one is thus never found. profile: the smallest, typical and largest shape of each input.
    """

    folder: Path
    profile: Mapping[str, Range]

    @classmethod
    def of(cls, decoder: Path, cache: Path, context: int = CONTEXT, parallel: int = PARALLEL) -> EngineCache | None:
        """The place for a bundle's decoder; None outside of a bundle. context: text rows; parallel: sequences."""
        manifest = decoder.with_name("manifest.json")
        if not manifest.is_file():
            return None
        config = ModelConfig.from_dict(json.loads(manifest.read_text(encoding="utf-8"))["config"])
        profile = decoder_profile(config, context or CONTEXT, parallel)
        key = hashlib.sha256(manifest.read_bytes() + json.dumps(profile, sort_keys=True).encode()).hexdigest()[:16]
        found = gpu()
        architecture = found.architecture if found else "none"
        name = f"{key}-ort{ort.__version__}-trt{tensorrt_version() or 'none'}-sm{architecture}"
        return cls(cache / "tensorrt" / name, profile)

    @property
    def ready(self) -> bool:
        """Whether an engine is here, so that opening takes seconds."""
        return any(self.folder.glob("*.engine"))

    def clear(self) -> None:
        """Forget the engine, keep the timings."""
        for path in self.folder.glob("*.engine"):
            path.unlink()

    def options(self) -> dict[str, str]:
        """Options of ONNX Runtime's TensorRT provider.

        Without fp16 and int8 the provider builds a strongly typed network: the file's types are the engine's, so half
        precision and int4 or int8 weights are those of the export (`--precision int4-half`).
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        shapes = (
            ",".join(f"{name}:{'x'.join(map(str, shape[which]))}" for name, shape in self.profile.items())
            for which in range(3)
        )
        least, typical, most = shapes
        return {
            "device_id": "0",
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(self.folder),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(self.folder),
            "trt_profile_min_shapes": least,
            "trt_profile_opt_shapes": typical,
            "trt_profile_max_shapes": most,
            "trt_fp16_enable": "0",
            "trt_int8_enable": "0",
            "trt_builder_optimization_level": "3",
            "trt_context_memory_sharing_enable": "1",
        }


def decoder_inputs(config: ModelConfig) -> dict[str, Shape]:
    """The inputs of the standard spelling with their dimensions, as `memory_model.export.decoder` declares them."""
    layout = cache_layout(config)
    angles: Shape = ("P", config.head_dim // 2)
    inputs: dict[str, Shape] = {
        "token_ids": ("B", "S"),
        "position_ids": ("B", "S"),
        "output_rows": ("N",),
        "batch_ids": ("B",),
        "columns": ("T",),
        "rotary_cos": angles,
        "rotary_sin": angles,
    }
    for number in layout.numbers:
        inputs[rows_name(number)] = ("B",)
        if number != TEXT:
            inputs[mask_name(number)] = ("B", layout.lead(number), layout.slots(number))
    for tensor in layout.tensors:
        cache: Shape = ("B", len(tensor.heads), f"R_{tensor.layout + 1}", config.head_dim)
        inputs |= {tensor.keys: cache, tensor.values: cache}
    return inputs


def decoder_profile(config: ModelConfig, context: int, parallel: int) -> dict[str, Range]:
    """TensorRT's optimization profile: (least, typical, most) of every input of the standard spelling.

    One profile for steps and prompts: ONNX Runtime does not choose between several. Kernels are chosen for a step.
    """
    layout = cache_layout(config)
    rows = context + config.memory.reference_tokens + PROMPT_TOKENS
    typical = min(TYPICAL_ROWS, rows)
    longest = rows + max((layout.slots(n) for n in layout.numbers), default=0)
    ranges = {
        "B": (1, 1, parallel),
        "S": (1, 1, PROMPT_TOKENS),
        "N": (1, 1, max(parallel, PROMPT_TOKENS)),
        "T": (1, typical, rows),
        "P": (1, longest, longest + PROMPT_TOKENS),
    }
    for number in layout.numbers:
        slots = layout.slots(number)
        ranges[f"R_{number + 1}"] = (1 + slots, rows + slots, rows + slots)
    return {
        name: tuple(tuple(n if isinstance(n, int) else ranges[n][which] for n in shape) for which in range(3))
        for name, shape in decoder_inputs(config).items()
    }


def cache_folder(decoder: Path) -> Path:
    """Where what is made for this device is kept: `cache` in the bundle; XDG_CACHE_HOME if that is read-only."""
    if os.access(decoder.parent, os.W_OK):
        return decoder.parent / "cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "memory3-edge" / hashlib.sha256(str(decoder.resolve()).encode()).hexdigest()[:16]


@cache
def gpu() -> Gpu | None:
    """The first NVIDIA GPU, as its driver names it; None without a driver or GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, value, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    driver.cuDeviceGetName(name, len(name), device)
    capability = ""
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability += str(value.value)
    return Gpu(name.value.decode(errors="replace"), capability)


@cache
def tensorrt_version() -> str:
    """The version of the TensorRT library that loads, such as "10.3.0"; "" without one."""
    with suppress(ImportError, OSError):  # PyPI's wheel of the libraries loads them from its own folder
        importlib.import_module("tensorrt_libs")
    try:
        library = ctypes.CDLL("libnvinfer.so.10")
    except OSError:
        return ""
    number = int(library.getInferLibVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Errors of the runtime and of allocation, raised again as ours. what: what was to be opened or allocated."""
    try:
        yield
    except Memory3Error:
        raise
    except Exception as error:  # the runtime has no common class for its errors
        said = " ".join(str(error).split())[:400]
        if isinstance(error, MemoryError) or any(text in said.lower() for text in OUT_OF_MEMORY):
            raise ProviderError(
                f"not enough memory for {what}: close other programs, choose a smaller context or fewer parallel "
                f"conversations, or export with --precision int4 ({said})",
                reason="OUT_OF_MEMORY",
            ) from error
        if isinstance(error, runtime_errors.NotImplemented):
            raise ProviderError(
                f"{what} has operators that onnxruntime {ort.__version__} does not run: {said}",
                reason="UNSUPPORTED_GRAPH",
            ) from error
        if isinstance(error, BROKEN) or "external data" in said.lower():
            raise CorruptFile(f"{what} is not a decoder of ours: {said}") from error
        raise ProviderError(f"{what} does not load: {said}") from error


BROKEN = (
    runtime_errors.InvalidProtobuf,
    runtime_errors.InvalidGraph,
    runtime_errors.NoModel,
    runtime_errors.NoSuchFile,
    runtime_errors.InvalidArgument,
)
"""What the runtime raises for a file that is no graph, or of which a part is missing."""
