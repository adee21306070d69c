"""Read a Llama-layout GGUF file: shape, weights in Hugging Face's layout, tokenizer and chat template.

GGUF stores `attn_q` and `attn_k` with their rows permuted for interleaved rotary embedding; the rest of
this project rotates halves, so those rows are put back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from memory_model.config import ModelConfig
from memory_model.errors import CorruptFile, InvalidInput, MissingFile

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}


class GgufCheckpoint:
    """One opened GGUF file. Opening reads the header only; `weights` dequantizes everything (float32)."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no GGUF file at {path}: run `make setup`, which installs the base weights")
        try:
            self._reader = GGUFReader(str(path))
            self._fields = {k: f for k, f in self._reader.fields.items() if f.types}
            end = max(int(t.data_offset) + int(t.n_bytes) for t in self._reader.tensors)
        except Exception as error:  # the reader meets damage with whatever numpy raises
            raise CorruptFile(f"{path} is not a readable GGUF file: {error}") from error
        if path.stat().st_size < end:
            raise CorruptFile(f"{path} is truncated: {path.stat().st_size} bytes, its tensors end at {end}")
        self.path = path

    def field(self, key: str) -> Any:
        """A metadata value; raises CorruptFile when the file lacks it."""
        if key not in self._fields:
            raise CorruptFile(f"{self.path} has no field {key}")
        return self._fields[key].contents()

    def config(self, name: str) -> ModelConfig:
        """The model's shape, with an empty memory budget."""
        if self.field("general.architecture") != "llama":
            raise InvalidInput(
                f"{self.path}: architecture {self.field('general.architecture')} is not Llama-like"
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
        )

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights, float32, named and laid out as Hugging Face's Llama does."""
        config = self.config("gguf")
        result = {}
        for tensor in self._reader.tensors:
            shape = tuple(int(n) for n in reversed(tensor.shape))
            array = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)
            name = _hugging_face_name(tensor.name)
            if name.endswith("q_proj.weight"):
                array = _unpermute(array, config.query_heads)
            elif name.endswith("k_proj.weight"):
                array = _unpermute(array, config.kv_heads)
            result[name] = torch.from_numpy(np.ascontiguousarray(array))
        return result

    def chat_template(self) -> str:
        """The Jinja chat template stored in the file."""
        return str(self.field("tokenizer.chat_template"))

    def tokenizer_json(self) -> str:
        """The byte-level BPE tokenizer rebuilt as the text of a `tokenizer.json`, with sorted keys."""
        if self.field("tokenizer.ggml.model") != "gpt2":
            raise InvalidInput(f"{self.path}: only byte-level BPE tokenizers are read from GGUF")
        tokens, types = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        merges = [tuple(m.split(" ", 1)) for m in self.field("tokenizer.ggml.merges")]
        backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        control = [t for t, kind in zip(tokens, types, strict=True) if kind == 3]
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
        return json.dumps(json.loads(backend.to_str()), sort_keys=True, ensure_ascii=False)


def _hugging_face_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        if part in _LAYER_NAMES:
            return f"layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"
    elif stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    raise InvalidInput(f"tensor {name} does not belong to a Llama-like model")


def _unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of [heads * d, in] from interleaved (x0 y0 x1 y1 …) back to halves (x0 x1 … y0 y1 …)."""
    out, width = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)
