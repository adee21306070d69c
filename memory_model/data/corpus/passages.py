"""A passage of the corpus: what one line of `build/corpus/<source>.jsonl` holds, and how prose is cut into them.

Cleaning is the same for every source: lines of a paragraph are joined, spaces collapsed, what is no English
prose is left out, and paragraphs of one document are packed into passages of 40 to 2,000 characters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from memory_model.errors import CorruptFile, MissingFile

SHORTEST, LONGEST = 40, 2000  # characters of a passage
HELD_OUT = 0.03  # share of the documents that no training sees

_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"”’')\]]))\s+(?=[\"“‘'(\[]?[A-Z0-9])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|etc|e\.g|i\.e|cf|ca|c|No|Vol|Gen|Col|Sen|Rev|Prof|Capt|Lt|viz|approx)\.)$"
)
_STOP_WORDS = frozenset(
    """the of and a an to in is was are were for that which by with as on from at be or it its his her their this
    have has had not but also one who when you if can will used""".split()  # noqa: SIM905
)
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


Row = TypeVar("Row")


@dataclass(frozen=True)
class Passage:
    """One passage. `key` is `document` or `document#n`; all passages of a document fall on one side of the split."""

    source: str
    key: str
    title: str
    text: str


def held_out(source: str, key: str) -> bool:
    """Whether a passage is kept out of all training: about 3 % of the documents, fixed by source and key.

    Passages of one document fall together, and so do the same article's in `wikipedia` and `wikipedia-articles`.
    """
    family, document = source.partition("-")[0], key.partition("#")[0]
    digest = hashlib.sha256(f"corpus {family} {document}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32


def join_lines(text: str) -> str:
    """A paragraph on one line: line breaks and runs of white space become one space."""
    return " ".join(text.split())


def slug(text: str) -> str:
    """`text` as a part of a key: no `#`, `/` or white space."""
    return re.sub(r"[\s#/]+", "-", text).strip("-")


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph; a full stop after an initial or a usual abbreviation ends none."""
    result: list[str] = []
    for piece in _SENTENCE_END.split(text):
        if result and _ABBREVIATION.search(result[-1]):
            result[-1] = f"{result[-1]} {piece}"
        elif piece.strip():
            result.append(piece.strip())
    return result


def is_prose(text: str) -> bool:
    """Whether a paragraph reads as English sentences rather than a table, a listing, code or another language.

    It does when at least 70 % of its characters are letters and spaces, it has eight words or more, it ends
    as a sentence does, and at least a sixth of the words (twelfth, when there are under 20) are frequent
    English function words.
    """
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) < 8 or text.rstrip("\"”’')] ")[-1:] not in (".", "!", "?", ":", ";"):
        return False
    if sum(c.isalpha() or c == " " for c in text) < 0.7 * len(text):
        return False
    functional = sum(word in _STOP_WORDS for word in words)
    return functional >= len(words) / (12 if len(words) < 20 else 6)


def pack(paragraphs: Iterable[str], longest: int = LONGEST) -> Iterator[str]:
    """Paragraphs packed into texts of at most `longest` characters, one paragraph a line.

    A paragraph that is longer alone is cut between sentences; a sentence that is longer alone is left out.
    Texts under 40 characters are left out.
    """
    pieces: list[str] = []
    size = 0
    for paragraph in paragraphs:
        for piece in [paragraph] if len(paragraph) <= longest else _cut(paragraph, longest):
            if size + len(piece) + 1 > longest and pieces:
                yield "\n".join(pieces)
                pieces, size = [], 0
            pieces.append(piece)
            size += len(piece) + 1
    if pieces and size > SHORTEST:
        yield "\n".join(pieces)


def _cut(paragraph: str, longest: int) -> Iterator[str]:
    text = ""
    for sentence in sentences(paragraph):
        if len(sentence) > longest:
            continue
        if len(text) + len(sentence) + 1 > longest:
            yield text
            text = ""
        text = f"{text} {sentence}".strip()
    if text:
        yield text


def document_passages(source: str, key: str, title: str, paragraphs: Iterable[str]) -> Iterator[Passage]:
    """The passages of one document, numbered from `key#0`."""
    for number, text in enumerate(pack(paragraphs)):
        if len(text) >= SHORTEST:
            yield Passage(source, f"{key}#{number}", title, text)


def write_passages(path: Path, passages: Iterable[Passage]) -> int:
    """Write a JSONL file, replaced as a whole, and return the number of passages."""
    return write_rows(path, passages)


def read_passages(path: str | Path) -> Iterator[Passage]:
    """The passages of a JSONL file. Raises MissingFile, or CorruptFile with the line's number."""
    return read_rows(Path(path), Passage, "passage", "prepare-data")


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


def read_rows(path: Path, kind: type[Row], what: str, made_by: str) -> Iterator[Row]:
    """What `write_rows` wrote. Raises MissingFile, or CorruptFile with the line's number."""
    if not path.is_file():
        raise MissingFile(f"no {what}s at {path}: make them with `memory-model {made_by}`")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield kind(**json.loads(line))
            except (json.JSONDecodeError, TypeError) as error:
                raise CorruptFile(f"{path}, line {number} is no {what}: {error}") from error
