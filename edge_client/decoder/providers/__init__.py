"""The table of providers: who runs the decoder. A provider is one file of this folder and one row of `PROVIDERS`.

    auto        the first of the table that can be had: TensorRT if its engine was built, else CUDA, else the CPU
    tensorrt    TensorRT through ONNX Runtime
    cuda        CUDA through ONNX Runtime
    cpu         the CPU through ONNX Runtime
    torch       a model folder's weights in torch, for a local server

A provider that is named and cannot be had is a ProviderError; `auto` takes the next one and gives a warning where a
GPU stays unused.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from edge_client.decoder.kv import CONTEXT, PARALLEL
from edge_client.decoder.providers import nvidia
from edge_client.decoder.providers.cpu import CpuProvider
from edge_client.decoder.providers.cuda import CudaProvider
from edge_client.decoder.providers.provider import OpenOptions, Provider, Threads
from edge_client.decoder.providers.tensorrt import TensorrtProvider
from edge_client.decoder.providers.torch import TorchProvider
from edge_client.errors import ProviderError
from memory3.errors import InvalidInput, Memory3Error
from memory3.runtime.backend import DecoderBackend
from memory3.runtime.embedder import ExecutionProviders

AUTO = "auto"
PROVIDERS: dict[str, Provider] = {
    provider.name: provider for provider in (TensorrtProvider(), CudaProvider(), CpuProvider(), TorchProvider())
}
"""By name, in the order in which `auto` tries them."""

log = logging.getLogger(__name__)


def provider_names() -> tuple[str, ...]:
    """What the setting `provider` may be."""
    return (AUTO, *sorted(PROVIDERS))


def check_name(name: str) -> None:
    """Raise InvalidInput for a provider that does not exist; `auto` is one."""
    if name not in provider_names():
        raise InvalidInput(f"provider must be one of {', '.join(provider_names())}, not {name!r}")


def execution_providers(provider: str) -> ExecutionProviders:
    """What runs embedder and memory writer where a decoder runs, or would run, on this provider.

    For "auto" it is the first of the table that nothing is missing for. Raises InvalidInput, ProviderError.
    """
    check_name(provider)
    rows = [each for each in PROVIDERS.values() if (each.automatic if provider == AUTO else each.name == provider)]
    for row in rows:
        if not row.missing():
            return row.execution_providers()
    raise ProviderError(f"provider {provider}: {rows[0].missing()}", reason="NOT_INSTALLED")


def open_decoder(
    decoder: str | Path,
    *,
    provider: str = AUTO,
    threads: Threads = "auto",
    context: int = CONTEXT,
    parallel: int = PARALLEL,
    model: Path | None = None,
) -> DecoderBackend:
    """Open `decoder.onnx` of a bundle on the provider that is named, or for "auto" on the best that can be had.

    The other arguments: see `OpenOptions`. Raises MissingFile, CorruptFile, InvalidInput, ProviderError; with torch
    ModelMismatch.
    """
    check_name(provider)
    options = OpenOptions(threads, context, parallel, model, automatic=provider == AUTO)
    if provider != AUTO:
        return PROVIDERS[provider].open(Path(decoder), options)
    automatic = [each for each in PROVIDERS.values() if each.automatic]
    reasons: list[str] = []
    for each in automatic[:-1]:
        try:
            return each.open(Path(decoder), options)
        except Memory3Error as error:
            reasons.append(str(error))
    backend = automatic[-1].open(Path(decoder), replace(options, automatic=False))
    if nvidia.gpu() is not None:
        backend.warning = f"the GPU is not used, provider {backend.provider} runs the decoder: {'; '.join(reasons)}"
        log.warning(backend.warning)
    return backend
