"""A Hugging Face folder: config, weights (safetensors or pytorch_model.bin, sharded or not), tokenizer, chat template.

Opening reads headers only; a tensor is read when it is asked for, in the type that it is stored in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from torch import Tensor

from memory_model.config import ModelConfig, weight_shapes
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.models.architectures import config_of
from memory_model.models.tensor_files import TensorFiles, weight_files
from memory_model.tokenizer import SpecialTokens

_PREFIX = "model."
_UNUSED = ("rotary_emb.inv_freq",)
"""Tensors that old files carry beside the weights: they follow from the config."""
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


class HuggingFaceFolder:
    """A base model as it is published. Raises MissingFile, CorruptFile or InvalidInput before weights are read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._config = self._json("config.json", "give a Hugging Face folder, or a .gguf file")
        self._shards = weight_files(self.path)

    def config(self, name: str) -> ModelConfig:
        """The model's shape, with an empty memory budget."""
        return config_of(self._config, name)

    @property
    def files(self) -> list[Path]:
        """Everything that the model follows from."""
        kept = ["config.json", *_TOKENIZER_FILES]
        return sorted([*(self.path / n for n in kept if (self.path / n).is_file()), *self._shards])

    def weights(self) -> Mapping[str, Tensor]:
        """The weights by Hugging Face name without `model.`; raises where they are not those of the config."""
        config = self.config(self.path.name)
        tensors = _Weights(TensorFiles(self.path))
        wanted, found = weight_shapes(config), tensors.shapes
        if config.tied_embeddings:
            found = {name: shape for name, shape in found.items() if name != "lm_head.weight"}
        for name, shape in wanted.items():
            if name not in found:
                raise CorruptFile(
                    f"{self.path} has no weight {name}: a shard is missing, or config.json is of another model"
                )
            if found[name] != shape:
                raise CorruptFile(
                    f"{self.path}: {name} has the shape {found[name]}, config.json says {shape}"
                )
        if unknown := sorted(set(found) - set(wanted)):
            raise InvalidInput(f"{self.path}: weight {unknown[0]} belongs to nothing that is supported")
        return tensors

    @cached_property
    def tokenizer_json(self) -> str:
        """The text of `tokenizer.json`; raises InvalidInput where its ids do not fit the embedding."""
        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise MissingFile(
                f"no tokenizer.json in {self.path}: write one with transformers, "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        text = path.read_text(encoding="utf-8")
        try:
            backend = Backend.from_str(text)
        except Exception as error:  # the library raises a bare Exception for every kind of bad file
            raise CorruptFile(f"{path} is not a tokenizer file: {error}") from error
        rows = int(self._config.get("vocab_size", 0))
        highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest >= rows:
            raise InvalidInput(
                f"{path} has token ids up to {highest}, the embedding has {rows} rows: another tokenizer"
            )
        self._backend = backend
        return text

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """From tokenizer_config.json and generation_config.json, completed by the usual spellings."""
        assert self.tokenizer_json
        settings = self._optional("tokenizer_config.json")
        usual = _usual(self._backend)
        bos, eos = (self._id(settings.get(f"{name}_token")) for name in ("bos", "eos"))
        if eos is None:
            if usual is None:
                raise InvalidInput(f"{self.path}: tokenizer_config.json names no eos_token of the tokenizer")
            eos = usual.end_of_turn
        if bos is None:  # Qwen has none: documents begin after <|endoftext|>
            bos = self._backend.token_to_id("<|endoftext|>")
        if bos is None:
            bos = usual.bos if usual else eos
        stop = self._optional("generation_config.json").get("eos_token_id") or []
        return SpecialTokens(bos, eos, eos, tuple(stop) if isinstance(stop, list) else (int(stop),))

    @cached_property
    def chat_template(self) -> str:
        """The Jinja chat template; empty where the folder has none."""
        beside = self.path / "chat_template.jinja"
        if beside.is_file():
            return beside.read_text(encoding="utf-8")
        found = self._optional("tokenizer_config.json").get("chat_template") or ""
        if isinstance(found, list):  # several by name
            found = next((t["template"] for t in found if t.get("name") == "default"), found[0]["template"])
        return str(found)

    def _id(self, token: Any) -> int | None:
        """A token's id; tokenizer_config.json spells it as text or as an object."""
        text = token.get("content") if isinstance(token, dict) else token
        return self._backend.token_to_id(text) if isinstance(text, str) else None

    def _json(self, name: str, advice: str = "fetch the whole model again") -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            raise MissingFile(f"no {name} in {self.path}: {advice}")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CorruptFile(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise CorruptFile(f"{path} is not a JSON object")
        return data

    def _optional(self, name: str) -> dict[str, Any]:
        return self._json(name) if (self.path / name).is_file() else {}


class _Weights(Mapping[str, Tensor]):
    """Tensors of a folder by their names here, in the type that they are stored in."""

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        self._stored = {n.removeprefix(_PREFIX): n for n in files.shapes if not n.endswith(_UNUSED)}
        self.shapes = {name: files.shapes[stored] for name, stored in self._stored.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._files.tensor(self._stored[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _usual(backend: Backend) -> SpecialTokens | None:
    try:
        return SpecialTokens.usual(backend)
    except InvalidInput:
        return None
