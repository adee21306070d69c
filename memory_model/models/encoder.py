"""A BERT or XLM-R as a Hugging Face folder: shape, pooling and tokenizer checked before any weight is read.

What is not supported is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput
from memory3.runtime.embedder import POOLINGS
from memory_model.models.huggingface import read_tokenizer
from memory_model.models.tensor_files import Weights, open_tensors, read_json

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert", "roberta", "xlm-roberta"),
    "hidden_act": ("gelu", None),
    "position_embedding_type": ("absolute", None),
}
"""Values of config.json; None where it may be left out."""
WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"

_ADVICE = "it is no Hugging Face folder of a BERT or XLM-R"
_log = logging.getLogger(__name__)


@dataclass
class EncoderModel:
    """An encoder's shape, as in config.json, and its tensors, read when they are needed.

    positions: tokens of the longest text. first_position: row of the position table of its first token, 2 for XLM-R, 0
    for BERT. prefix: what the files put before every name ("roberta."). digests: SHA-256 of each tensor that was read.
    """

    name: str
    tensors: Weights
    prefix: str
    vocabulary: int
    dim: int
    positions: int
    layers: int
    heads: int
    epsilon: float
    first_position: int
    pooling: str
    digests: dict[str, str] = field(default_factory=dict)

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32."""
        value = np.ascontiguousarray(self.tensors.read(self.prefix + name).float().numpy())
        self.digests[name] = hashlib.sha256(str(value.shape).encode() + b"\n").hexdigest()
        self.digests[name] += hashlib.sha256(value.data).hexdigest()
        return value

    def identity(self, tokenizer: Path) -> str:
        """embedder_id, once all tensors were read: the same for every layout and precision of the same weights."""
        shape = [self.layers, self.heads, self.epsilon, self.first_position, self.pooling]
        made_from = [shape, sorted(self.digests.items()), file_sha256(tokenizer)]
        return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()


def read_encoder(folder: str | Path, called: str) -> EncoderModel:
    """Shape and tensors of a Hugging Face folder, checked against each other; no tensor is read. called: its name.

    Raises MissingFile, CorruptFile, InvalidInput.
    """
    folder = Path(folder)
    config = read_json(folder / "config.json", advice=_ADVICE)
    kind = config.get("model_type")
    for key, known in SUPPORTED.items():
        if config.get(key) not in known:
            found, supported = config.get(key), ", ".join(filter(None, known))
            raise InvalidInput(f"{folder} has {key} {found!r}, supported: {supported}")
    try:
        dim, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        vocabulary, positions = int(config["vocab_size"]), int(config["max_position_embeddings"])
        types = int(config.get("type_vocab_size", 2))
        epsilon = float(config.get("layer_norm_eps", 1e-12))
        first = first_position(config)
        if dim % heads:
            raise ValueError(f"{heads} heads do not share {dim} numbers evenly")
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CorruptFile(f"{folder}/config.json lacks the model's shape: {error!r}") from error
    tensors = open_tensors(folder)
    prefixes = [n.removesuffix(WORDS) for n in tensors.shapes if n.endswith(WORDS)]
    if len(prefixes) != 1:
        raise CorruptFile(f"{folder} has {len(prefixes)} tensors {WORDS}, expected one")
    expected = {WORDS: (vocabulary, dim), POSITIONS: (positions, dim), TYPES: (types, dim)}
    every = expected.items() | _layer_shapes(layers, dim, inner).items()
    tensors.require({prefixes[0] + name: shape for name, shape in sorted(every)}, folder)
    lengths, pooling = positions - first, pooling_of(folder, str(kind))
    return EncoderModel(called, tensors, prefixes[0], vocabulary, dim, lengths, layers, heads, epsilon, first, pooling)


def first_position(config: dict[str, Any]) -> int:
    """Row of the position table of a text's first token: RoBERTa's count from behind that of padding."""
    return 0 if config["model_type"] == "bert" else int(config.get("pad_token_id", 1)) + 1


def _layer_shapes(layers: int, dim: int, inner: int) -> dict[str, tuple[int, ...]]:
    square = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    linears = dict.fromkeys(square, (dim, dim))
    linears |= {"intermediate.dense": (inner, dim), "output.dense": (dim, inner)}
    norms = ["embeddings.LayerNorm"]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        for part, shape in linears.items():
            shapes |= {f"{at}.{part}.weight": shape, f"{at}.{part}.bias": shape[:1]}
    for norm in norms:
        shapes |= {f"{norm}.weight": (dim,), f"{norm}.bias": (dim,)}
    return shapes


def pooling_of(folder: Path, kind: str) -> str:
    """Cls or mean, as in sentence-transformers' files; raises InvalidInput for another pooling or module."""
    if (folder / "modules.json").is_file():
        modules = read_json(folder / "modules.json", list)
        types = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        if unknown := sorted({*types} - {"Transformer", "Pooling", "Normalize"}):
            raise InvalidInput(f"{folder} has modules that are not supported: {', '.join(unknown)}")
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        pooling = "cls" if kind == "xlm-roberta" else "mean"
        _log.warning("%s has no 1_Pooling/config.json: %s pooling, as most %s have", folder, pooling, kind)
        return pooling
    config = read_json(path)
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    modes = [flags.get(k, k) for k, v in config.items() if k.startswith("pooling_mode_") and v]
    modes = modes or [str(config.get("pooling_mode"))]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise InvalidInput(f"{path} has {', '.join(modes)}, supported: {' or '.join(POOLINGS)}")
    return modes[0]


def fitting_tokenizer(folders: Sequence[Path], rows: int) -> Path:
    """tokenizer.json whose ids all have one of the word table's rows; raises MissingFile, CorruptFile, InvalidInput."""
    path = next((p for f in folders if (p := f / "tokenizer.json").is_file()), folders[0] / "tokenizer.json")
    read_tokenizer(path, rows)
    return path
