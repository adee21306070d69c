"""`cuda`: ONNX Runtime's CUDA provider, with the standard graph.

Its GroupQueryAttention takes neither a mask nor float32, which the fused variant needs. Options
follow ONNX Runtime's documentation and source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.kv import CUDA
from edge_client.decoder.providers import cpu, nvidia
from edge_client.decoder.providers.provider import OnnxProvider, OpenOptions
from memory3.runtime.embedder import ExecutionProviders
from memory3.runtime.onnx_runtime import ort

OPTIONS: Mapping[str, str] = {
    "device_id": "0",
    "arena_extend_strategy": "kSameAsRequested",  # growing in powers of two would double the weights' memory
    "cudnn_conv_algo_search": "HEURISTIC",
    "use_tf32": "0",  # float32 products as on the CPU, with which logits are compared
}
CHAIN: ExecutionProviders = [(CUDA.provider, OPTIONS), *cpu.CHAIN]


class CudaProvider(OnnxProvider):
    """An NVIDIA GPU with CUDA 12 and cuDNN 9."""

    name = "cuda"
    half = True
    tolerance = 0.03
    device = CUDA

    def missing(self) -> str:
        """See `Provider.missing`."""
        return nvidia.missing(CUDA.provider, "gpu")

    def expected(self) -> bool:
        """Where there is a GPU."""
        return nvidia.gpu() is not None

    def execution_providers(self) -> ExecutionProviders:
        """CUDA, then the CPU."""
        return CHAIN

    def load(self, decoder: Path, options: OpenOptions, threads: int) -> DecoderGraph:
        """See `OnnxProvider.load`."""
        preload_libraries()
        return super().load(decoder, options, threads)


def preload_libraries() -> None:
    """Load CUDA's libraries from PyPI's wheels, where those are installed."""
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
