"""Read a Llama-layout GGUF file: shape, weights in Hugging Face's layout, tokenizer and chat template.

GGUF stores `attn_q` and `attn_k` with their rows permuted for interleaved rotary embedding; the rest of
this project rotates halves, so those rows are put back.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from memory3.config import ModelConfig, weight_shapes
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.tokenizer import SpecialTokens
from memory_model.models.tensor_files import Weights

_PRE_TOKENIZERS = {
    "smollm": lambda: [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
}
"""How a text is cut before BPE, by `tokenizer.ggml.pre`. A wrong one would quietly give other tokens."""


class _Reader(GGUFReader):
    """gguf's, which cuts a vocabulary into 150,000 pieces: of a plain array in a third of the time."""

    data: Any

    def _get(self, *arguments: Any, **named: Any) -> Any:
        self.data = np.asarray(self.data)
        return super()._get(*arguments, **named)


class GgufFile:
    """One opened GGUF file. Opening reads the header only; a tensor is dequantised (float32) when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no GGUF file at {path}: run `make setup`, which installs the base weights")
        try:
            self._reader = _Reader(str(path))
            self._fields = {k: f for k, f in self._reader.fields.items() if f.types}
            end = max(int(t.data_offset) + int(t.n_bytes) for t in self._reader.tensors)
        except Exception as error:  # the reader meets damage with whatever numpy raises
            raise CorruptFile(f"{path} is not a readable GGUF file: {error}") from error
        if path.stat().st_size < end:
            raise CorruptFile(f"{path} is truncated: {path.stat().st_size} bytes, its tensors end at {end}")
        self.path, self.files = path, [path]

    def field(self, key: str) -> Any:
        """A metadata value; raises CorruptFile when the file lacks it."""
        if key not in self._fields:
            raise CorruptFile(f"{self.path} has no field {key}")
        return self._fields[key].contents()

    def config(self, name: str) -> ModelConfig:
        """The model's shape, with an empty memory budget."""
        if self.field("general.architecture") != "llama":
            raise InvalidInput(
                f"{self.path}: GGUF of architecture {self.field('general.architecture')} is not read, only llama: "
                "give the model's Hugging Face folder instead"
            )
        hidden, heads = self.field("llama.embedding_length"), self.field("llama.attention.head_count")
        names = {t.name for t in self._reader.tensors}
        return ModelConfig(
            name=name,
            layers=self.field("llama.block_count"),
            query_heads=heads,
            kv_heads=self.field("llama.attention.head_count_kv"),
            head_dim=hidden // heads,
            mlp_width=self.field("llama.feed_forward_length"),
            vocabulary=self.field("llama.vocab_size"),
            rope_base=float(self.field("llama.rope.freq_base")),
            norm_epsilon=round(float(self.field("llama.attention.layer_norm_rms_epsilon")), 9),
            tied_embeddings="output.weight" not in names,
            positions=self.field("llama.context_length"),
        )

    def weights(self) -> Weights:
        """The weights, float32, as Hugging Face's Llama has them; raises CorruptFile, InvalidInput."""
        config = self.config(self.path.stem)
        names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.layers)
        own = {names.get_name(name, (".weight",)): name for name in weight_shapes(config)}
        tensors = {own.get(tensor.name, tensor.name): tensor for tensor in self._reader.tensors}
        heads = {"q_proj.weight": config.query_heads, "k_proj.weight": config.kv_heads}

        def read(name: str) -> torch.Tensor:
            array = dequantize(tensors[name].data, tensors[name].tensor_type)
            array = array.reshape(shapes[name]).astype(np.float32)
            permuted = heads.get(name.rpartition("self_attn.")[2])
            return torch.from_numpy(np.ascontiguousarray(_unpermute(array, permuted) if permuted else array))

        shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in tensors.items()}
        return Weights(shapes, read).check(config, self.path)

    @property
    def chat_template(self) -> str:
        """The Jinja chat template stored in the file; empty where there is none."""
        key = "tokenizer.chat_template"
        return str(self.field(key)) if key in self._fields else ""

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The usual spellings among the tokens."""
        return SpecialTokens.usual(Tokenizer.from_str(self.tokenizer_json))

    @cached_property
    def tokenizer_json(self) -> str:
        """The byte-level BPE tokenizer rebuilt as the text of a `tokenizer.json`, with sorted keys."""
        pre = self.field("tokenizer.ggml.pre") if "tokenizer.ggml.pre" in self._fields else "none"
        if self.field("tokenizer.ggml.model") != "gpt2" or pre not in _PRE_TOKENIZERS:
            raise InvalidInput(
                f"{self.path}: its tokenizer ({self.field('tokenizer.ggml.model')}, pre-tokenizer {pre}) cannot be "
                f"rebuilt, only {', '.join(_PRE_TOKENIZERS)}: give the model's Hugging Face folder instead"
            )
        tokens, types = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        merges = [tuple(m.split(" ", 1)) for m in self.field("tokenizer.ggml.merges")]
        backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        backend.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre]())
        backend.decoder = decoders.ByteLevel()
        control = [t for t, kind in zip(tokens, types, strict=True) if kind == 3]
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
        return json.dumps(json.loads(backend.to_str()), sort_keys=True, ensure_ascii=False)


def _unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of [heads * d, in] from interleaved (x0 y0 x1 y1 …) back to halves (x0 x1 … y0 y1 …)."""
    out, width = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)
