"""The edge bundle: one folder with everything a device runs, and a manifest that proves it is whole.

    manifest.json             ids, shape, precision, licence; size and SHA-256 of every other file
    decoder.onnx(.data)       the decoder with memory slots, standard operators
    decoder.cpu.onnx          the same with the CPU_ALONE provider's own operators, over the same weights
    writer.onnx               writes memories on the device, over the same weights file
    embedder.onnx(.data), embedder_tokenizer.json, embedder.json
    tokenizer.json, chat_template.jinja, codec.npz
    answerability.npz         optional: what tells that nothing which is read answers
    cache/                    made by the device for itself, in no manifest: TensorRT's engine, number of threads

Torch-free. How the files are made is `memory_model.export.bundle`'s business.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from memory3.codec.loading import load_codec
from memory3.codec.payload import Identity, MemoryFormat
from memory3.config import ModelConfig
from memory3.digest import file_sha256
from memory3.errors import CodecMismatch, CorruptFile, EmbedderMismatch, FormatMismatch, InvalidInput, MissingFile
from memory3.runtime.answerability import PROBE_FILE, AnswerabilityProbe
from memory3.runtime.embedder import CONFIG, CPU_ALONE, Embedder, EmbedderConfig, ExecutionProviders
from memory3.text.chat import ChatTemplate
from memory3.text.refusal import Refusal
from memory3.text.tokenizer import SpecialTokens, Tokenizer
from memory3.text.verdict import Grounding
from memory3.text.words import DEFAULT_RANKING, Ranking

MANIFEST = "manifest.json"
CPU_DECODER = "decoder.cpu.onnx"
"""Optional: a bundle that computes in float16, or whose heads are too small for it, has none."""
WRITER_FILE = "writer.onnx"
"""Optional: bundles that were exported before there was one still load."""
BUNDLE_FORMAT_VERSION = 2
DEFAULT_FOLDER = Path("build/bundle")
REQUIRED = (
    "decoder.onnx",
    "embedder.onnx",
    "embedder_tokenizer.json",
    "embedder.json",
    "tokenizer.json",
    "codec.npz",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class FileEntry:
    """The manifest's entry for a file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The manifest of a bundle. precision: of the decoder's weights. Ids are hex SHA-256 strings."""

    name: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    precision: str
    licence: str
    config: ModelConfig
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    format_version: int = BUNDLE_FORMAT_VERSION
    special_tokens: SpecialTokens | None = None
    refusal: Refusal = field(default_factory=Refusal)
    minimum_score: float | None = None
    ranking: Ranking = DEFAULT_RANKING
    grounding: Grounding = field(default_factory=Grounding)

    def to_json(self) -> str:
        """The content of `manifest.json`."""
        data = {**asdict(self), "config": self.config.to_dict()}
        return json.dumps(data, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Inverse of `to_json`; raises CorruptFile."""
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.get("format_version")
            if version != BUNDLE_FORMAT_VERSION:
                raise CorruptFile(
                    f"the bundle has format version {version}, this program reads {BUNDLE_FORMAT_VERSION}: "
                    "export it again"
                )
            data["config"] = ModelConfig.from_dict(data["config"])
            data["files"] = {k: FileEntry(**v) for k, v in data["files"].items()}
            data["refusal"] = Refusal(**data.get("refusal") or {})
            data["ranking"] = Ranking(**data.get("ranking") or {})
            data["grounding"] = Grounding(**data.get("grounding") or {})
            if special := data.get("special_tokens"):
                data["special_tokens"] = SpecialTokens(**{**special, "stop": tuple(special["stop"])})
            return cls(**data)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise CorruptFile(f"{MANIFEST} is not a bundle's manifest: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of the bundle in a folder; raises MissingFile, CorruptFile."""
        if not (folder / MANIFEST).is_file():
            raise MissingFile(
                f"no bundle at {folder.resolve()}: name its folder with --bundle, make one with `make bundle` in a"
                " clone or `memory-model export`, or on a device fetch the service's with `edge-client pull`"
            )
        return cls.from_json((folder / MANIFEST).read_bytes())


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: verified files and the values that come out of them."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path = DEFAULT_FOLDER) -> Bundle:
        """Read the manifest, compare every file with it; raises MissingFile, CorruptFile, FormatMismatch."""
        bundle = cls(Path(folder), Manifest.read(Path(folder)))
        bundle.verify()
        return bundle

    def verify(self) -> None:
        """Compare the files with the manifest, ids before anything large; raises CorruptFile, IdentityMismatch."""
        files, remedy = self.manifest.files, "copy or export the bundle again"
        if missing := [name for name in REQUIRED if name not in files]:
            raise CorruptFile(f"{MANIFEST} does not list {', '.join(missing)}: {remedy}")
        for name, entry in files.items():
            if Path(name).name != name or name == MANIFEST:
                raise CorruptFile(f"{MANIFEST} lists {name!r}, which is no plain file name")
            path = self.folder / name
            if not path.is_file():
                raise CorruptFile(f"the bundle's {name} is missing: {remedy}")
            if path.stat().st_size != entry.bytes:
                raise CorruptFile(f"{name} has {path.stat().st_size} bytes, not {entry.bytes}: {remedy}")
        if self.manifest.memory_format_id != self.manifest.config.memory_format_id:
            raise FormatMismatch(self.manifest.memory_format_id, self.manifest.config.memory_format_id, remedy)
        small = tuple(
            n for n in (CONFIG, "codec.npz", PROBE_FILE) if n in files
        )  # ids are compared before anything large is read
        self._compare_sums(small, remedy)
        embedder_id = EmbedderConfig.read(self.folder / CONFIG).embedder_id
        if embedder_id != self.manifest.embedder_id:
            raise EmbedderMismatch(embedder_id, self.manifest.embedder_id, remedy, subject=f"{CONFIG} is of")
        _ = self.memory_format, self.probe
        self._compare_sums([name for name in files if name not in small], remedy)

    def _compare_sums(self, names: Iterable[str], remedy: str) -> None:
        for name in names:
            if file_sha256(self.folder / name) != self.manifest.files[name].sha256:
                raise CorruptFile(f"{name} is not the file that was exported (SHA-256 differs): {remedy}")

    @property
    def config(self) -> ModelConfig:
        """The decoder's shape and memory budget."""
        return self.manifest.config

    @property
    def identity(self) -> Identity:
        """What a memory must have been written by."""
        return Identity(self.manifest.model_id, self.manifest.codec_id, self.manifest.memory_format_id)

    @property
    def decoder(self) -> Path:
        """`decoder.onnx`; its weights are next to it."""
        return self.folder / "decoder.onnx"

    @property
    def writer(self) -> Path | None:
        """`writer.onnx`, None in a bundle that only reads memories."""
        return self.folder / WRITER_FILE if WRITER_FILE in self.manifest.files else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The LLM's tokenizer."""
        return Tokenizer.from_file(self.folder / "tokenizer.json", self.manifest.special_tokens)

    @cached_property
    def chat(self) -> ChatTemplate:
        """The chat template."""
        template = (self.folder / "chat_template.jinja").read_text(encoding="utf-8")
        return ChatTemplate(template, self.tokenizer)

    @cached_property
    def memory_format(self) -> MemoryFormat:
        """Payloads to memories; raises CodecMismatch or InvalidInput if `codec.npz` is not the manifest's."""
        codec = load_codec(self.folder / "codec.npz")
        if codec.codec_id != self.manifest.codec_id:
            raise CodecMismatch(codec.codec_id, self.manifest.codec_id, "export it again", subject="codec.npz is")
        return MemoryFormat(self.config, self.manifest.model_id, codec)

    @cached_property
    def probe(self) -> AnswerabilityProbe | None:
        """What biases refusals by queries, where the model has it; raises ModelMismatch or CorruptFile."""
        if PROBE_FILE not in self.manifest.files:
            return None
        return AnswerabilityProbe.load(self.folder / PROBE_FILE, self.config, self.manifest.model_id)

    def embedder(self, *, threads: int = 1, execution_providers: ExecutionProviders = CPU_ALONE) -> Embedder:
        """A new embedder session."""
        return Embedder(self.folder, threads=threads, execution_providers=execution_providers)


def write_bundle(folder: str | Path, staging: Path, manifest: Manifest) -> Bundle:
    """Describe the files in `staging` by a manifest, given without them, and move them to `folder` in one step.

    It must be on the same file system. An older bundle at `folder` is replaced; a partial one is never visible. Raises
    InvalidInput if files are missing.
    """
    folder = Path(folder)
    if missing := [name for name in REQUIRED if not (staging / name).is_file()]:
        raise InvalidInput(f"a bundle needs {', '.join(missing)}")
    files = {p.name: FileEntry(file_sha256(p), p.stat().st_size) for p in sorted(staging.iterdir())}
    manifest = replace(manifest, files=files)
    (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    for path in staging.iterdir():
        _flush(path)
    check_place(folder)
    replace_folder(staging, folder)
    return Bundle(folder, manifest)


def replace_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write another manifest for the same files, to a temporary name first."""
    partial = Path(folder) / f".{MANIFEST}.{secrets.token_hex(4)}"
    partial.write_text(manifest.to_json(), encoding="utf-8")
    _flush(partial)
    partial.replace(Path(folder) / MANIFEST)
    _flush(Path(folder))


def staging_folder(folder: str | Path) -> Path:
    """A new empty folder next to `folder` to collect a bundle's files in."""
    folder = Path(folder)
    staging = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    staging.mkdir(parents=True)
    return staging


def check_place(folder: str | Path) -> None:
    """Raise InvalidInput when a bundle may not be put at `folder`: it exists and holds something else."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or (not (folder / MANIFEST).is_file() and any(folder.iterdir()))):
        raise InvalidInput(f"{folder} exists and is not a bundle: choose another folder")


def replace_folder(staging: Path, folder: Path) -> None:
    """Move `staging` to `folder`, on the same file system; the old one is removed once it is replaced.

    Where it cannot be moved, the old one is put back; what a process that was killed meanwhile set aside is used.
    """
    old = staging.with_name(staging.name + ".old")
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            os.replace(old, folder)
    replaces = folder.exists()
    if replaces:
        os.replace(folder, old)
    try:
        os.replace(staging, folder)
    except OSError:
        if replaces:
            os.replace(old, folder)
        raise
    _flush(folder.parent)
    if replaces:
        shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    """Have the system write a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
