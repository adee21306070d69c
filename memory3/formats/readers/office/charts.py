"""Charts, whose values the file keeps with them: ECMA-376, part 1, 21.2. Those of Excel show cells."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup.typography import sentence, words
from memory3.formats.readers.office.numbers import shown_number
from memory3.formats.readers.tables import table_lines

_ALONG, _VALUES = ("cat", "xVal"), ("val", "yVal")
"""What stands along the axis of a series, and what it has there."""


def chart_text(xml: bytes) -> str:
    """The titles of a chart, and a table with a row for each category and a column for each series."""
    root = ElementTree.fromstring(xml)
    chart = next((part for part in root if tag_of(part) == "chart"), root)
    series = [part for part in chart.iter() if tag_of(part) == "ser"]
    names = [next((_words(part) for part in one if tag_of(part) == "tx"), "") for one in series]
    along = next((points for one in series if (points := _points(one, _ALONG))), {})
    values = [_points(one, _VALUES) for one in series]
    indices = sorted({index for points in values for index in points})
    rows = [[along.get(index, ""), *(points.get(index, "") for points in values)] for index in indices]
    return "\n".join([*chart_titles(root), *table_lines([["", *names], *rows], headed=any(names))])


def chart_titles(root: Element) -> list[str]:
    """The title of a chart, and those of its axes, which often name the unit."""
    titles = (sentence(_words(part)) for part in root.iter() if tag_of(part) == "title")
    return [title for title in titles if title]


def _words(element: Element) -> str:
    """The words of a title or a name, which are typed or come from a cell."""
    return words("".join(part.text or "" for part in element.iter() if tag_of(part) in ("t", "v")))


def _points(series: Element, kinds: tuple[str, ...]) -> dict[int, str]:
    """Values by their index; of categories on several levels, the innermost."""
    for part in (part for part in series if tag_of(part) in kinds):
        cache = next((inner for inner in part.iter() if tag_of(inner).endswith(("Cache", "Lit", "lvl"))), part)
        if tag_of(cache) == "multiLvlStrCache":
            cache = next((inner for inner in cache if tag_of(inner) == "lvl"), cache)
        code = next((inner.text or "" for inner in cache if tag_of(inner) == "formatCode"), "")
        points = (point for point in cache if tag_of(point) == "pt")
        return {int(attribute_of(point, "idx") or 0): _shown(point, code) for point in points}
    return {}


def _shown(point: Element, code: str) -> str:
    """A value in its format, or else with the 15 digits that Excel shows; a name as it is."""
    stored = _words(point)
    code = attribute_of(point, "formatCode") or code
    try:
        return shown_number(stored, code) or (f"{float(stored):.15g}" if code else stored)
    except ValueError:
        return stored
