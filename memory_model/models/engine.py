"""The weights of a model folder in torch as a `DecoderBackend`: what a local server's provider `torch` runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memory3.codec.codec import ProductCodec
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.errors import ModelMismatch
from memory3.files.bundle import Manifest
from memory3.runtime.backend import DecoderBackend, DecoderRunner, RunInput, TextRows
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model, model_id_of
from memory_model.nn.decoder import Decoder
from memory_model.nn.decompression import TorchCodec
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import stack_memories, writing_device


class TorchBackend(DecoderBackend):
    """A decoder in torch, on a GPU or the CPU. Thread-safe."""

    provider, warning = "torch", ""

    def __init__(self, model: Decoder) -> None:
        weight = model.embed_tokens.weight
        self.model, self.config, self.device = model, model.config, weight.device.type
        self.precision, self.threads = str(weight.dtype).removeprefix("torch."), torch.get_num_threads()

    @classmethod
    def open(cls, bundle: Path, model: Path | None, threads: int | str) -> TorchBackend:
        """A model folder's weights, which must be those that the bundle in a folder was exported from.

        On the GPU where torch sees one, in bfloat16. Raises MissingFile, CorruptFile; ModelMismatch before it loads.
        """
        if isinstance(threads, int):
            torch.set_num_threads(threads)
        expected, folder = Manifest.read(bundle).model_id, ModelFolder.open(model)
        if (own := model_id_of(folder, folder.config(), folder.adapter)) != expected:
            remedy = f"name the model folder that {bundle} was exported from (--model)"
            raise ModelMismatch(own, expected, remedy, subject="the model folder holds")
        device = writing_device("auto")
        return cls(load_model(folder).model.to(device, torch.bfloat16 if device.type == "cuda" else None))

    def reading_format(self, memory_format: MemoryFormat) -> MemoryFormat:
        """On a GPU, one that decompresses there."""
        codec = memory_format.codec
        if self.device == "cpu" or not isinstance(codec, ProductCodec):
            return memory_format
        return MemoryFormat(
            self.config, memory_format.identity.model_id, TorchCodec(codec, self.model.embed_tokens.weight.device)
        )

    def runner(self, context: int, parallel: int, prefix: Sequence[int] = ()) -> TorchRunner:
        """New caches."""
        return TorchRunner(BatchedDecoder(self.model, prefix, parallel, context))


class TorchRunner(DecoderRunner):
    """Runs of a decoder in torch. Text rows that are read stay tensors of its device."""

    def __init__(self, decoder: BatchedDecoder) -> None:
        self._decoder = decoder

    def run(self, first: int, inputs: Sequence[RunInput], *, all_logits: bool = False) -> np.ndarray:
        """See `DecoderRunner.run`; the array is the caller's."""
        tokens, lengths = [one.tokens for one in inputs], [one.length for one in inputs]
        records = any(one.record is not None for one in inputs)
        found = self._decoder.run(first, tokens, lengths, all_logits, records)
        logits = np.asarray(found.to("cpu", copy=True).numpy())
        if records:
            count = len(tokens[0]) if all_logits else 1
            queries = torch.cat([layer[:, -count:] for layer in self._decoder.queries], dim=2).cpu().numpy()
            for one, own in zip(inputs, queries, strict=True):
                if one.record is not None:
                    one.record.add(one.length + len(one.tokens) - count, own)
        return logits

    def release(self, slot: int) -> None:
        """Nothing to do: logits are copies."""

    def clear(self, slot: int, memory: bool) -> None:
        """See `DecoderRunner.clear`. A sequence without memory has masked memory slots."""
        self._decoder.clear([slot])

    def inject(self, slot: int, memories: Sequence[ExplicitMemory]) -> None:
        """See `DecoderRunner.inject`."""
        self._decoder.inject([slot], stack_memories([memories], self._decoder.config, self._decoder.device))

    def read_text(self, slot: int, memory: bool, tokens: int, names: Collection[str] = ()) -> dict[str, Tensor]:
        """See `DecoderRunner.read_text`."""
        return {name: self._decoder.text[name][slot, :, :tokens].clone() for name in names or self._decoder.text}

    def on_host(self, rows: Any) -> np.ndarray:
        """See `DecoderRunner.on_host`."""
        return np.asarray(torch.as_tensor(rows).float().cpu().numpy())

    @torch.inference_mode()
    def write_text(self, slot: int, memory: bool, rows: TextRows) -> None:
        """See `DecoderRunner.write_text`."""
        for name, text in self._decoder.text.items():
            own = torch.as_tensor(rows[name], device=text.device)
            text[slot, :, : own.shape[1]] = own
