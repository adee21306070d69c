"""A Hugging Face folder: config, weights (safetensors or pytorch_model.bin, sharded or not), tokenizer, chat template.

Opening reads headers only; a tensor is read when it is requested, in the type that it is stored in.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from memory3.config import ModelConfig
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.text.tokenizer import SpecialTokens, ends_of, read_backend
from memory_model.models.architectures import config_of
from memory_model.models.tensor_files import Weights, open_tensors, read_json, weight_files

_PREFIX = "model."
_UNUSED = ("rotary_emb.inv_freq",)
"""Tensors that old files have in addition to the weights: they follow from the config."""
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


class HuggingFaceFolder:
    """A base model as it is published. Raises MissingFile, CorruptFile or InvalidInput before weights are read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self._config = read_json(self.path / "config.json", advice="give a Hugging Face folder, or a .gguf file")
        self._shards = weight_files(self.path)

    def config(self, name: str) -> ModelConfig:
        """The model's shape, with an empty memory budget."""
        return config_of(self._config, name)

    @property
    def files(self) -> list[Path]:
        """Everything that the model follows from."""
        others = (self.path / name for name in _FILES)
        return sorted([*(path for path in others if path.is_file()), *self._shards])

    def weights(self) -> Weights:
        """The weights, in the type that they are stored in; raises where they are not those of the config."""
        config, files = self.config(self.path.name), open_tensors(self.path)
        stored = {n.removeprefix(_PREFIX): n for n in files.shapes if not n.endswith(_UNUSED)}
        if config.tied_embeddings:
            stored.pop("lm_head.weight", None)
        shapes = {name: files.shapes[own] for name, own in stored.items()}
        return Weights(shapes, lambda name: files.read(stored[name])).check(config, self.path)

    @cached_property
    def tokenizer_json(self) -> str:
        """The text of `tokenizer.json`; raises InvalidInput where its ids do not fit the embedding."""
        path = self.path / "tokenizer.json"
        self._backend = read_tokenizer(path, self.config(self.name).vocabulary)
        return path.read_text(encoding="utf-8")

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """From tokenizer_config.json and generation_config.json, completed by the usual names.

        A chat template may end turns with another token than a text: see `ModelFolder.tokenizer`.
        """
        assert self.tokenizer_json
        settings = self._optional("tokenizer_config.json")
        bos, eos = (self._id(settings.get(f"{name}_token")) for name in ("bos", "eos"))
        try:
            usual = SpecialTokens.usual(self._backend)
        except InvalidInput:
            if eos is None:
                raise InvalidInput(f"{self.path}: tokenizer_config.json names no eos_token of the tokenizer") from None
            usual = SpecialTokens(eos, eos, eos)
        eos = usual.end_of_turn if eos is None else eos
        # Qwen has no bos: documents begin after <|endoftext|>.
        bos = next(t for t in (bos, self._id("<|endoftext|>"), usual.bos) if t is not None)
        listed = self._optional("generation_config.json").get("eos_token_id")
        rows = range(self.config(self.name).vocabulary)  # nothing else can be generated
        stop: list[Any] = [token for token in (listed if isinstance(listed, list) else [listed]) if token in rows]
        return SpecialTokens(bos, eos, eos, (*stop, *ends_of(self._backend)))

    @cached_property
    def chat_template(self) -> str:
        """The Jinja chat template; empty where the folder has none."""
        template = self.path / "chat_template.jinja"
        if template.is_file():
            return template.read_text(encoding="utf-8")
        found = self._optional("tokenizer_config.json").get("chat_template") or ""
        if isinstance(found, list):  # several by name
            try:
                found = next((t["template"] for t in found if t.get("name") == "default"), found[0]["template"])
            except (LookupError, TypeError, AttributeError) as error:
                raise CorruptFile(f"{self.path}/tokenizer_config.json has no list of chat templates") from error
        return str(found)

    def _id(self, token: Any) -> int | None:
        """A token's id; tokenizer_config.json has it as text or as an object."""
        text = token.get("content") if isinstance(token, dict) else token
        return self._backend.token_to_id(text) if isinstance(text, str) else None

    def _optional(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return dict(read_json(path)) if path.is_file() else {}


def read_tokenizer(path: Path, rows: int) -> Backend:
    """A `tokenizer.json` whose ids all have a row of an embedding; raises MissingFile, CorruptFile, InvalidInput."""
    if not path.is_file():
        raise MissingFile(
            f"no tokenizer.json in {path.parent}: write one with transformers, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    backend = read_backend(path)
    highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= rows:
        raise InvalidInput(
            f"{path} has token ids up to {highest}, the embedding {rows} rows: another model's tokenizer"
        )
    return backend
