"""Lines of plain text: which breaks only come from a greatest width of lines, and which lines are headings.

The break within a wrapped paragraph is no place to split; lists, tables, `label: value` lines, addresses, verses, code
and logs keep their lines. The rules look at widths, the case of letters and signs, and at no language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

END_UNSPACED = "。！？｡"
"""Full stops of scripts that put no space behind them."""
END = f".!?{END_UNSPACED}।॥۔؟։።፧။។"
"""What ends a sentence."""
CLOSING = r"\"'”’»)\]」』）》"
"""What may stand between the end of a sentence and the white space behind it."""
LABEL = re.compile(r"\w[^.!?:]{0,60}: \S")
"""How a line of facts begins: `Paid leave: 31 days`."""
NUMBER = re.compile(r"\(?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[IVXLC]{1,6})[.)]")
"""What numbers a heading or an item of a list."""
_VALUE = re.compile(r"[:：]\s*[^\s:：]")
_BULLET = re.compile(r"[-*+•·‣▪–—]\s")
ITEM = re.compile(rf"(?:[-*+•·‣▪–—]|{NUMBER.pattern})\s")
"""How an item of a list begins."""
_ENDED = re.compile(rf"[{END}:：…][{CLOSING}]*\Z")
_CELLS = re.compile(r"\t|\||\S\s{3,}\S")
_CODE = re.compile(r"[{}=\\]|\[(?!\d)|\w\((?!s\))|\w_\w|\"\"\"|\A\s*(?:#|//)")
_NO_PROSE = re.compile(rf"{_CODE.pattern}|{_CELLS.pattern}")
_DIVIDED = re.compile(r"[^\W\d_][-\u2010]\Z")
_PLAIN_WORD = re.compile(
    r"[\"'“‘„«¿¡(\[]*(?:[^\W\d_]+(?:['’./&\u2010-][^\W\d_]+)*|[$€£]?\d+(?:[.,:/–-]\d+)*[%°€$£]?)"
    r"[-\u2010.,;:!?%)\]\"'”’»…]*|[-–—&]"
)
_WIDTHS = range(50, 201)
"""Characters of the longest line of a wrapped paragraph."""
_INDENTED = 8
"""Characters that the first line of a paragraph is indented more or less than the next, at most."""
_WORDS = 5
"""Of a line of prose, at least."""
_PLAIN = 0.75
"""Share of the words of a line of prose that are words or numbers, with punctuation at most."""
_FULL = 2
"""Full lines of a wrapped paragraph; of two lines, such as notes, the longer one is always full."""
_RAGGED = 0.75
"""Share of the width that a line has at least before a small letter, in a paragraph that is wrapped."""
_LONGEST_HEADING, _LONGEST_QUESTION = 60, 150
"""Characters."""
_RUN_IN = 4
"""Words of a heading that stands in the line of its text, at most, its number left out."""


def unwrapped(text: str) -> str:
    """The text with a space for each break within a wrapped paragraph; nothing but white space changes.

    A block of lines is wrapped if most of its lines that end no sentence, and two at least, have no room for the first
    word of the next line, and a quarter of those words begin with a small letter. A line that is as long as those
    of a wrapped block, and ends no sentence, goes on as well. A word that a hyphen divides gets no space.
    """
    if "\n" not in text:
        return text
    lines = [line.rstrip() for line in text.split("\n")]
    blocks = [_breaks(lines, block) for block in _blocks(lines)]
    wrapped = [block for block in blocks if block.wrapped]
    if not wrapped:
        return text
    widths = {block.width for block in wrapped}
    joined = {n for block in wrapped for n in block.full | block.going_on & block.lower}
    joined |= {n for block in blocks if block.mostly_full for n in block.found if _reaches(lines, n, widths)}
    parts = [lines[0]]
    for n, line in enumerate(lines[1:]):
        if n not in joined:
            parts.append(f"\n{line}")
        else:
            divided = _DIVIDED.search(lines[n]) and line.lstrip()[:1].islower()
            parts.append(line.lstrip() if divided else f" {line.lstrip()}")
    return "".join(parts)


def is_question(line: str) -> bool:
    """Whether a line asks what the one below it answers; it may have a label or a number."""
    return line.rstrip()[-1:] in ("?", "？", "؟") and len(line) <= _LONGEST_QUESTION


def is_run_in(sentence: str) -> bool:
    """Whether the first sentence of a line is so short that it is a heading of the rest: `4. Open day.` is."""
    words = [word for word in sentence.split() if not NUMBER.fullmatch(word) and any(map(str.isalnum, word))]
    return 0 < len(words) <= _RUN_IN and sentence[-1] not in END_UNSPACED


def is_heading(line: str, below: str) -> bool:
    """Whether a line belongs to the one below it: a short one of no sentence, or one that announces what follows.

    The readers of formats end headings with a full stop, so that a short sentence above a longer line counts too. So
    does a rule of signs, as under a heading.
    """
    line = line.strip()
    if not line or not below.strip():
        return False
    if not any(map(str.isalnum, line)):
        return True
    if len(line) > _LONGEST_HEADING or _VALUE.search(line) or _BULLET.match(line) or _NO_PROSE.search(line.lstrip("#")):
        return False
    return not _ENDED.search(line) or line[-1] in ":：" or len(line) < len(below.strip())


@dataclass(frozen=True)
class _Block:
    """Breaks of a block of lines, each as the number of the line before it.

    full: within prose, no room for the next word. going_on: after a line that ends no sentence. lower: after a long
    line, before a small letter. width: of the longest line of several words.
    """

    width: int
    full: set[int]
    going_on: set[int]
    lower: set[int]

    @property
    def found(self) -> set[int]:
        """Breaks that look like those of a wrapped paragraph."""
        return self.full & self.going_on

    @property
    def mostly_full(self) -> bool:
        """Whether most lines that end no sentence are full."""
        return 2 * len(self.found) > len(self.going_on)

    @property
    def wrapped(self) -> bool:
        """Whether the lines are those of a wrapped paragraph."""
        return self.mostly_full and len(self.found) >= _FULL and 4 * len(self.found & self.lower) >= len(self.found)


def _blocks(lines: Sequence[str]) -> Iterator[range]:
    """Runs of lines without an empty one between them."""
    start = 0
    for n, line in enumerate([*lines, ""]):
        if not line:
            if n - start > 1:
                yield range(start, n)
            start = n + 1


def _breaks(lines: Sequence[str], block: range) -> _Block:
    width = max((len(lines[n]) for n in block if len(lines[n].split()) > 1), default=0)
    found = _Block(width, set(), set(), set())
    if width not in _WIDTHS:
        return found
    first = True  # of a paragraph, whose indentation may differ
    for n in block[:-1]:
        line, below = lines[n], lines[n + 1].lstrip()
        column = _indentation(lines[n + 1])
        if first and line[:column].endswith("  "):  # a label before a hanging paragraph, as of an option
            line = line[column:].rjust(len(line))
        if _is_prose(line) and not (LABEL.match(below) or ITEM.match(below) or _NO_PROSE.search(below)):
            word = below.split()[0]
            indented = abs(_indentation(line) - column)
            if indented <= (_INDENTED if first else 0) and word != line.split()[0]:
                if len(line) + 1 + len(word) > width:
                    found.full.add(n)
                if below[0].islower() and len(line) >= _RAGGED * width:
                    found.lower.add(n)
            if not _ENDED.search(line):
                found.going_on.add(n)
        first = n not in found.full
    return found


def _is_prose(line: str) -> bool:
    """Whether a line has several words, most of them plain, and nothing of code or a table."""
    words = line.split()
    if len(words) < _WORDS or _NO_PROSE.search(line.strip()):
        return False
    return sum(_PLAIN_WORD.fullmatch(word) is not None for word in words) >= _PLAIN * len(words)


def _reaches(lines: Sequence[str], n: int, widths: set[int]) -> bool:
    """Whether the break after line `n` is where a paragraph of one of the widths has its break."""
    length = len(lines[n])
    return any(length <= width < length + 1 + len(lines[n + 1].split()[0]) for width in widths)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
