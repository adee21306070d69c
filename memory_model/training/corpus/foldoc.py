"""FOLDOC, the Free On-line Dictionary of Computing, and the Jargon File: entries as prose.

Both indent their text under the headword and mark references with braces. FOLDOC opens a sense with its
field (`<language>`) and ends an entry with its date; the Jargon File opens with a pronunciation line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from memory_model.training.corpus.dictd import entries
from memory_model.training.corpus.passages import Passage, document_passages, is_prose, join_lines

_LINK = re.compile(r"\{\(?([^{}()]*)\)?\}")
_ADDRESS = re.compile(
    r"\(?(?:https?|ftp|news|mailto|gopher):\S+?\)?(?=[.,;:]*(?:\s|$))|<[^<>\s]*[@/][^<>\s]*>"
    r"|\{?Usenet newsgroup\}?:? *\S+"
)
_DATE = re.compile(r"\(\d{4}-\d\d-\d\d\)$")


def foldoc_passages(dictionary: Path, index: Path) -> Iterator[Passage]:
    """One document for each entry of FOLDOC; its dates of change, addresses and references are left out."""
    yield from _passages("foldoc", dictionary, index)


def jargon_passages(dictionary: Path, index: Path) -> Iterator[Passage]:
    """One document for each entry of the Jargon File."""
    yield from _passages("jargon", dictionary, index)


def prose(entry: str) -> tuple[str, list[str]]:
    """The headword and the paragraphs of an entry that are sentences."""
    title, _, body = entry.strip("\n").partition("\n")
    paragraphs = []
    for block in re.split(r"\n\s*\n", body):
        text = join_lines(block)
        text = re.sub(r"^(?:/[^/]+/,? ?)?(?:(?:n|v|adj|adv|vt|vi|interj|obs|prov|cov)\.(?:, ?)?)+$", "", text)
        text = _ADDRESS.sub("", _LINK.sub(r"\1", text)).replace("__", "")
        text = re.sub(r"^(\d+\. )?<[^<>]{2,60}> ?", r"\1", text)
        text = re.sub(r"\s*\([^()\w]*\)", "", re.sub(r"\s+([,.;:])", r"\1", text))
        text = re.sub(r"[-–]+ ?[A-Z]\w+ ?\([^()]*\)$", "", text).strip()
        if not _DATE.search(text) and not text.startswith("[") and is_prose(text):
            paragraphs.append(text)
    return title.strip(), paragraphs


def _passages(source: str, dictionary: Path, index: Path) -> Iterator[Passage]:
    for entry in entries(dictionary, index):
        title, paragraphs = prose(entry.text)
        if paragraphs and title:
            if not paragraphs[0].lower().startswith(title.lower()):
                paragraphs[0] = f"{title}: {paragraphs[0]}"
            yield from document_passages(source, title, title, paragraphs)
