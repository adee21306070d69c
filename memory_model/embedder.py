"""Text to query vectors on ONNX Runtime: what the service indexes references by and a device asks with.

Knows nothing about how the ONNX file was made (`memory_model.export.embedder`). Three file layouts:

    ours         embedder.onnx, embedder_tokenizer.json, embedder.json
    BGE-M3's     onnx/model.onnx + onnx/model.onnx_data + tokenizer.json, as published
    one file     a path to an .onnx file of either, its tokenizer beside it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.tokenizer import without_word_cache

POOLINGS = ("mean", "cls")
CHARACTERS_PER_TOKEN = 40
"""A text is cut to `max_tokens` times this before tokenizing, so that a huge one costs no time."""


@dataclass(frozen=True)
class EmbedderConfig:
    """What `embedder.json` says: how token vectors become one vector.

    `max_tokens`: longer texts are cut. `dim`: width of the vector.
    """

    name: str
    pooling: str
    normalize: bool
    max_tokens: int
    dim: int

    def __post_init__(self) -> None:
        """Refuse what no embedder can be."""
        if self.pooling not in POOLINGS:
            raise InvalidInput(f"pooling must be one of {POOLINGS}, not {self.pooling!r}")
        if self.max_tokens < 1 or self.dim < 1:
            raise InvalidInput(f"max_tokens and dim must be positive, not {self.max_tokens} and {self.dim}")

    def to_json(self) -> str:
        """The content of `embedder.json`."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


@dataclass(frozen=True)
class EmbedderFiles:
    """Where an embedder's parts lie; `weights` are external data files that `model` names."""

    model: Path
    tokenizer: Path
    config: Path | None
    weights: tuple[Path, ...] = ()


def find_embedder(path: str | Path) -> EmbedderFiles:
    """Recognise one of the layouts at `path`, a folder or an .onnx file; raises MissingFile."""
    path = Path(path)
    candidates = [path]
    if path.suffix != ".onnx" or path.is_dir():
        candidates = [path / "embedder.onnx", path / "onnx" / "model.onnx", path / "model.onnx"]
    model = next((c for c in candidates if c.is_file()), None)
    if model is None:
        raise MissingFile(
            f"no embedder at {path} (looked for {', '.join(str(c) for c in candidates)}): "
            "make it with `memory-model export`"
        )
    tokenizers = [folder / name for folder in (model.parent, model.parent.parent)
                  for name in (f"{model.stem}_tokenizer.json", "tokenizer.json")]  # fmt: skip
    tokenizer = next((t for t in tokenizers if t.is_file()), None)
    if tokenizer is None:
        raise MissingFile(f"the embedder {model} has no tokenizer.json beside it")
    config = model.with_suffix(".json")
    weights = sorted(w for w in (*model.parent.glob("*_data"), *model.parent.glob("*.data"),
                                 *model.parent.glob("Constant_*")) if _belongs(w, model))  # fmt: skip
    return EmbedderFiles(model, tokenizer, config if config.is_file() else None, tuple(weights))


def _belongs(weights: Path, model: Path) -> bool:
    # A published graph keeps the names of its weights when it is copied under our name.
    names = (f"{model.name}_data", f"{model.name}.data", "model.onnx_data")
    return weights.name.startswith("Constant_") or weights.name in names


class Embedder:
    """Embeds texts; may be shared by threads (the session is thread-safe and nothing else changes).

    `path`: a folder or an .onnx file. `threads`: intra-op threads; one by default, because beside a
    decoder or many requests more only contend. Raises MissingFile, CorruptFile.
    """

    def __init__(self, path: str | Path, *, threads: int = 1) -> None:
        self.files = find_embedder(path)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            model = str(self.files.model)
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has no common class for its errors
            raise CorruptFile(f"{self.files.model} is not a usable ONNX file: {error}") from error
        self._inputs = {i.name for i in self._session.get_inputs()}
        outputs = {o.name: o.shape for o in self._session.get_outputs()}
        if "input_ids" not in self._inputs or "attention_mask" not in self._inputs:
            raise CorruptFile(
                f"{self.files.model} takes {sorted(self._inputs)}, not input_ids and attention_mask"
            )
        names = [n for n in ("sentence_embedding", "token_embeddings", "last_hidden_state") if n in outputs]
        if not names:
            raise CorruptFile(f"{self.files.model} gives {sorted(outputs)}, no sentence or token embeddings")
        self._output = names[0]
        self.config = self._read_config(outputs[self._output][-1])
        self._tokenizer = self._read_tokenizer()

    def _read_config(self, width: Any) -> EmbedderConfig:
        if self.files.config is None:  # BGE-M3 as published: first token, unit length; dim from the file
            width = width if isinstance(width, int) else self._hidden_size()
            return EmbedderConfig(name="bge-m3", pooling="cls", normalize=True, max_tokens=512, dim=width)
        try:
            return EmbedderConfig(**json.loads(self.files.config.read_text()))
        except (TypeError, ValueError) as error:
            raise CorruptFile(f"{self.files.config} is not an embedder's config: {error}") from error

    def _hidden_size(self) -> int:
        for folder in (self.files.model.parent, self.files.model.parent.parent):
            if (folder / "config.json").is_file():
                return int(json.loads((folder / "config.json").read_text())["hidden_size"])
        raise MissingFile(f"{self.files.model} does not say its width and has no config.json beside it")

    def _read_tokenizer(self) -> Tokenizer:
        try:
            tokenizer = without_word_cache(Tokenizer.from_file(str(self.files.tokenizer)))
        except Exception as error:  # the library raises a bare Exception
            raise CorruptFile(f"{self.files.tokenizer} is not a tokenizer file: {error}") from error
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.config.max_tokens)
        pads = [tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>")]
        self._pad_id = next((int(p) for p in pads if p is not None), 0)
        return tokenizer

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.config.dim

    @property
    def name(self) -> str:
        """What the embedder is called, for people."""
        return self.config.name

    @cached_property
    def embedder_id(self) -> str:
        """SHA-256 (hex) over model, external weights, tokenizer and config: equal ids give equal vectors."""
        digest = hashlib.sha256(self.config.to_json().encode())
        for path in (self.files.model, *self.files.weights, self.files.tokenizer):
            digest.update(file_sha256(path).encode())
        return digest.hexdigest()

    def embed(self, texts: Sequence[str], *, batch_size: int = 8) -> np.ndarray:
        """Vectors of `texts`, float32 [n, dim], of unit length; an empty list gives [0, dim].

        Texts of similar length share a batch; what a larger one computes leaves a processor's cache. Raises
        InvalidInput for anything that is not a list of str.
        """
        if isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
            raise InvalidInput("embed takes a sequence of str")
        if batch_size < 1:
            raise InvalidInput(f"batch_size must be positive, not {batch_size}")
        vectors = np.empty((len(texts), self.dim), np.float32)
        limit = self.config.max_tokens * CHARACTERS_PER_TOKEN
        clean = [_well_formed(t[:limit]) for t in texts]
        # A single text needs none of the library's threads, where something of every tokenizer stays for good.
        encodings = (
            map(self._tokenizer.encode, clean) if len(clean) < 2 else self._tokenizer.encode_batch(clean)
        )
        tokens = [encoding.ids for encoding in encodings]
        for rows in _batches([len(t) for t in tokens], batch_size):
            vectors[rows] = self._run([tokens[i] for i in rows])
        return vectors

    def _run(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        width = max(map(len, tokens))
        ids = np.full((len(tokens), width), self._pad_id, np.int64)
        mask = np.zeros((len(tokens), width), np.int64)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feeds["token_type_ids"] = np.zeros_like(ids)
        vectors = np.asarray(self._session.run([self._output], feeds)[0], np.float32)
        if vectors.ndim == 3:
            vectors = pool(vectors, mask, self.config.pooling)
        if self.config.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


def pool(tokens: np.ndarray, mask: np.ndarray, pooling: str) -> np.ndarray:
    """One vector a text [n, dim] from token vectors [n, width, dim]: the first token's, or the mean."""
    if pooling == "cls":
        return tokens[:, 0]
    weights = mask[:, :, None].astype(np.float32)
    return (tokens * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)


def _batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _well_formed(text: str) -> str:
    # A lone surrogate is legal in a Python str and cannot be passed to the tokenizer.
    return text.encode("utf-8", "replace").decode("utf-8")
