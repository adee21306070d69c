"""`cpu`: ONNX Runtime's CPU provider, which takes the fused variant of the graph where the bundle has one."""

from __future__ import annotations

from pathlib import Path

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.providers.provider import OnnxProvider, OpenOptions
from edge_client.decoder.runtime import cache_folder
from edge_client.decoder.threads import THREADS, fastest
from memory3.runtime.cache_layout import fused_path


class CpuProvider(OnnxProvider):
    """Always there. Its kernels round activations to int8, an error of 0.05."""

    name = "cpu"
    tolerance = 0.06

    def missing(self) -> str:
        """Nothing is ever missing."""
        return ""

    def load_measured(self, decoder: Path, options: OpenOptions) -> DecoderGraph:
        """See `OnnxProvider.load_measured`; measured at the first load of a file."""
        file = cache_folder(decoder) / THREADS
        return fastest(lambda threads: self.load(decoder, options, threads), graph_path(decoder), file)

    def load(self, decoder: Path, options: OpenOptions, threads: int) -> DecoderGraph:
        """See `OnnxProvider.load`."""
        return self.opened(graph_path(decoder), self.execution_providers(), threads)


def graph_path(decoder: Path) -> Path:
    """The file for the CPU: the fused variant of the graph, if there is one."""
    fused = fused_path(decoder)
    return fused if fused.is_file() else decoder
