r"""GCIDE, the Collaborative International Dictionary of English (Webster 1913 and additions): entries as prose.

An entry is `Headword \Head"word\ (pronunciation), n. [etymology] (Field)`, indented senses, quotations, notes,
and marks of where each part came from. What is kept reads as `Headword (noun). 1. First sense. …`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from memory_model.training.corpus.dictd import entries
from memory_model.training.corpus.passages import Passage, document_passages, join_lines

_FROM = re.compile(
    r"\[(?:[^\[\]]*(?:Webster|WordNet|Century Dict|PJC|RDH|RP|Standard Dict|Wordnet)[^\[\]]*)\]|\[\w{2,4}\]$",
    re.M,
)
_LETTERS = {"ae": "æ", "AE": "Æ", "oe": "œ", "eth": "ð", "th": "th", "aum": "ä", "deg": "°", "ng": "ng", "=ae": "æ",
            "add": "a", "asl": "a", "udd": "u", "root": "√", "pi": "π"}  # fmt: skip
_ACCENTED = re.compile(r"\[([^\s\[\]]{1,5})\]")
_ACCENTS = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "^": "\u0302", "~": "\u0303"}
_QUALIFIER = re.compile(
    r"\s*\[(?:Obs|R|Colloq|Archaic|Poetic|Prov|Scot|U\. ?S|Eng|Local|Slang|Low|Rare|Humorous|Cant|Obsoles|"
    r"Written also|Written|Spelt|Cf|See|Called|Also)\b[^\[\]]*\]"
)
_SPEECH = {"n": "noun", "a": "adjective", "adj": "adjective", "v": "verb", "adv": "adverb", "prep": "preposition",
           "interj": "interjection", "conj": "conjunction", "pron": "pronoun", "prop": "proper noun"}  # fmt: skip
_QUOTED_BY = re.compile(r"\s*--(?:[A-Z][\w.'&() ]{1,40}|\([^)]*\))(?=\s|$)")
_SYNONYMS = re.compile(r"^(?:Syn:|See Syn)")


def passages(dictionary: Path, index: Path) -> Iterator[Passage]:
    """The passages of the dictionary: one entry each, entries that define nothing left out."""
    seen: dict[str, int] = {}
    for entry in entries(dictionary, index):
        title, paragraphs = prose(entry.text)
        if title and paragraphs and sum(map(len, paragraphs)) >= 70:
            number = seen[title] = seen.get(title, 0) + 1
            yield from document_passages("gcide", f"{title}/{number}", title, paragraphs)


def prose(entry: str) -> tuple[str, list[str]]:
    """The headword of an entry and its text as paragraphs without marks; empty when nothing is left."""
    blocks = re.split(r"\n\s*\n", _FROM.sub("\n", entry).strip("\n"))
    head, _, first = blocks[0].partition("\n")
    title = _letters(re.split(r"\s*(?:\\|\[|\()", head, maxsplit=1)[0]).strip(" ,")
    header, body = _split_header(head, first)
    speech = re.search(r"(?:\\|\)|^[^\\]*)\s*,?\s*\b(prop|n|a|adj|v|adv|prep|interj|conj|pron)\.", header)
    paragraphs: list[str] = []
    for number, block in enumerate([body, *blocks[1:]]):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines or _is_quotation(lines, number) or _SYNONYMS.match(lines[0].strip()):
            continue
        text = _clean(" ".join(line.strip() for line in lines))
        if re.search(r"[A-Za-z]{3}", text):
            paragraphs.append(text)
    if not paragraphs or re.fullmatch(r"(?:See|Same as|Alt\. of|Variant of) [^.]*\.?", paragraphs[0]):
        return title, []
    name = f"{title} ({_SPEECH[speech.group(1)]})" if speech else title
    paragraphs[0] = f"{name}. {paragraphs[0]}"
    return title, paragraphs


def _split_header(head: str, rest: str) -> tuple[str, str]:
    # The header goes on while a bracket of it is open, and over following lines that hold only brackets.
    lines = [head, *rest.split("\n")]
    taken = 1
    while taken < len(lines) and (
        (opened := " ".join(lines[:taken])).count("[") > opened.count("]")
        or re.fullmatch(r"\s*(?:\([A-Z][^()]*\)|\[[^\[\]]*\]|pl\..*)\s*", lines[taken])
    ):
        taken += 1
    return " ".join(lines[:taken]), "\n".join(lines[taken:])


def _is_quotation(lines: list[str], number: int) -> bool:
    # Quoted verse and prose stand deeper than the senses and end with their author.
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return number > 0 and indent >= 8 and re.search(r"--\s*[A-Z(][^-]*$", lines[-1]) is not None


def _letters(text: str) -> str:
    def letter(match: re.Match[str]) -> str:
        code = match.group(1)
        if code in _LETTERS:
            return _LETTERS[code]
        plain = re.sub(r"[^A-Za-z]", "", code)
        mark = re.sub(r"[A-Za-z]", "", code)
        if len(plain) in (1, 2) and len(mark) == 1 and mark not in "?*":
            accent = _ACCENTS.get(mark, "") if code.startswith(mark) else ""
            return plain + accent
        return match.group(0)

    return _ACCENTED.sub(letter, text)


def _clean(text: str) -> str:
    text = _QUALIFIER.sub("", _letters(text).replace("{", "").replace("}", ""))
    text = re.sub(r"\\[^\\]*\\", "", text)
    text = _QUOTED_BY.sub("", text)
    text = re.sub(r"\s+([,.;:])", r"\1", text.replace(" -- ", " – "))
    return join_lines(text).removesuffix("–").strip()
