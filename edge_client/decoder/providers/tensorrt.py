"""`tensorrt`: ONNX Runtime's TensorRT provider, with the standard graph; the first load builds an engine, in minutes.

`edge-client build` does so ahead of time. It follows ONNX Runtime's documentation and source.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.kv import CONTEXT, CUDA, PARALLEL, PROMPT_TOKENS
from edge_client.decoder.providers import cuda, nvidia
from edge_client.decoder.providers.provider import OnnxProvider, OpenOptions
from edge_client.decoder.runtime import cache_folder
from edge_client.errors import ProviderError
from memory3.config import ModelConfig
from memory3.files.bundle import MANIFEST
from memory3.runtime.cache_layout import TEXT, cache_layout, mask_name, rows_name
from memory3.runtime.embedder import ExecutionProviders
from memory3.runtime.onnx_runtime import ort

EXECUTION_PROVIDER = "TensorrtExecutionProvider"
TYPICAL_ROWS = 512
"""Text rows for which TensorRT chooses its kernels."""
Shape = tuple[int | str, ...]
Range = tuple[tuple[int, ...], ...]

log = logging.getLogger(__name__)


class TensorrtProvider(OnnxProvider):
    """An NVIDIA GPU with TensorRT 10. Caches lie where CUDA's do, input and output at one address.

    TensorRT promises nothing about such outputs. The exported graph reads each cache in the one node that writes it, so
    an engine can at most copy it onto itself; `edge-client verify` compares the logits of many steps.
    """

    name = "tensorrt"
    half = True
    tolerance = 0.03
    device = CUDA
    builds_engine = True

    def missing(self) -> str:
        """See `Provider.missing`."""
        if reason := nvidia.missing(EXECUTION_PROVIDER, "tensorrt"):
            return reason
        if not nvidia.tensorrt_version():
            return (
                "TensorRT's library libnvinfer.so.10 does not load: install the extra edge-tensorrt, "
                "on a Jetson `sudo apt install libnvinfer10 libnvonnxparsers10`"
            )
        return ""

    def execution_providers(self) -> ExecutionProviders:
        """CUDA's: an engine is built for the decoder alone."""
        return cuda.chain()

    def load(self, decoder: Path, options: OpenOptions, threads: int) -> DecoderGraph:
        """See `OnnxProvider.load`; a broken engine is built anew. Raises ProviderError (NOT_BUILT) for `auto`."""
        engines = EngineCache.of(decoder, cache_folder(decoder), options.context, options.parallel)
        if engines is None or (options.automatic and not engines.ready):
            why = "no engine was built for this GPU: run `edge-client build`" if engines else "needs a bundle"
            raise ProviderError(f"provider {self.name}: {why}", reason="NOT_BUILT")
        built, chain = engines.ready, [(EXECUTION_PROVIDER, engines.options()), *cuda.chain()]
        try:
            return self._with_engine(decoder, chain, threads, engines)
        except ProviderError as error:
            if not built or error.reason in ("OUT_OF_MEMORY", "NOT_INSTALLED"):
                raise
            log.warning("the engine in %s does not load and is built anew: %s", engines.folder, error)
        engines.clear()
        return self._with_engine(decoder, chain, threads, engines)

    def _with_engine(
        self, decoder: Path, chain: ExecutionProviders, threads: int, engines: EngineCache
    ) -> DecoderGraph:
        """See `OnnxProvider.opened`; where TensorRT takes no part of a graph, the runtime does not say so."""
        graph = self.opened(decoder, chain, threads)
        if not engines.ready:
            raise ProviderError(
                f"provider {self.name}: TensorRT {nvidia.tensorrt_version()} takes no part of {decoder}, CUDA would run"
                " it all: choose provider cuda, or `edge-client build --service` tries other weights",
                reason="UNSUPPORTED_GRAPH",
            )
        return graph


@dataclass(frozen=True)
class EngineCache:
    """A folder with TensorRT's engine and timings for one graph, context, TensorRT and GPU; its name holds all four.

    An engine of another one is thus never found. profile: the smallest, typical and largest shape of each input.
    """

    folder: Path
    profile: Mapping[str, Range]

    @classmethod
    def of(cls, decoder: Path, cache: Path, context: int = CONTEXT, parallel: int = PARALLEL) -> EngineCache | None:
        """The folder of a bundle's decoder; None outside of a bundle. context: text rows; parallel: sequences."""
        manifest = decoder.with_name(MANIFEST)
        if not manifest.is_file():
            return None
        config = ModelConfig.from_dict(json.loads(manifest.read_text(encoding="utf-8"))["config"])
        profile = decoder_profile(config, context or CONTEXT, parallel)
        key = hashlib.sha256(manifest.read_bytes() + json.dumps(profile, sort_keys=True).encode()).hexdigest()[:16]
        found = nvidia.gpu()
        architecture = found.architecture if found else "none"
        name = f"{key}-ort{ort.__version__}-trt{nvidia.tensorrt_version() or 'none'}-sm{architecture}"
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
    """The inputs of the standard graph with their dimensions, as `memory_model.export.decoder` declares them."""
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
    """TensorRT's optimization profile: (least, typical, most) of every input of the standard graph.

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
