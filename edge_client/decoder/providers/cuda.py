"""`cuda`: ONNX Runtime's CUDA provider, with the standard graph.

Its GroupQueryAttention takes neither a mask nor float32, which the fused variant needs. Options
follow ONNX Runtime's documentation and source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from edge_client.decoder.kv import CUDA
from edge_client.decoder.providers import nvidia
from edge_client.decoder.providers.provider import OnnxProvider
from memory3.runtime.embedder import CPU_ALONE, ExecutionProviders
from memory3.runtime.onnx_runtime import ort

OPTIONS: Mapping[str, str] = {
    "device_id": "0",
    "arena_extend_strategy": "kSameAsRequested",  # growing in powers of two would double the weights' memory
    "cudnn_conv_algo_search": "HEURISTIC",
    "use_tf32": "0",  # float32 products as on the CPU, with which logits are compared
}


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
        """See `chain`."""
        return chain()


@cache
def chain() -> ExecutionProviders:
    """CUDA, then the CPU for operators that CUDA lacks. Loads CUDA's libraries of PyPI's wheels, where installed."""
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    return [(CUDA.provider, OPTIONS), *CPU_ALONE]
