"""Whole Wikipedia articles: an extract of its dump that a package carries for its tests.

Source: PyPI package `gensim` (the text is Wikipedia's, CC BY-SA 3.0): some hundred articles of April 2016,
among them Abraham Lincoln, Albert Einstein, Apollo 11, Aristotle. One document for each article;
the title of a passage is `Article: Section`.
"""

from __future__ import annotations

import bz2
import html
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from experiments.corpus.prose import is_prose, join_lines, pack, sentences
from memory_model.data.passages import Passage
from memory_model.errors import CorruptFile

_MEMBER = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_PAGE = re.compile(r"<title>(.*?)</title>\s*<ns>0</ns>.*?<text[^>]*>(.*?)</text>", re.S)
_ENDINGS = {"see also", "references", "notes", "further reading", "external links", "bibliography", "citations",
            "footnotes", "sources", "gallery", "discography", "filmography", "works", "publications"}  # fmt: skip
_SILENT = (  # templates that a sentence reads well without
    "cite", "sfn", "citation", "cn", "fact", "refn", "efn", "rp", "harv", "clarify", "who", "by whom", "when",
    "dubious", "page needed", "better source", "verify", "ipa", "pron", "respell",
)  # fmt: skip
_BETWEEN = ("by", "to", "and", "or", "x", "×", "-", "–", "±")
_LOST = "\x00"  # stands where something was cut that the sentence may need


def passages(wheel: Path) -> Iterator[Passage]:
    """The passages of the dump in the package's wheel. Raises CorruptFile when it is not where it should be."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            dump = bz2.decompress(archive.read(_MEMBER)).decode("utf-8")
    except (zipfile.BadZipFile, KeyError, OSError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{wheel}: no extract of Wikipedia in {_MEMBER} ({error})") from error
    for title, source in _PAGE.findall(dump):
        if source.lstrip().upper().startswith("#REDIRECT"):
            continue
        article = html.unescape(title)
        number = 0
        for section, paragraphs in sections(html.unescape(source)):
            for text in pack(paragraphs):
                heading = f"{article}: {section}" if section else article
                yield Passage("wikipedia-articles", f"{article.replace('#', '')}#{number}", heading, text)
                number += 1


def sections(wikitext: str) -> Iterator[tuple[str, list[str]]]:
    """(heading, paragraphs) of an article's wikitext; lists, tables and references are left out."""
    text = _without_markup(wikitext)
    heading: str = ""
    pieces = re.split(r"^(=+)\s*(.*?)\s*\1\s*$", text, flags=re.M)
    for number in range(0, len(pieces), 3):
        if number:
            heading = pieces[number - 1].replace(_LOST, "")
        if heading.lower() in _ENDINGS:
            continue
        paragraphs = [clean for line in pieces[number].splitlines() if (clean := _paragraph(line))]
        if paragraphs:
            yield heading, paragraphs


def _without_markup(text: str) -> str:
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"<ref[^<>]*/>|<ref.*?</ref>", "", text, flags=re.S)
    text = re.sub(r"<(math|gallery|timeline|score|code|blockquote|poem).*?</\1>", _LOST, text, flags=re.S)
    for _ in range(8):  # templates, innermost first
        text, found = re.subn(r"\{\{([^{}]*)\}\}", _template, text)
        if not found:
            break
    text = re.sub(r"^\{\|.*?^\|\}", "", text, flags=re.S | re.M)
    text = re.sub(r"\[\[(?:File|Image|Category|[a-z]{2,3}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[(?:https?:)?//\S+ ?([^\[\]]*)\]", r"\1", text)
    text = re.sub(r"<br ?/?>", " ", text)
    return re.sub(r"'{2,5}|</?[a-zA-Z][^<>]*>|__[A-Z]+__", "", text)


def _template(match: re.Match[str]) -> str:
    name, *values = [part.strip() for part in match.group(1).split("|")]
    plain = [value for value in values if "=" not in value]
    name = name.lower()
    if name in ("convert", "cvt") and len(plain) >= 2:
        # {{convert|25|by|36|cm}}: 25 by 36 cm; what follows the first unit is only how to convert
        amount = next((n for n, value in enumerate(plain) if n % 2 and value not in _BETWEEN), 1)
        return " ".join(plain[: amount + 1])
    if name in ("lang", "transl", "tooltip") and len(plain) >= 2:
        return plain[-1] if name != "tooltip" else plain[0]
    if name in ("nowrap", "nobr", "small", "as of", "smallcaps", "abbr", "nihongo") and plain:
        return f"As of {plain[0]}" if name == "as of" else plain[0]
    if name in ("circa", "c."):
        return f"c. {plain[0]}" if plain else "c."
    if name in ("ndash", "spaced ndash", "snd", "mdash", "–"):
        return " – "
    if name.startswith(_SILENT):
        return ""
    return _LOST


def _paragraph(line: str) -> str:
    line = join_lines(line.replace("\xa0", " "))
    if not line or line[0] in "*#:;|!{}" or len(line) < 60:
        return ""
    line = re.sub(rf"\([^()]*{_LOST}[^()]*\)", "", line).strip(_LOST + " ")
    line = re.sub(r"\(\s*[;,]?\s*", "(", re.sub(r"\s*\(\s*[;,]?\s*\)", "", line))
    kept = " ".join(sentence for sentence in sentences(line) if _LOST not in sentence)
    kept = re.sub(r"\s+([,.;:)])", r"\1", kept)
    return kept if is_prose(kept) else ""
