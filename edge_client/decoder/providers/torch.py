"""`torch`: not ONNX Runtime, but a model folder's weights in torch, on a GPU or the CPU, for a local server."""

from __future__ import annotations

import importlib
from pathlib import Path

from edge_client.decoder.providers.provider import OpenOptions, Provider
from edge_client.decoder.runtime import named_errors
from edge_client.errors import ProviderError
from memory3.runtime.backend import DecoderBackend


class TorchProvider(Provider):
    """Imports torch when it opens, and not before. Its weights are those before the bundle's rounding.

    That costs 0.17 of relative error for the packaged model in int4.
    """

    name = "torch"
    tolerance = 0.3
    automatic = False
    absences = frozenset({"NOT_INSTALLED", "MODEL_MISMATCH"})

    def missing(self) -> str:
        """Opening reports what is missing: looking costs the import of torch."""
        return ""

    def open(self, decoder: Path, options: OpenOptions) -> DecoderBackend:
        """See `Provider.open`. Raises ModelMismatch for a model folder that the bundle was not exported from."""
        try:
            engine = importlib.import_module("memory_model.models.engine")
        except ImportError as error:
            raise ProviderError(
                f"provider torch: {error.name} is not installed: pip install memory3-service", reason="NOT_INSTALLED"
            ) from error
        with named_errors(str(decoder.parent)):
            backend: DecoderBackend = engine.TorchBackend.open(decoder.parent, options.model, options.threads)
        return backend
