"""The weights of a model folder in torch behind the interface of `edge_client.decoder.graph`: its provider `torch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from memory3.bundle import MANIFEST, Manifest
from memory3.cache_layout import Row
from memory3.codec.codec import ProductCodec
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.errors import ModelMismatch
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model, model_id_of
from memory_model.nn.decoder import Decoder
from memory_model.nn.decompression import TorchCodec
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import stack_memories, writing_device


class TorchGraph:
    """What `DecoderGraph` is on ONNX Runtime. Thread-safe; attributes as there."""

    provider, warning, fused = "torch", "", False

    def __init__(self, model: Decoder) -> None:
        weight = model.embed_tokens.weight
        self.model, self.config, self.device = model, model.config, weight.device.type
        self.precision, self.threads = str(weight.dtype).removeprefix("torch."), torch.get_num_threads()

    @classmethod
    def open(cls, bundle: Path, model: Path | None, threads: int | str) -> TorchGraph:
        """A model folder's weights, which must be those that the bundle in a folder was exported from.

        On the GPU where torch sees one, in bfloat16. Raises MissingFile, CorruptFile; ModelMismatch before it loads.
        """
        if isinstance(threads, int):
            torch.set_num_threads(threads)
        expected, folder = Manifest.from_json((bundle / MANIFEST).read_bytes()).model_id, ModelFolder.open(model)
        if (own := model_id_of(folder, folder.config(), folder.adapter)) != expected:
            remedy = f"name the model folder that {bundle} was exported from (--model)"
            raise ModelMismatch(own, expected, remedy, subject="the model folder holds")
        device = writing_device("auto")
        return cls(load_model(folder).model.to(device, torch.bfloat16 if device.type == "cuda" else None))

    def reading(self, memory_format: MemoryFormat) -> MemoryFormat:
        """See `DecoderGraph.reading`: on a GPU, one that decompresses there."""
        codec = memory_format.codec
        if self.device == "cpu" or not isinstance(codec, ProductCodec):
            return memory_format
        return MemoryFormat(
            self.config, memory_format.identity.model_id, TorchCodec(codec, self.model.embed_tokens.weight.device)
        )

    def runner(self, context: int, parallel: int, prefix: Sequence[int] = ()) -> TorchRunner:
        """New caches."""
        return TorchRunner(BatchedDecoder(self.model, prefix, parallel, context))


class TorchRunner:
    """What `Runner` with its `Caches` is on ONNX Runtime. Rows of texts stay tensors of the device."""

    def __init__(self, engine: BatchedDecoder) -> None:
        self.caches, self._engine = self, engine

    def run(self, first: int, rows: Sequence[Row], *, all_logits: bool = False) -> np.ndarray:
        """See `Runner.run`; the array is the caller's."""
        logits = self._engine.run(first, [row.tokens for row in rows], [row.length for row in rows], all_logits)
        return np.asarray(logits.to("cpu", copy=True).numpy())

    def release(self, place: int) -> None:
        """Nothing: logits are copies."""

    def begin(self, place: int, memory: bool) -> None:
        """The slots hold no memories. They are there, hidden, in a sequence without memory too."""
        self._engine.clear([place])

    def inject(self, place: int, memories: Sequence[ExplicitMemory]) -> None:
        """Replace the memories in the slots of a sequence by these."""
        self._engine.inject([place], stack_memories([memories], self._engine.config, self._engine.device))

    def read(self, place: int, memory: bool, stop: int) -> dict[str, Tensor]:
        """Copies [heads, stop, d] of the first text rows of every cache tensor."""
        return {name: text[place, :, :stop].clone() for name, text in self._engine.text.items()}

    @torch.inference_mode()
    def write(self, place: int, memory: bool, rows: Mapping[str, Tensor]) -> None:
        """Inverse of `read`."""
        for name, text in self._engine.text.items():
            text[place, :, : rows[name].shape[1]] = rows[name]
