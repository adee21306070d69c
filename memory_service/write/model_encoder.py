"""The encoder of a real model: embedder, model and codec.

references --embedder--> vectors float32 [n, dimension]
references --MemoryWriter--> explicit memories --MemoryFormat.encode--> payloads (bytes)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from memory3.codec.translation import header_ids, ids_in, load_translations
from memory3.errors import CorruptFile, MissingFile
from memory_service.encoder import EncodedReferences, EncoderDescription
from memory_service.errors import PayloadCorrupt
from memory_service.stores.store import WriterIdentity, require_same

if TYPE_CHECKING:
    from memory3.codec.payload import ExplicitMemory, MemoryFormat
    from memory3.codec.translation import Translation
    from memory3.runtime.embedder import Embedder
    from memory_model.models.load import LoadedModel
    from memory_service.settings import Settings


class ModelEncoder:
    """The real encoder: embedder, LLM and codec (torch). Methods: see Encoder."""

    def __init__(
        self,
        loaded: LoadedModel,
        embedder: Embedder,
        memory_format: MemoryFormat,
        translations: Sequence[Translation] = (),
    ) -> None:
        """translations: of memories that other models wrote."""
        self._writer, self._tokenizer = loaded.writer, loaded.tokenizer
        self._embedder, self._format = embedder, memory_format
        self._on_processor = loaded.model.embed_tokens.weight.device.type == "cpu"
        self._translations = {header_ids(one.old.identity): one for one in translations}
        ids, memory = memory_format.identity, loaded.config.memory
        self.description = EncoderDescription(
            WriterIdentity(
                ids.model_id, ids.codec_id, ids.memory_format_id, embedder.embedder_id, dimension=embedder.dim
            ),
            memories_per_chunk=memory.memories_per_chunk,
            reference_tokens=memory.reference_tokens,
            chunk_tokens=memory.chunk_tokens,
            model_config_json=json.dumps(loaded.config.to_dict(), sort_keys=True),
            payload_bytes=memory_format.payload_bytes(memory.reference_tokens),
            earlier=tuple(
                WriterIdentity(
                    old.model_id, old.codec_id, old.memory_format_id, embedder.embedder_id, dimension=embedder.dim
                )
                for old in (one.old.identity for one in translations)
            ),
        )

    @classmethod
    def open(cls, settings: Settings) -> ModelEncoder:
        """Loads what the settings name, which takes some seconds.

        Raises MissingFile, CorruptFile, or an IdentityMismatch when the bundle was exported from another model.
        """
        import torch

        from memory3.codec.loading import load_codec
        from memory3.codec.payload import MemoryFormat
        from memory3.files.bundle import Bundle
        from memory3.process_memory import return_free_memory
        from memory3.runtime.embedder import CONFIG, Embedder, EmbedderConfig
        from memory_model.models.folder import ModelFolder, packaged_models
        from memory_model.models.load import load_model, model_id_of
        from memory_model.nn.writing import writing_device

        # Refused before anything large is loaded.
        made = Bundle.open(settings.bundle).manifest if settings.bundle is not None else None
        of_bundle = made.name if made is not None and made.name in packaged_models() else None
        folder = ModelFolder.open(settings.model or of_bundle)
        codec = load_codec(settings.codec or folder.need_codec())
        embedder = settings.embedder or settings.bundle
        if embedder is None:
            raise MissingFile("no embedder: make a bundle with `memory-model export` and name it with --bundle")
        config, embeds = folder.config(), EmbedderConfig.read(embedder / CONFIG)
        memory_format = MemoryFormat(config, model_id_of(folder, config, folder.adapter), codec)
        if made is not None:
            # Devices would fetch a bundle whose every request is refused: better not to start.
            own, ids = f"--model {settings.model} " if settings.model else "", memory_format.identity
            require_same(
                WriterIdentity(made.model_id, made.codec_id, made.memory_format_id, made.embedder_id, embeds.dim),
                WriterIdentity(ids.model_id, ids.codec_id, ids.memory_format_id, embeds.embedder_id, embeds.dim),
                f"export the bundle again: `memory-model export {own}--out {settings.bundle}`, or serve the model "
                "folder that it was exported from",
            )
        opened = Embedder(embedder, threads=torch.get_num_threads())
        loaded = load_model(folder, codec=codec, writes_only=True)
        loaded.model.to(writing_device(settings.writing_device))
        loaded.writer.precision = getattr(torch, settings.writing_precision)
        return_free_memory()  # weights were merged in float32: 270 MB of a model of 1.5B
        return cls(loaded, opened, memory_format, load_translations(folder.path, memory_format))

    def count_tokens(self, text: str) -> int:
        """See Encoder."""
        return self._tokenizer.count(text)

    def embed(self, references: Sequence[str]) -> np.ndarray:
        """See Encoder."""
        return self._embedder.embed(references)

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        """See Encoder. While a GPU writes, another thread embeds, then compresses what is written.

        A model on the CPU uses all cores in lockstep, so another thread would delay all of them. There, embedding,
        writing and compressing run one after the other, each on all cores.
        """
        payloads = [b""] * len(references)

        def compress(indices: Sequence[int], memories: list[ExplicitMemory]) -> None:
            for index, payload in zip(indices, self._format.encode(memories), strict=True):
                payloads[index] = payload

        if self._on_processor:
            vectors = self.embed(references)
            for indices, memories in self._writer.passes(references):
                compress(indices, memories)
            return EncodedReferences(vectors, payloads)
        with ThreadPoolExecutor(1, "encoder") as executor:
            embedded = executor.submit(self.embed, references)
            compressing = [executor.submit(compress, *written) for written in self._writer.passes(references)]
            for done in compressing:
                done.result()
            return EncodedReferences(embedded.result(), payloads)

    def own(self, payload: bytes | memoryview) -> bytes | memoryview:
        """See Encoder."""
        translation = self._translations.get(ids_in(payload))
        if translation is not None:
            return translation([payload])[0]
        self._format.check(payload)
        return payload

    def is_own(self, payload: bytes | memoryview) -> bool:
        """See Encoder."""
        return ids_in(payload) == header_ids(self._format.identity)

    def check_payload(self, payload: bytes) -> None:
        """See Encoder."""
        try:
            self._format.check(payload)
        except CorruptFile as error:
            raise PayloadCorrupt(str(error), field="payload") from error
