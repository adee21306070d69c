"""Texts to what is stored: the interface the service works with, and the real model behind it.

references --embedder--> vectors float32 [n, dimension]
references --MemoryWriter--> explicit memories --MemoryFormat.encode--> payloads (bytes)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from memory_model.codec.codec import MemoryCodec
from memory_model.errors import CorruptFile, MissingFile
from memory_model.references import split
from memory_service.errors import PayloadCorrupt
from memory_service.stores.identity import WriterIdentity, require_same

if TYPE_CHECKING:
    from memory_model.codec.payload import ExplicitMemory
    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import LoadedModel
    from memory_model.nn.writing import MemoryWriter
    from memory_model.tokenizer import Tokenizer
    from memory_service.settings import Settings


@dataclass(frozen=True)
class EncoderDescription:
    """What clients must know of the encoder; model_config_json is memory_model.config.ModelConfig.to_dict as JSON."""

    identity: WriterIdentity
    memories_per_chunk: int
    reference_tokens: int
    chunk_tokens: int
    model_config_json: str
    payload_bytes: int
    """Of a reference of full length: the largest there is."""


@dataclass(frozen=True)
class EncodedReferences:
    """vectors: float32 [n, dimension]; payloads: n byte strings as MemoryFormat writes them."""

    vectors: np.ndarray
    payloads: list[bytes]


class Encoder(Protocol):
    """Turns references into vectors and payloads.

    Contract. `split`, `check_payload` and `embed` may be called from any thread, `encode` from one thread at a time.
    They return as many rows and payloads as they were given references, in their order, and do not change their
    argument.
    """

    @property
    def description(self) -> EncoderDescription:
        """Ids and shape; constant."""

    def split(self, text: str, title: str, overlap_tokens: int = 0) -> list[str]:
        """References of a document's text, each at most the model's reference length; empty for blank text.

        overlap_tokens: at most as much of a reference's end is repeated by the next one.
        """

    def count_tokens(self, text: str) -> int:
        """Length of a text in tokens of the model."""

    def embed(self, references: Sequence[str]) -> np.ndarray:
        """Vectors alone, float32 [n, dimension]."""

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        """Embeds, writes and compresses."""

    def check_payload(self, payload: bytes) -> None:
        """Raises PayloadCorrupt for bytes that are no payload and a mismatch for one that another model wrote."""


class Splitter:
    """Cuts texts into references as the model's encoder does, without the model: its tokenizer alone."""

    def __init__(self, tokenizer: Tokenizer, reference_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._reference_tokens = reference_tokens

    @classmethod
    def load(cls, settings: Settings, reference_tokens: int) -> Splitter:
        """That of the model which the settings name; the tokenizer alone is loaded."""
        from memory_model.models.folder import ModelFolder
        from memory_model.tokenizer import Tokenizer

        checkpoint = ModelFolder.open(settings.model).checkpoint
        return cls(
            Tokenizer.from_json(checkpoint.tokenizer_json, checkpoint.special_tokens), reference_tokens
        )

    def __call__(self, text: str, title: str, overlap_tokens: int = 0) -> list[str]:
        """See Encoder.split."""
        return split(text, title, self._tokenizer.count, self._reference_tokens, overlap_tokens)


class ModelEncoder:
    """The real encoder: embedder, LLM and codec, loaded once (torch; some seconds)."""

    def __init__(self, settings: Settings) -> None:
        """Loads what the settings name.

        Raises MissingFile, CorruptFile, or an IdentityMismatch when the bundle was exported from another model.
        """
        import torch

        from memory_model.bundle import Bundle
        from memory_model.codec.payload import MemoryFormat
        from memory_model.embedder import Embedder
        from memory_model.models.folder import ModelFolder
        from memory_model.models.load import load_model

        folder = ModelFolder.open(settings.model)
        codec = encoding_codec(settings, folder)  # refused before anything large is loaded
        loaded = load_model(folder)
        self._tokenizer = loaded.tokenizer
        self._writer = memory_writer(loaded, settings)
        self._on_processor = self._writer.model.embed_tokens.weight.device.type == "cpu"
        self._format = MemoryFormat(loaded.config, loaded.model_id, codec)
        bundle = Bundle.open(settings.bundle) if settings.bundle else None
        self._embedder = Embedder(embedder_folder(settings), threads=torch.get_num_threads())
        ids = self._format.identity
        memory = loaded.config.memory
        self._split = Splitter(loaded.tokenizer, memory.reference_tokens)
        self.description = EncoderDescription(
            identity=WriterIdentity(
                ids.model_id,
                ids.codec_id,
                ids.memory_format_id,
                self._embedder.embedder_id,
                self._embedder.dim,
            ),
            memories_per_chunk=memory.memories_per_chunk,
            reference_tokens=memory.reference_tokens,
            chunk_tokens=memory.chunk_tokens,
            model_config_json=json.dumps(loaded.config.to_dict(), sort_keys=True),
            payload_bytes=self._format.payload_bytes(memory.reference_tokens),
        )
        if bundle is not None:
            # Devices would fetch a bundle whose every request is refused: better not to start.
            manifest = bundle.manifest
            exported = WriterIdentity(
                manifest.model_id, manifest.codec_id, manifest.memory_format_id, manifest.embedder_id,
                self._embedder.dim,
            )  # fmt: skip
            own = f"--model {settings.model} " if settings.model else ""
            require_same(
                exported,
                self.description.identity,
                f"export the bundle again: `memory-model export {own}--out {settings.bundle}`, or serve the model "
                "folder that it was exported from",
            )

    def split(self, text: str, title: str, overlap_tokens: int = 0) -> list[str]:
        """See Encoder."""
        return self._split(text, title, overlap_tokens)

    def count_tokens(self, text: str) -> int:
        """See Encoder."""
        return self._tokenizer.count(text)

    def embed(self, references: Sequence[str]) -> np.ndarray:
        """See Encoder."""
        return self._embedder.embed(references)

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        """See Encoder. While a GPU writes, a thread beside it embeds, then compresses what is written already.

        A model on the processor has all cores, in step with each other: a thread beside it would hold one core up and
        with it the rest. There embedding, writing and compressing follow one another, each on all cores.
        """
        payloads = [b""] * len(references)
        if self._on_processor:
            embedded = self._embedder.embed(references)
            for places, memories in self._writer.passes(references):
                for place, payload in zip(places, self._format.encode(memories), strict=True):
                    payloads[place] = payload
            return EncodedReferences(embedded, payloads)
        with ThreadPoolExecutor(1, "beside-model") as beside:
            vectors = beside.submit(self._embedder.embed, references)
            compressing = [
                (places, beside.submit(self._format.encode, memories))
                for places, memories in self._writer.passes(references)
            ]
            for places, compressed in compressing:
                for place, payload in zip(places, compressed.result(), strict=True):
                    payloads[place] = payload
            return EncodedReferences(vectors.result(), payloads)

    def write_memories(self, references: Sequence[str]) -> list[ExplicitMemory]:
        """The model's part of `encode`, in batches: what bounds the speed of ingestion."""
        return self._writer.write(references)

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a forward pass, as the settings say or the device allows."""
        return self._writer.batch_tokens

    def check_payload(self, payload: bytes) -> None:
        """See Encoder."""
        try:
            self._format.check(payload)
        except CorruptFile as error:
            raise PayloadCorrupt(str(error), field="payload") from error


def require_files(settings: Settings) -> None:
    """What ModelEncoder will load is there and whole; raises MissingFile, CorruptFile. Hashes the bundle."""
    from memory_model.bundle import Bundle
    from memory_model.embedder import CONFIG, EmbedderConfig
    from memory_model.models.folder import ModelFolder

    folder = ModelFolder.open(settings.model)
    encoding_codec(settings, folder)
    _ = folder.checkpoint
    if settings.bundle is not None:
        Bundle.open(settings.bundle)
    EmbedderConfig.read(embedder_folder(settings) / CONFIG)


def memory_writer(loaded: LoadedModel, settings: Settings) -> MemoryWriter:
    """The writer on the device and with the batches that the settings say; raises InvalidInput for no device."""
    import torch

    from memory_model.nn.writing import MemoryWriter, writing_device

    device = writing_device(settings.writing_device)
    loaded.model.to(device)
    return MemoryWriter(
        loaded.model, loaded.tokenizer, precision=getattr(torch, settings.writing_precision),
        batch_tokens=settings.writing_batch_tokens,
    )  # fmt: skip


def encoding_codec(settings: Settings, folder: ModelFolder) -> MemoryCodec:
    """The codec of the payloads: the setting's own file, or the model folder's."""
    from memory_model.codec.faiss import FaissCodec

    return FaissCodec.load_encoder(settings.codec or folder.need_codec())


def embedder_folder(settings: Settings) -> Path:
    """The folder of the embedder: the setting's own, or the bundle's."""
    folder = settings.embedder or settings.bundle
    if folder is None:
        raise MissingFile("no embedder: make a bundle with `memory-model export` and name it with --bundle")
    return folder
