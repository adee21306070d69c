"""What is measured: a model with its codec, opened by name, and the knowledge base that its questions search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from memory_model.chat import ChatTemplate
from memory_model.codec.codec import ExactCodec
from memory_model.codec.faiss import FaissCodec
from memory_model.codec.payload import MemoryFormat
from memory_model.data import factbook
from memory_model.data.batches import ChatPieces
from memory_model.embedder import Embedder
from memory_model.errors import InvalidInput, MissingFile
from memory_model.eval.conditions import Evaluation
from memory_model.eval.memories import MemoryBank
from memory_model.eval.retrieval import KnowledgeBase, references_of
from memory_model.eval.rows import Row
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_base, load_model

PLAIN = "none"
"""Where an adapter is asked for: the model before any tuning, which reads no memory."""


@dataclass(frozen=True)
class Subject:
    """A model, the memories it wrote, and what stands before its prompts (nothing before a plain model's)."""

    bank: MemoryBank
    prefix: tuple[int, ...]

    @classmethod
    def of(cls, loaded: LoadedModel, memory_format: MemoryFormat) -> Subject:
        """A model that reads memories."""
        return cls(MemoryBank(loaded, memory_format), tuple(loaded.writer.prefix))

    @classmethod
    def open(cls, adapter: Path | str | None = None, codec: Path | None = None) -> Subject:
        """The default model with the shipped adapter and codec, with others, or plain (`adapter` "none")."""
        if str(adapter) == PLAIN:
            loaded = load_base()
            exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
            return cls(MemoryBank(loaded, exact), ())
        loaded = load_model(adapter=adapter)
        encoder = FaissCodec.load_encoder(codec or ModelFolder.open().need_codec())
        return cls.of(loaded, MemoryFormat(loaded.config, loaded.model_id, encoder))

    @property
    def loaded(self) -> LoadedModel:
        """The model."""
        return self.bank.loaded

    def evaluation(self, rows: Sequence[Row], conditions: Sequence[str], **options: Any) -> Evaluation:
        """An evaluation with the model's own chat template; raises InvalidInput for memories of a plain model."""
        if not self.prefix and any(c.startswith("memory") for c in conditions):
            raise InvalidInput(
                "the plain model reads no memories: score it with --conditions none,rag, or give an adapter"
            )
        template = ChatTemplate(self.loaded.chat_template, self.loaded.tokenizer)
        pieces = ChatPieces(self.loaded.tokenizer, lambda messages, prompt: template.text(messages, prompt))
        return Evaluation(self.bank, pieces.prompt, rows, prefix=self.prefix, **options)

    @contextmanager
    def half(self) -> Iterator[None]:
        """Products in bfloat16, writing's too, as tuning computes them; the layers' weights stay so afterwards.

        Autocast alone would turn every weight for every token that is generated.
        """
        for block in self.loaded.model.blocks:
            block.self_attn.bfloat16()
            block.mlp.bfloat16()
        self.loaded.writer.precision = torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield

    def about(self) -> dict[str, Any]:
        """What a report says of it: ids, heads and the bytes of codes in a full memory."""
        config, codec = self.loaded.config, self.bank.format.codec
        return {
            "model": config.name, "model_id": self.loaded.model_id, "codec_id": codec.codec_id,
            "base_id": self.loaded.base_id,
            "memory_heads": len(config.memory.heads), "memory_bytes": self.bank.format.full_bytes,
        }  # fmt: skip


def open_embedder(folder: Path, default: Path, threads: int = 1) -> Embedder:
    """The embedder in `folder`; the `default` folder is filled with the default embedder when it is missing."""
    if not folder.exists():
        if folder != default:
            raise MissingFile(f"no embedder at {folder}: make it with `memory-model export`")
        from memory_model.export.embedder import MINILM, export_embedder

        export_embedder(MINILM, folder)
    return Embedder(folder, threads=threads)


def open_knowledge_base(
    documents: Path, loaded: LoadedModel, embedder: Embedder, cache: Path,
    begin: Callable[[int], None] | None = None, progress: Callable[[int], None] | None = None,
) -> KnowledgeBase:  # fmt: skip
    """All references of a JSONL file of documents, embedded; begin: told their number first."""
    limit = loaded.config.memory.reference_tokens
    references = references_of(factbook.read_jsonl(documents), loaded.tokenizer, limit)
    if begin is not None:
        begin(len(references))
    return KnowledgeBase.of(references, embedder, cache, progress)
