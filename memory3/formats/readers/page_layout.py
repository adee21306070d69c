"""The text of a page whose words have positions, as in PDF files and scans: columns, tables, lines, turned words.

Words are put in reading order by the gaps between columns; ruled tables become "column: value" lines. Ligatures and
hyphens at line ends are resolved.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from memory3.formats.readers.tables import table_lines
from memory3.text.paragraphs import LABEL

LIGATURES = str.maketrans(
    {
        "ﬀ": "ff",
        "ﬁ": "fi",
        "ﬂ": "fl",
        "ﬃ": "ffi",
        "ﬄ": "ffl",
        "ﬅ": "st",
        "ﬆ": "st",
        "\u00ad": "",
        "\u00a0": " ",
        "\0": "",
    }
)
_RIGHT_TO_LEFT = re.compile(r"(?!\d)[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
"""Letters of Hebrew, Arabic and their neighbours; digits are read from left to right in them too."""
_LEFT_TO_RIGHT = re.compile(r"[\dA-Za-z](?:[\dA-Za-z.,:/%+-]*[\dA-Za-z%])?")
_MIRRORED = str.maketrans("()[]{}<>«»", ")(][}{><»«")
_SPACING = {"x_tolerance_ratio": 0.15}
"""Words are told apart by gaps of so much of the size of their letters: lines set to a width have narrow spaces."""
_HYPHEN = re.compile(r"(\w+)[-\u2010\u2011]\n(\w+)")
_ENDED = re.compile(r"[.!?:。！？…][\"'”’)\]]*\Z")


_UNKNOWN = re.compile(r"\(cid:\d+\)")
"""What pdfminer has for a character of a font that does not say which it is."""
_BULLET = "(cid:127)"
"""A code that WinAnsiEncoding does not use, which is a bullet (ISO 32000-1, annex D.2)."""


@dataclass
class _Line:
    """Words on one line. All lengths in points, from the top left."""

    words: list[dict[str, Any]]
    x0: float = field(init=False)
    x1: float = field(init=False)
    top: float = field(init=False)
    bottom: float = field(init=False)

    def __post_init__(self) -> None:
        self.x0, self.top = (min(word[side] for word in self.words) for side in ("x0", "top"))
        self.x1, self.bottom = (max(word[side] for word in self.words) for side in ("x1", "bottom"))

    @property
    def segments(self) -> list[_Line]:
        """Its parts with wide gaps between them."""
        parts: list[list[dict[str, Any]]] = []
        for word in sorted(self.words, key=lambda word: word["x0"]):
            if parts and word["x0"] - parts[-1][-1]["x1"] < 1.2 * (self.bottom - self.top):
                parts[-1].append(word)
            else:
                parts.append([word])
        return [_Line(part) for part in parts] if len(parts) > 1 else [self]

    @property
    def text(self) -> str:
        words = sorted(self.words, key=lambda word: word["x0"])
        if "table" in words[0]:
            return str(words[0]["text"])
        return _in_order([word["text"] for word in words], "mirrored" in words[0])


def page_text(page: Any) -> str:
    """The text of a page in reading order, tables as lines at their height; what is turned comes last.

    A page that is read from right to left is mirrored: what stands at its right edge has the smallest x.
    """
    for char in page.chars:
        char["text"] = char["text"].replace(_BULLET, "•")
        if _RIGHT_TO_LEFT.search(char["text"]):  # a form of a letter, or a ligature; letters are turned below
            char["text"] = unicodedata.normalize("NFKC", char["text"])[::-1]
    letters = [char["text"] for char in page.chars if char["text"].isalpha()]
    mirrored = 2 * sum(bool(_RIGHT_TO_LEFT.search(letter)) for letter in letters) > len(letters)
    if any(map(is_unknown, page.chars)):
        page = page.filter(lambda part: part["object_type"] != "char" or not is_unknown(part))
    turned: list[str] = []
    if any(not char["upright"] for char in page.chars):
        turned = _turned(page)
        page = page.filter(lambda part: part["object_type"] != "char" or part["upright"])
    tables = [table for table in page.find_tables() if len(table.rows) > 1 and len(table.columns) > 1]
    words = [
        {**word, "text": word["text"].translate(LIGATURES)}
        for word in page.extract_words(keep_blank_chars=False, use_text_flow=False, expand_ligatures=True, **_SPACING)
        if not any(_inside(word, table.bbox) for table in tables)
    ]
    for table in tables:  # a table is a word as large as itself
        cells = [[_cell_text(cell or "", mirrored) for cell in row] for row in table.extract(**_SPACING)]
        text = "\n".join(table_lines([row[::-1] for row in cells] if mirrored else cells))
        if text:
            x0, top, x1, bottom = table.bbox
            words.append({"text": f"\n{text}\n", "x0": x0, "x1": x1, "top": top, "bottom": bottom, "table": True})
    if mirrored:
        words = [{**word, "x0": -word["x1"], "x1": -word["x0"], "mirrored": True} for word in words]
    blocks = [_joined_lines(block) for block in ordered(words)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(block for block in (*blocks, *turned) if block)).strip()


def is_unknown(char: dict[str, Any]) -> bool:
    """Whether the font of a character of a page does not say which it is."""
    return bool(_UNKNOWN.fullmatch(char["text"]))


def _cell_text(cell: str, mirrored: bool) -> str:
    lines = (line.split()[:: -1 if mirrored else 1] for line in cell.translate(LIGATURES).split("\n"))
    return "\n".join(_in_order(line, mirrored) for line in lines)


def _in_order(words: list[str], mirrored: bool) -> str:
    """The words of a line, from its begin on the page to its end and as they are drawn, as they are read.

    Neighbouring words of the other direction are read the other way; numbers go with those around them.
    """
    turned = [bool(_RIGHT_TO_LEFT.search(word)) for word in words]
    words = [_letters(word) if turns else word for word, turns in zip(words, turned, strict=True)]
    kinds = "".join(
        "<" if turns else ">" if any(map(str.isalpha, word)) else " " for word, turns in zip(words, turned, strict=True)
    )
    for run in re.finditer(">[> ]*>" if mirrored else "<[< ]*<", kinds):
        words[run.start() : run.end()] = words[run.start() : run.end()][::-1]
    return " ".join(words)


def _letters(word: str) -> str:
    """A word of letters that are drawn from right to left; numbers and Latin words in it are not."""
    return _LEFT_TO_RIGHT.sub(lambda found: found[0][::-1], word[::-1].translate(_MIRRORED))


def _turned(page: Any) -> list[str]:
    """Text that is read upwards and text that is read downwards, each as one paragraph."""
    found: list[str] = []
    for upwards, letters, lines in ((True, "btt", "ltr"), (False, "ttb", "rtl")):

        def of_it(part: dict[str, Any], upwards: bool = upwards) -> bool:
            return part["object_type"] == "char" and not part["upright"] and (part["matrix"][1] > 0) is upwards

        words = page.filter(of_it).extract_words(char_dir_rotated=letters, line_dir_rotated=lines, **_SPACING)
        found.append(" ".join(word["text"].translate(LIGATURES) for word in words))
    return [text for text in found if text]


def _inside(word: dict[str, Any], box: tuple[float, float, float, float]) -> bool:
    x, y = (word["x0"] + word["x1"]) / 2, (word["top"] + word["bottom"]) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def ordered(words: list[dict[str, Any]], depth: int = 0) -> list[list[dict[str, Any]]]:
    """Blocks of words in reading order (recursive XY cut): columns left to right, what spans them in between."""
    if len(words) < 2 or depth > 12:
        return [words] if words else []
    height = sorted(word["bottom"] - word["top"] for word in words if "table" not in word)
    size = height[len(height) // 2] if height else 10.0
    if cut := _column_gap(words, size):
        left = [word for word in words if word["x1"] <= cut]
        right = [word for word in words if word["x0"] >= cut]
        return [*ordered(left, depth + 1), *ordered(right, depth + 1)]
    if cut := _widest_gap(words, "top", "bottom", size * 0.6):
        above = [word for word in words if word["bottom"] <= cut]
        below = [word for word in words if word["top"] >= cut]
        if any(_column_gap(part, size) for part in _bands(words, size)):
            return [*ordered(above, depth + 1), *ordered(below, depth + 1)]
    return [words]


def _bands(words: list[dict[str, Any]], size: float) -> list[list[dict[str, Any]]]:
    """The words between horizontal gaps."""
    bands: list[list[dict[str, Any]]] = []
    end = float("-inf")
    for word in sorted(words, key=lambda word: word["top"]):
        if word["top"] - end > size * 0.6 or not bands:
            bands.append([])
        bands[-1].append(word)
        end = max(end, word["bottom"])
    return bands


def _column_gap(words: list[dict[str, Any]], size: float) -> float:
    """The middle of a vertical gap between two columns of running text; 0 where there is none.

    Columns have several lines of several words on both sides; the gaps of a table's columns do not separate prose.
    """
    found = _widest_gap(words, "x0", "x1", size * 0.8)
    if not found:
        return 0.0
    left = [word for word in words if word["x1"] <= found]
    right = [word for word in words if word["x0"] >= found]
    for side in (left, right):
        lines = lines_of(side)
        if len(lines) < 3 or len(side) < 2.5 * len(lines):
            return 0.0
    return found


def _widest_gap(words: list[dict[str, Any]], start: str, end: str, least: float) -> float:
    """The middle of the widest gap between words in one direction; 0 where none is wider than `least`."""
    ordered = sorted(words, key=lambda word: word[start])
    reach, widest, middle = ordered[0][end], least, 0.0
    for word in ordered[1:]:
        if word[start] - reach > widest:
            widest, middle = word[start] - reach, (word[start] + reach) / 2
        reach = max(reach, word[end])
    return middle


def lines_of(words: list[dict[str, Any]]) -> list[_Line]:
    """Lines from top to bottom: words whose middles are at one height."""
    lines: list[list[dict[str, Any]]] = []
    for word in sorted(words, key=lambda word: (word["top"] + word["bottom"]) / 2):
        middle = (word["top"] + word["bottom"]) / 2
        if lines and lines[-1][0]["top"] <= middle <= lines[-1][0]["bottom"] and "table" not in word:
            lines[-1].append(word)
        else:
            lines.append([word])
    return [_Line(line) for line in lines]


def _joined_lines(words: list[dict[str, Any]]) -> str:
    """A block as text: wrapped lines of a paragraph run on, short ones and "label: value" lines stay."""
    parts: list[str] = []
    for tabular, run in itertools.groupby(_runs(lines_of(words)), key=lambda line: line[0]):
        lines = [line for _, line in run]
        parts.append("\n".join(table_lines(_cells(lines))) if tabular else _paragraphs(lines))
    return "\n\n".join(part for part in parts if part)


def _runs(lines: list[_Line]) -> list[tuple[int, _Line]]:
    """Each line with the number of the table without rules that it belongs to, 0 for none.

    A table is at least three lines with as many cells, which begin or end below each other.
    """
    result: list[tuple[int, _Line]] = []
    start = number = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and _aligned(lines[end - 1], lines[end]):
            end += 1
        if end - start >= 3 and len(lines[start].segments) > 1:
            number += 1
            result += [(number, line) for line in lines[start:end]]
        else:
            end = start + 1
            result.append((0, lines[start]))
        start = end
    return result


def _aligned(first: _Line, second: _Line) -> bool:
    """Whether two lines have as many cells, at the same columns."""
    a, b = first.segments, second.segments
    size = first.bottom - first.top
    near = all(min(abs(p.x0 - q.x0), abs(p.x1 - q.x1)) < size for p, q in zip(a, b, strict=False))
    return len(a) == len(b) > 1 and near and second.top - first.bottom < 2 * size


def _cells(lines: list[_Line]) -> list[list[str]]:
    return [[segment.text for segment in line.segments] for line in lines]


def _paragraphs(lines: list[_Line]) -> str:
    text = lines[0].text
    right = max(line.x1 for line in lines)
    for before, line in itertools.pairwise(lines):
        size = before.bottom - before.top
        wrapped = before.x1 > right - 0.25 * (right - before.x0) and line.top - before.bottom < size
        if re.search(r"\w[-\u2010]\Z", text) and line.text[:1].islower():
            text = f"{text}\n{line.text}"
        elif wrapped and not _ENDED.search(text) and not LABEL.match(line.text):
            text = f"{text} {line.text}"
        else:
            text = f"{text}\n{line.text}" if line.top - before.bottom < size else f"{text}\n\n{line.text}"
    return _without_hyphens(text)


def _without_hyphens(text: str) -> str:
    """Words that a line end divides, in one piece; a hyphen that the text uses elsewhere stays."""

    def joined(found: re.Match[str]) -> str:
        first, second = found.groups()
        keeps = f"{first}-{second}".lower() in text.lower() or first[-1].isdigit() or not second[0].islower()
        return f"{first}-{second}" if keeps else f"{first}{second}"

    return _HYPHEN.sub(joined, text)


def whole_sentences(pages: list[str]) -> list[str]:
    """The pages' texts; a sentence across a page break is kept whole on the page where it begins."""
    result = list(pages)
    for number in range(len(result) - 1):
        if not result[number] or _ENDED.search(result[number]) or not result[number + 1][:1].islower():
            continue
        end = re.search(r"[.!?](?=\s|\Z)", result[number + 1][:1000])
        if end is None:
            continue
        tail, result[number + 1] = result[number + 1][: end.end()], result[number + 1][end.end() :].lstrip()
        joint = "\n" if result[number][-1] in "-\u2010" else " "
        result[number] = _without_hyphens(f"{result[number]}{joint}{tail}")
    return result
