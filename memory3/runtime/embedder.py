"""Text to query vectors on ONNX Runtime: the service indexes references by them and a device sends them.

    embedder.onnx(.data), embedder_tokenizer.json, embedder.json

Torch-free. `memory_model.export.embedder` writes the three from a Hugging Face folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.runtime.onnx_runtime import ort
from memory3.text.tokenizer import read_backend, well_formed, without_word_cache

MODEL, TOKENIZER, CONFIG = "embedder.onnx", "embedder_tokenizer.json", "embedder.json"
POOLINGS = ("mean", "cls")
SENTENCE_OUTPUTS = ("sentence_embedding", "dense_vecs")
TOKEN_OUTPUTS = ("token_embeddings", "last_hidden_state")
"""Names of a published graph's outputs: one vector a text, or one a token, which are pooled here."""
CHARACTERS_PER_TOKEN = 40
"""A text is cut to `max_tokens` times this before tokenizing, so that a huge one costs no time."""
BATCH_TEXTS = 8
"""What a larger batch computes leaves a processor's cache."""
ExecutionProviders = Sequence[tuple[str, Mapping[str, str]]]
"""ONNX Runtime's names of execution providers with their options, the preferred one first."""
CPU_ALONE: ExecutionProviders = (("CPUExecutionProvider", {}),)
_REMEDY = "export the embedder again (`memory-model export`)"


@dataclass(frozen=True)
class EmbedderConfig:
    """Content of `embedder.json`.

    embedder_id: SHA-256 (hex) of the source weights, tokenizer and pooling, not of precision and max_tokens: a device
    with int8 weights queries a service that indexed with float32. max_tokens: longer texts are cut. dim: width of a
    vector. precision: of the weights, float32 or int8. source: the files that were read.
    """

    name: str
    embedder_id: str
    pooling: str
    max_tokens: int
    dim: int
    precision: str
    source: str

    def __post_init__(self) -> None:
        """Raise InvalidInput for values that no embedder has."""
        if self.pooling not in POOLINGS:
            raise InvalidInput(f"pooling must be one of {POOLINGS}, not {self.pooling!r}")

    def to_json(self) -> str:
        """The content of `embedder.json`."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> EmbedderConfig:
        """Inverse of `to_json`; raises MissingFile, CorruptFile."""
        if not path.is_file():
            raise MissingFile(f"no embedder in {path.parent}, {path.name} is missing: make it by `memory-model export`")
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise CorruptFile(f"{path} is not an embedder's config: {error}: {_REMEDY}") from error


class Embedder:
    """Embeds texts. Thread-safe: the session is, and nothing else changes.

    folder: a bundle, or another folder with the three files. threads: intra-op threads; next to a decoder or many
    requests more than one only contend. execution_providers: what runs an embedder of float32; products of int8 have
    kernels on the CPU alone. Vectors of equal embedder_id can be compared. Raises MissingFile, CorruptFile.
    """

    def __init__(
        self, folder: str | Path, *, threads: int = 1, execution_providers: ExecutionProviders = CPU_ALONE
    ) -> None:
        self.folder = Path(folder)
        for name in (MODEL, TOKENIZER, CONFIG):
            if not (self.folder / name).is_file():
                raise MissingFile(f"no embedder in {self.folder}, {name} is missing: make it by `memory-model export`")
        self.config = config = EmbedderConfig.read(self.folder / CONFIG)
        self.dim, self.name, self.embedder_id = config.dim, config.name, config.embedder_id
        self._session = self._open(threads, execution_providers if config.precision == "float32" else CPU_ALONE)
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._output = self._choose_output()
        self._tokenizer = self._read_tokenizer()

    def _open(self, threads: int, execution_providers: ExecutionProviders) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = self.folder / MODEL
        try:
            session = ort.InferenceSession(str(path), options, providers=list(execution_providers))
        except Exception as error:  # the runtime has no common class for its errors
            file_sha256(path)  # OSError: it cannot be read at the moment
            raise CorruptFile(f"{path} is not a usable ONNX file: {error}: {_REMEDY}") from error
        made_for = session.get_modelmeta().custom_metadata_map.get("embedder_id", self.config.embedder_id)
        if made_for != self.config.embedder_id:
            raise CorruptFile(f"{path} is of another embedder than {CONFIG} next to it: {_REMEDY}")
        return session

    def _choose_output(self) -> str:
        path, outputs = self.folder / MODEL, {o.name: o.shape for o in self._session.get_outputs()}
        name = next((n for n in (*SENTENCE_OUTPUTS, *TOKEN_OUTPUTS) if n in outputs), "")
        if not name or (isinstance(outputs[name][-1], int) and outputs[name][-1] != self.dim):
            raise CorruptFile(f"{path} returns {outputs}, not vectors of {self.dim} as in {CONFIG}: {_REMEDY}")
        return name

    def _read_tokenizer(self) -> Tokenizer:
        tokenizer = without_word_cache(read_backend(self.folder / TOKENIZER))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.config.max_tokens)
        pads = [tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>")]
        self._pad_id = next((int(p) for p in pads if p is not None), 0)
        return tokenizer

    @property
    def vectors_id(self) -> str:
        """SHA-256 (hex) that covers precision and max_tokens too: equal ids give equal vectors."""
        return hashlib.sha256(self.config.to_json().encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of `texts`, float32 [n, dim], of unit length; an empty list gives [0, dim].

        Texts of similar length share a batch. Raises InvalidInput for anything that is not a list of str.
        """
        if isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
            raise InvalidInput("embed takes a sequence of str")
        vectors = np.empty((len(texts), self.dim), np.float32)
        limit = self.config.max_tokens * CHARACTERS_PER_TOKEN
        clean = [well_formed(t[:limit]) for t in texts]
        # A single text needs none of the library's threads, where something of every tokenizer stays for good.
        encodings = map(self._tokenizer.encode, clean) if len(clean) < 2 else self._tokenizer.encode_batch(clean)
        texts_by_length = sorted(enumerate(encodings), key=lambda pair: len(pair[1]))
        for start in range(0, len(texts_by_length), BATCH_TEXTS):
            rows, batch = zip(*texts_by_length[start : start + BATCH_TEXTS], strict=True)
            vectors[list(rows)] = self._run(batch)
        return vectors

    def _run(self, batch: Sequence[Encoding]) -> np.ndarray:
        for encoding in batch:
            encoding.pad(len(batch[-1]), pad_id=self._pad_id)  # the last one is the longest
        ids, mask = (np.array([getattr(e, name) for e in batch], np.int64) for name in ("ids", "attention_mask"))
        feeds: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feeds["token_type_ids"] = np.zeros_like(ids)
        vectors = np.asarray(self._session.run([self._output], feeds)[0], np.float32)
        if self._output in TOKEN_OUTPUTS:
            vectors = pool(vectors, mask, self.config.pooling)
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(length, 1e-12))


def pool(tokens: np.ndarray, mask: np.ndarray, pooling: str) -> np.ndarray:
    """One vector a text [n, dim] from token vectors [n, width, dim]: the first token's, or the mean."""
    if pooling == "cls":
        return tokens[:, 0]
    weights = mask[:, :, None].astype(np.float32)
    return np.asarray((tokens * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9))
