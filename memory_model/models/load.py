"""Load a model folder: base weights, adapter, tokenizer, chat template and identity.

The identity covers the sources of the weights (base, adapter, shape, tokenizer), not the merged floats (decision 0004).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from memory3.codec.codec import MemoryCodec
from memory3.codec.payload import MemoryFormat
from memory3.config import MemoryConfig, ModelConfig
from memory3.digest import file_sha256
from memory3.errors import BaseMismatch, InvalidInput
from memory3.runtime.answerability import AnswerabilityProbe
from memory3.text.chat import ChatTemplate
from memory3.text.tokenizer import Tokenizer
from memory_model.models import tensor_files
from memory_model.models.folder import ModelFolder
from memory_model.nn.adapter import Adapter
from memory_model.nn.decoder import Decoder
from memory_model.nn.writing import MemoryWriter

_TABLE = "embed_tokens.weight"


class StoredTable(nn.Embedding):
    """An embedding that reads its rows when they are used: in bfloat16 that of Qwen2.5-1.5B would take 0.5 GB.

    The weight is empty; it has the type of the rows, and the device that they go to.
    """

    def __init__(self, rows: Callable[[np.ndarray], torch.Tensor], width: int, dtype: torch.dtype) -> None:
        super().__init__(0, width, _weight=torch.empty(0, width, dtype=dtype), _freeze=True)
        self._rows = rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [..., D] of int64 [...]."""
        used, index = ids.unique(return_inverse=True)
        return self._rows(used.cpu().numpy()).to(self.weight)[index]


@dataclass(frozen=True)
class LoadedModel:
    """A decoder that is ready to write and read memories."""

    model: Decoder
    tokenizer: Tokenizer
    tokenizer_json: str
    config: ModelConfig
    model_id: str
    chat_template: str
    folder: ModelFolder

    @cached_property
    def chat(self) -> ChatTemplate:
        """Conversations as tokens."""
        return ChatTemplate(self.chat_template, self.tokenizer)

    @cached_property
    def writer(self) -> MemoryWriter:
        """Writes this model's memories."""
        return MemoryWriter(self.model, self.tokenizer)

    @cached_property
    def probe(self) -> AnswerabilityProbe | None:
        """The folder's; None where it has none, and with another adapter than the folder's own.

        Raises CorruptFile, and ModelMismatch for one that was fitted for other weights.
        """
        folder = self.folder
        if folder.probe is None or self.model_id != model_id_of(folder, folder.config(), folder.adapter):
            return None
        return open_probe(folder)


def open_adapter(folder: ModelFolder, path: Path | str | None = None) -> Adapter | None:
    """An adapter file for a folder's base, by default the folder's own, None where it has none.

    Raises MissingFile, CorruptFile, BaseMismatch; InvalidInput where the folder's own is for another budget.
    """
    file = Path(path) if path else folder.adapter
    found = Adapter.load(file) if file else None
    if found and found.base_sha256 != folder.base_id:
        raise BaseMismatch(found.base_sha256, folder.base_id, "use the adapter that was tuned from these base weights")
    if found and not path and found.memory != folder.memory:
        raise InvalidInput(
            f"{file} was tuned for another memory budget than model.json lists: tune it again with "
            f"`memory-model adapt --model {folder.path}`"
        )
    return found


def open_probe(folder: ModelFolder) -> AnswerabilityProbe | None:
    """The folder's probe, None where it has none; raises CorruptFile, ModelMismatch."""
    if folder.probe is None:
        return None
    config = folder.config()
    return AnswerabilityProbe.load(folder.probe, config, model_id_of(folder, config, folder.adapter))


def model_id_of(folder: ModelFolder, config: ModelConfig, adapter: Path | None) -> str:
    """SHA-256 over what the weights follow from, none of which is loaded."""
    own = file_sha256(adapter) if adapter else ""
    sources = [config.to_dict(), folder.base_id, own, folder.checkpoint.tokenizer_json]
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def bound_product_caches() -> None:
    """Have oneDNN keep 64 kinds of products instead of 1,024; it reads this at the first product of a process.

    Each holds buffers of its own. Where every batch has other lengths, they come to 5 GB with a model of 1.5B.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def load_model(
    model: ModelFolder | Path | str | None = None,
    adapter: Path | str | None = None,
    codec: MemoryCodec | None = None,
    *,
    writes_only: bool = False,
) -> LoadedModel:
    """Base weights plus adapter, merged in float32, on the CPU, ready for inference.

    model: a model folder, by default the packaged one. adapter: a file in place of the folder's. codec: is
    refused where it does not fit, before weights are read. writes_only: load no more than writing memories needs, the
    layers up to the last one with memory heads. Raises MissingFile, CorruptFile, InvalidInput, BaseMismatch.
    """
    folder = model if isinstance(model, ModelFolder) else ModelFolder.open(model)
    file, found = Path(adapter) if adapter else folder.adapter, open_adapter(folder, adapter)
    memory = found.memory if found else folder.memory
    return _assemble(folder, memory, found, file, codec, writes_only=writes_only and bool(memory.heads))


def load_base(
    folder: ModelFolder | None = None, memory: MemoryConfig | None = None, codec: MemoryCodec | None = None
) -> LoadedModel:
    """The plain LLM without adapter and, unless `memory` is given, without memory heads: for tuning and comparison."""
    folder = folder or ModelFolder.open()
    return _assemble(folder, memory or replace(folder.memory, heads=()), None, None, codec)


def _assemble(
    folder: ModelFolder,
    memory: MemoryConfig,
    adapter: Adapter | None,
    file: Path | None,
    codec: MemoryCodec | None,
    *,
    writes_only: bool = False,
) -> LoadedModel:
    bound_product_caches()
    checkpoint = folder.checkpoint
    config = checkpoint.config(folder.name).with_memory(memory)
    if codec is not None:
        MemoryFormat(config, "", codec)
    weights = checkpoint.weights()
    tuned = adapter.shapes if adapter else {}
    if unknown := [name for name, shape in tuned.items() if weights.shapes.get(name) != shape]:
        raise InvalidInput(f"the adapter's {unknown[0].removesuffix('.weight')} does not fit this model")
    wide = 4 * config.parameters() <= tensor_files.FLOAT32_BYTES
    with torch.device("meta"):  # weights are assigned, not made and thrown away
        model = Decoder(config)
    model.set_memory(config)  # its tables of rows are values
    stored: set[str] = set()
    if writes_only:
        model.layers, model.lm_head = model.layers[: memory.memory_layers[-1] + 1], None
        del model.blocks[-1].mlp, model.blocks[-1].self_attn.o_proj  # its keys and values are all that is used
        if (rows := weights.rows) is not None:
            kind = torch.float32 if wide else rows(_TABLE, np.arange(1)).dtype
            model.embed_tokens = StoredTable(partial(rows, _TABLE), config.hidden, kind)
            stored.add(_TABLE)
    wanted, state = model.state_dict().keys() - stored, {}
    for name in filter(wanted.__contains__, weights.shapes):
        tensor = weights.read(name)
        kept = torch.float32 if wide else tensor.dtype
        state[name] = (tensor.float() + adapter.added_to(name) if adapter and name in tuned else tensor).to(kept)
    model.load_state_dict(state, assign=True, strict=False)
    model.eval().requires_grad_(False)
    text, model_id = checkpoint.tokenizer_json, model_id_of(folder, config, file)
    return LoadedModel(model, folder.tokenizer, text, config, model_id, folder.chat_template, folder)
