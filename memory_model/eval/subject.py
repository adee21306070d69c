"""The subject of an evaluation: a model, the memories that it wrote, and the prefix of its prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from memory3.codec.codec import ExactCodec, MemoryCodec
from memory3.codec.loading import load_codec
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.runtime.answerability import AnswerabilityProbe
from memory3.text.refusal import Refusal
from memory_model.eval.written import WrittenMemories
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_base, load_model
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.fused import product_type, products
from memory_model.nn.writing import stack_memories, writing_device

PLAIN = "none"
"""In place of an adapter: the model before any tuning, which reads no memory."""


class MemoryBank:
    """Memories by reference text, for one model and one codec. One thread at a time.

    Each reference is written once, when it is read first. Coded memories are kept as payloads and decoded when they
    are read, because an exact one of SmolLM2-135M takes ten times the room. keeps_exact: keep memories as they
    were before the codec too, for `read(…, exact=True)`. written: memories as they were written, of earlier runs too.
    """

    def __init__(self, loaded: LoadedModel, memory_format: MemoryFormat) -> None:
        self.loaded, self.format, self.keeps_exact = loaded, memory_format, False
        self.written: WrittenMemories | None = None
        self._payloads: dict[str, bytes] = {}
        self._exact: dict[str, ExplicitMemory] = {}

    def decoded(self, references: Sequence[str]) -> list[ExplicitMemory]:
        """The memories of references, as they are after the codec."""
        self.write(references)
        return self.format.decode([self._payloads[text] for text in references])

    def read(self, references: Sequence[Sequence[str]], *, exact: bool = False) -> MemoryBatch:
        """Memories [B, 1, m] of B conversations, each a list of references."""
        texts = list(dict.fromkeys(text for row in references for text in row))
        self.write(texts)
        found = [self._exact[text] for text in texts] if exact else self.decoded(texts)
        memories = dict(zip(texts, found, strict=True))
        return stack_memories([[memories[text] for text in row] for row in references], self.loaded.config)

    def write(self, references: Sequence[str]) -> None:
        """Write those that are not written yet."""
        known = self._exact if self.keeps_exact else self._payloads
        todo = [text for text in dict.fromkeys(references) if text not in known]
        write = self.loaded.writer.write
        memories = self.written.of(todo, write, self.loaded.writer.precision) if self.written else write(todo)
        self._payloads |= dict(zip(todo, self.format.encode(memories), strict=True))
        if self.keeps_exact:
            self._exact |= dict(zip(todo, memories, strict=True))


@dataclass(frozen=True)
class Subject:
    """A model with its memories. prefix: token ids before every prompt; none before a plain model's."""

    bank: MemoryBank
    prefix: tuple[int, ...]
    refusal: Refusal = field(default_factory=Refusal)
    probe: AnswerabilityProbe | None = None

    @classmethod
    def of(cls, loaded: LoadedModel, codec: MemoryCodec | None = None, *, probed: bool = True) -> Subject:
        """A model that reads memories; without a codec they are as they were written. probed: as `open`."""
        memory_format = MemoryFormat(loaded.config, loaded.model_id, codec or ExactCodec(loaded.config.head_dim))
        bank, probe = MemoryBank(loaded, memory_format), loaded.probe if probed else None
        return cls(bank, tuple(loaded.writer.prefix), loaded.folder.refusal, probe)

    @classmethod
    def open(
        cls,
        model: Path | None = None,
        adapter: Path | str | None = None,
        codec: Path | None = None,
        *,
        device: str = "cpu",
        coded: bool = True,
        probed: bool = True,
    ) -> Subject:
        """A model folder (None: the packaged default), with its own adapter and codec or with others, on a device.

        adapter "none": the plain base model, which reads no memory. coded: whether memories are read through the codec;
        else the folder needs none. probed: whether the folder's probe of refusals is used; else it is not even read.
        """
        on = writing_device(device)
        folder = ModelFolder.open(model)
        if str(adapter) == PLAIN:
            plain = load_base(folder)
            plain.model.to(on)
            return cls(cls.of(plain).bank, ())
        encoder = load_codec(codec or folder.need_codec()) if coded else None
        loaded = load_model(folder, adapter, codec=encoder)
        loaded.model.to(on)
        return cls.of(loaded, encoder, probed=probed)

    @property
    def loaded(self) -> LoadedModel:
        """The model."""
        return self.bank.loaded

    def prompt(self, question: str) -> list[int]:
        """One question as token ids in the model's own chat template, ready to be answered."""
        return self.loaded.chat.prompt([{"role": "user", "content": question}]).ids

    @contextmanager
    def computing(self, precision: str = "auto") -> Iterator[str]:
        """Products, writing's too, in float32, or with auto in the type that tuning computes in; gives its name.

        The layers' weights stay so: autocast alone would convert every weight for every token that is generated.
        """
        tuned, device = precision == "auto", self.loaded.model.embed_tokens.weight.device.type
        kind = product_type(device) if tuned else torch.float32
        for block in self.loaded.model.blocks if tuned else []:
            block.self_attn.to(kind)
            block.mlp.to(kind)
        self.loaded.writer.precision = kind
        with products(device) if tuned else nullcontext():
            yield str(kind).removeprefix("torch.")

    def about(self) -> dict[str, Any]:
        """What a result follows from: ids, template and the bytes of codes in a full memory."""
        return {
            "model": self.loaded.config.name,
            "model_id": self.loaded.model_id,
            "codec_id": self.bank.format.codec.codec_id,
            "template": sha256(self.loaded.chat_template.encode()).hexdigest()[:16],
            "memory_bytes": self.bank.format.full_bytes,
            "reads_memory": bool(self.prefix),
            "refusal": asdict(self.refusal),
            **({"probe": self.probe.digest} if self.probe else {}),
        }
