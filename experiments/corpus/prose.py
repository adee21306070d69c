"""How prose is cut into passages.

Lines are joined, spaces collapsed, what is no English prose is left out, and what is longer than 2,000 characters is
cut between sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SHORTEST, LONGEST = 40, 2000  # characters of a passage

_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"”’')\]]))\s+(?=[\"“‘'(\[]?[A-Z0-9])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|etc|e\.g|i\.e|cf|ca|c|No|Vol|Gen|Col|Sen|Rev|Prof|Capt|Lt|viz|approx)\.)$"
)
_STOP_WORDS = frozenset(
    """the of and a an to in is was are were for that which by with as on from at be or it its his her their this
    have has had not but also one who when you if can will used""".split()  # noqa: SIM905
)
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


def join_lines(text: str) -> str:
    """A paragraph on one line: line breaks and runs of white space become one space."""
    return " ".join(text.split())


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


def parts(text: str, longest: int = LONGEST) -> Iterator[str]:
    """The text, cut between sentences where it is longer than `longest` characters.

    A sentence that is longer alone is left out, and so are parts under 40 characters.
    """
    part = ""
    for sentence in [text] if len(text) <= longest else sentences(text):
        if len(sentence) > longest:
            continue
        if len(part) + len(sentence) + 1 > longest and part:
            yield part
            part = ""
        part = f"{part} {sentence}".strip()
    if len(part) >= SHORTEST:
        yield part
