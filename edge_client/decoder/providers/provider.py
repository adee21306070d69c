"""`Provider`: what a row of the table of providers can do. `OnnxProvider`: one of ONNX Runtime's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.kv import CONTEXT, CPU, PARALLEL, Device
from edge_client.decoder.runtime import open_session, session_options
from edge_client.errors import ProviderError
from memory3.errors import MissingFile
from memory3.process_memory import in_huge_pages
from memory3.runtime.backend import DecoderBackend
from memory3.runtime.embedder import CPU_ALONE, ExecutionProviders

Threads = int | Literal["auto"]


@dataclass(frozen=True)
class OpenOptions:
    """How a decoder is opened.

    threads: of the products on the CPU; "auto" measures at the first load and keeps the result. context, parallel: text
    rows and sequences that an engine made ahead of time takes. model: folder whose weights the provider torch runs;
    None: the packaged one. automatic: whether `auto` opens it, which takes the next provider where this one raises.
    """

    threads: Threads = "auto"
    context: int = CONTEXT
    parallel: int = PARALLEL
    model: Path | None = None
    automatic: bool = False


class Provider(ABC):
    """One way to run a decoder.

    name: in settings and options. automatic: whether `auto` may choose it. tolerance: largest relative error
    (Frobenius norm) of all logits that `edge-client verify` accepts. absences: reasons of errors at opening that say
    that it is not installed for this bundle, which is no failure. builds_engine: whether opening makes an engine, which
    `edge-client build` does ahead of time. half: whether a bundle that computes in float16 suits it.
    """

    name: ClassVar[str]
    tolerance: ClassVar[float]
    automatic: ClassVar[bool] = True
    absences: ClassVar[frozenset[str]] = frozenset()
    builds_engine: ClassVar[bool] = False
    half: ClassVar[bool] = False

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot run on this machine, and what to install; "" if nothing is known against it."""

    @abstractmethod
    def open(self, decoder: Path, options: OpenOptions) -> DecoderBackend:
        """Load `decoder.onnx` of a bundle, or what this provider runs instead.

        Raises MissingFile, CorruptFile, InvalidInput, and ProviderError (NOT_INSTALLED, NOT_BUILT, OUT_OF_MEMORY,
        UNSUPPORTED_GRAPH, LOAD_FAILED).
        """

    def expected(self) -> bool:
        """Whether this machine should run it, so that `edge-client verify` fails where it is missing."""
        return False

    def execution_providers(self) -> ExecutionProviders:
        """ONNX Runtime's, which run the embedder and the memory writer beside this provider's decoder: the CPU's."""
        return CPU_ALONE


class OnnxProvider(Provider):
    """An execution provider of ONNX Runtime. device: where caches lie."""

    device: ClassVar[Device] = CPU

    def open(self, decoder: Path, options: OpenOptions) -> DecoderBackend:
        """See `Provider.open`."""
        if reason := self.missing():
            raise ProviderError(f"provider {self.name}: {reason}", reason="NOT_INSTALLED")
        if not decoder.is_file():
            raise MissingFile(f"no decoder at {decoder}: make it with `memory-model export`")
        if options.threads == "auto":
            return self.load_measured(decoder, options)
        return self.load(decoder, options, options.threads)

    def load_measured(self, decoder: Path, options: OpenOptions) -> DecoderGraph:
        """See `load`, with as many threads as are fastest: one, where the products are a GPU's."""
        return self.load(decoder, options, 1)

    def load(self, decoder: Path, options: OpenOptions, threads: int) -> DecoderGraph:
        """The graph on this provider with so many threads; `decoder` exists, and nothing is missing."""
        return self.opened(decoder, self.execution_providers(), threads)

    def opened(self, graph: Path, chain: ExecutionProviders, threads: int) -> DecoderGraph:
        """A graph file on these execution providers."""
        with in_huge_pages():
            session = open_session(graph, session_options(threads), chain, self.name)
        return DecoderGraph(session, self.name, self.device, threads)
