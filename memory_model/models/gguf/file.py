"""One opened GGUF model: what a Hugging Face folder gives, from a file or the parts of a split one."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from tokenizers import Tokenizer

from memory3.config import ModelConfig, weight_shapes
from memory3.errors import CorruptFile, InvalidInput
from memory3.text.tokenizer import SpecialTokens
from memory_model.models import tensor_files
from memory_model.models.gguf.blocks import dequantized, require_readable
from memory_model.models.gguf.header import StoredTensor, part_files, read_header, stem_of
from memory_model.models.gguf.shape import INTERLEAVED, ROPE_FACTORS, shape_of
from memory_model.models.gguf.tokenizer import rebuilt_tokenizer, special_tokens_of
from memory_model.models.tensor_files import Weights

_TOKEN_TABLE, _OUTPUT_TABLE = "token_embd.weight", "output.weight"
_COMPARED_ROWS = 64
_SAME_TABLE = 0.9
"""Cosine similarity of rows from which two tables are copies of one, quantised differently; other tables have none."""


class GgufFile:
    """Opening reads headers only; a tensor is dequantised when it is read.

    Raises MissingFile, CorruptFile or InvalidInput before weights are read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.files = part_files(self.path)
        self._header = read_header(self.files)
        self.name = stem_of(self.path)

    def field(self, key: str) -> Any:
        """A metadata value; raises CorruptFile when the file lacks it."""
        if key not in self._header.fields:
            raise CorruptFile(f"{self.path} has no field {key}")
        return self._header.fields[key]

    def config(self, name: str) -> ModelConfig:
        """The model's shape, with an empty memory budget."""
        return shape_of(self._header, self.path, name, tied=self._tied)

    def weights(self) -> Weights:
        """The weights by their Hugging Face names, float32, or bfloat16 where those would be large.

        Raises CorruptFile, InvalidInput.
        """
        config, kind = self.config(self.name), self.field("general.architecture")
        wide = 4 * config.parameters() <= tensor_files.FLOAT32_BYTES
        names = get_tensor_name_map(_architecture_number(kind), config.layers)
        own = {names.get_name(name, (".weight", ".bias")): name for name in weight_shapes(config)}
        stored = {n: t for n, t in self._header.tensors.items() if n != ROPE_FACTORS}
        if config.tied_embeddings and _OUTPUT_TABLE in stored:
            output = stored.pop(_OUTPUT_TABLE)
            stored[_TOKEN_TABLE] = max(output, stored[_TOKEN_TABLE], key=lambda tensor: tensor.bits)
        tensors = {own.get(name, name): tensor for name, tensor in stored.items()}
        for tensor in tensors.values():
            require_readable(tensor, self.path)
        dtype = torch.float32 if wide else torch.bfloat16
        permuted = {"q_proj": config.query_heads, "k_proj": config.kv_heads} if kind in INTERLEAVED else {}

        def read(name: str) -> torch.Tensor:
            values = dequantized(tensors[name], dtype)
            self._header.release()
            heads = permuted.get(name.rpartition("self_attn.")[2].partition(".")[0])
            return half_rotation(values, heads) if heads else values

        def rows(name: str, chosen: np.ndarray) -> torch.Tensor:
            values = dequantized(tensors[name].rows(chosen), dtype)
            self._header.release()
            return values

        return Weights({name: tensor.shape for name, tensor in tensors.items()}, read, rows).check(config, self.path)

    @property
    def chat_template(self) -> str:
        """The Jinja chat template stored in the file; empty where there is none."""
        return str(self._header.fields.get("tokenizer.chat_template") or "")

    @cached_property
    def tokenizer_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`, with sorted keys; raises InvalidInput."""
        return json.dumps(json.loads(self._backend.to_str()), sort_keys=True, ensure_ascii=False)

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """From the metadata, completed by the usual names."""
        return special_tokens_of(self._header.fields, self._backend, self.path)

    @cached_property
    def _backend(self) -> Tokenizer:
        return rebuilt_tokenizer(self._header.fields, self.path)

    @cached_property
    def _tied(self) -> bool:
        """Whether input and output share a table: quantisers often store a second, finer copy of it for the output."""
        tensors = self._header.tensors
        if _OUTPUT_TABLE not in tensors or _TOKEN_TABLE not in tensors:
            return True
        return _same_table(tensors[_TOKEN_TABLE], tensors[_OUTPUT_TABLE], self.path)


def half_rotation(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of [heads * d, …] from interleaved (x0 y0 x1 y1 …) back to halves (x0 x1 … y0 y1 …)."""
    pairs = rows.unflatten(0, (heads, rows.shape[0] // heads // 2, 2))
    return pairs.transpose(1, 2).reshape(rows.shape).contiguous()


def _same_table(one: StoredTensor, other: StoredTensor, path: Path) -> bool:
    """Whether rows spread over both tables are equal."""
    if one.shape != other.shape:
        raise CorruptFile(f"{path}: {one.name} has the shape {one.shape}, {other.name} {other.shape}")
    for tensor in (one, other):
        require_readable(tensor, path)
    chosen = np.linspace(0, one.shape[0] - 1, min(_COMPARED_ROWS, one.shape[0])).astype(int)
    a, b = (dequantized(tensor.rows(chosen), torch.float32) for tensor in (one, other))
    return float(torch.nn.functional.cosine_similarity(a, b).median()) > _SAME_TABLE


def _architecture_number(name: str) -> MODEL_ARCH:
    found = [number for number, own in MODEL_ARCH_NAMES.items() if own == name]
    if not found:
        raise InvalidInput(f"the installed package gguf does not support {name}: install a newer one")
    return found[0]
