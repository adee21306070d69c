"""Days of history: births, deaths and events with their dates, from BSD's `calendar`.

A line is `month/day TAB event, year` (`01/07 First transatlantic telephone call, 1927`); the passages say
it as a sentence: `7 January 1927: First transatlantic telephone call.` One document for each day and file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from memory_model.training.corpus.passages import Passage, pack

_FILES = ("birthday", "computer", "history", "music")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_LINE = re.compile(r"^(\d\d)/(\d\d)\*?\t+(.+)$")
_YEAR = re.compile(r",? (?:in )?(\d{3,4})(?: \(?(?:CE|AD)\)?)?(?=$|[,.;])")


def passages(folder: Path) -> Iterator[Passage]:
    """The passages of the calendar files in `folder`; lines without a year are left out."""
    for name in _FILES:
        months: dict[int, list[str]] = defaultdict(list)
        text = (folder / f"calendar.{name}").read_text(encoding="utf-8", errors="replace")
        for line in re.sub(r"\n\t+", " ", text).splitlines():
            if said := sentence(line):
                months[int(line[:2])].append(said)
        for month, lines in sorted(months.items()):
            title = f"Days of {_MONTHS[month - 1]} ({name})"
            for number, packed in enumerate(pack(lines, longest=900)):
                yield Passage("calendar", f"{name}/{month:02}-{number}", title, packed)


def sentence(line: str) -> str:
    """A calendar's line as a dated sentence, or "" when it holds no event with a year."""
    match = _LINE.match(line.rstrip())
    if not match or not 1 <= int(match.group(1)) <= 12:
        return ""
    event = match.group(3).strip()
    year = _YEAR.search(event)
    if not year:
        return ""
    rest = (event[: year.start()] + event[year.end() :]).strip(" .")
    return f"{int(match.group(2))} {_MONTHS[int(match.group(1)) - 1]} {year.group(1)}: {rest}."
