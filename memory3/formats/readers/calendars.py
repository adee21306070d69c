"""Calendars and contacts: iCalendar (RFC 5545) and vCard (RFC 6350), with a line for each fact of an event or a person.

Long lines are folded within words there, pictures are in the text, and dates have no signs between their numbers.
"""

from __future__ import annotations

import datetime
import quopri
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode
from memory3.formats.readers.code import read_text
from memory3.formats.readers.markup.typography import words
from memory3.formats.readers.tables import table_lines
from memory3.printable import counted

_ITEMS = {"VEVENT": "Event", "VTODO": "Task", "VJOURNAL": "Journal", "VCARD": "Name"}
"""What holds the facts, with the label of the one that names it."""
_NAMING = ("SUMMARY", "FN")
_LABELS = {
    "DTSTART": "Start",
    "DTEND": "End",
    "DUE": "Due",
    "DURATION": "Duration",
    "RRULE": "Repeats",
    "LOCATION": "Location",
    "ORGANIZER": "Organizer",
    "ATTENDEE": "Attendee",
    "STATUS": "Status",
    "CATEGORIES": "Categories",
    "DESCRIPTION": "Description",
    "COMMENT": "Comment",
    "N": "Full name",
    "NICKNAME": "Nickname",
    "ORG": "Organization",
    "TITLE": "Job title",
    "ROLE": "Role",
    "TEL": "Phone",
    "EMAIL": "Email",
    "ADR": "Address",
    "BDAY": "Birthday",
    "ANNIVERSARY": "Anniversary",
    "URL": "URL",
    "NOTE": "Note",
}
_PICTURES = ("PHOTO", "LOGO")
_PROPERTY = re.compile(r'(?:[\w-]+\.)?(?P<name>[\w-]+)(?P<parameters>(?:;(?:[^":;]|"[^"]*")*)*):(?P<value>.*)')
_PARAMETER = re.compile(r';(?:(?P<name>[\w-]+)=)?(?P<value>(?:[^";]|"[^"]*")*)')
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(?:T(\d\d):?(\d\d)(?::?\d\d)?(Z)?)?")
_ESCAPED = re.compile(r"\\(.)")
_NO_USE = ("pref", "internet", "voice")
"""Kinds of addresses and numbers that say nothing to people."""


@dataclass
class _Property:
    """A line that is unfolded. parameters: by name in capitals; "TYPE" where it has none."""

    name: str
    parameters: dict[str, str]
    value: str


def read_calendar(source: Path) -> Iterator[FileDocument]:
    """Events, tasks and contacts; the title is the calendar's name, or the file's."""
    read = decode(source.read_bytes())
    title, items, pictures = "", list[list[str]](), 0
    open_: list[str] = []
    facts: list[tuple[str, str]] = []
    for line in _properties(read.text.replace("\r\n", "\n")):
        value = line.value.strip()
        if line.name == "BEGIN":
            open_.append(value.upper())
        elif line.name == "END":
            if open_ and open_.pop() in _ITEMS:
                items.append(_lines(facts))
                facts = []
        elif line.name == "X-WR-CALNAME":
            title = words(_text(value))
        elif line.name in _PICTURES:
            pictures += 1
        elif open_ and open_[-1] in _ITEMS and (fact := _fact(line, _ITEMS[open_[-1]])):
            facts.append(fact)
    if not any(items):
        yield from read_text(source)
        return
    text = "\n\n".join("\n".join(lines) for lines in items if lines)
    note = f"{counted(pictures, 'picture')} in it not read" if pictures else ""
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(read.note, note)


def _properties(text: str) -> Iterator[_Property]:
    lines = iter(re.sub(r"\n[ \t]", "", text).split("\n"))
    for line in lines:
        if (found := _PROPERTY.fullmatch(line)) is None:
            continue
        parameters: dict[str, str] = {}
        for one in _PARAMETER.finditer(found["parameters"]):
            name, given = (one["name"] or "TYPE").upper(), one["value"].strip('"')
            parameters[name] = f"{parameters[name]},{given}" if name in parameters else given
        value = found["value"]
        if "QUOTED-PRINTABLE" in found["parameters"].upper():  # of vCard 2.1
            while value.endswith("="):
                value = value[:-1] + next(lines, "")
            value = decode(quopri.decodestring(value.encode()), parameters.get("CHARSET", "")).text
        yield _Property(found["name"].upper(), parameters, value)


def _fact(line: _Property, naming: str) -> tuple[str, str] | None:
    """The label and the value for people; None for what is of no use to them."""
    label = naming if line.name in _NAMING else _LABELS.get(line.name, "")
    if line.name in ("TEL", "EMAIL", "ADR"):
        kinds = [kind for kind in line.parameters.get("TYPE", "").lower().split(",") if kind and kind not in _NO_USE]
        label += f" ({', '.join(kinds)})" if kinds else ""
    parts = [words(_text(part)) for part in re.split(r"(?<!\\);", line.value)]
    value = ", ".join(filter(None, parts)) if line.name in ("N", "ADR", "ORG", "RRULE") else words(_text(line.value))
    if found := _DATE.fullmatch(value):
        value = _date(found, line)
    elif line.name in ("ORGANIZER", "ATTENDEE"):
        address = re.sub(r"\Amailto:", "", value, flags=re.IGNORECASE)
        value = f"{line.parameters['CN']} <{address}>" if line.parameters.get("CN") else address
    return (label, value) if label and value else None


def _date(found: re.Match[str], line: _Property) -> str:
    """A date, or the minute of one. The end of a whole day is the day after, which nobody sees."""
    year, month, day, hour, minute, universal = found.groups()
    if hour:
        zone = "UTC" if universal else line.parameters.get("TZID", "")
        return f"{year}-{month}-{day} {hour}:{minute}{f' ({zone})' if zone else ''}"
    try:
        date = datetime.date(int(year), int(month), int(day))
    except ValueError:
        return found[0]
    return str(date - datetime.timedelta(days=line.name == "DTEND"))


def _lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each fact, with what names the event or the person in front."""
    order = [*_ITEMS.values(), *_LABELS.values()]
    named = sorted(facts, key=lambda fact: order.index(fact[0].partition(" (")[0]))
    named = [fact for fact in named if fact[0] != "Full name" or named[0][0] != "Name"]
    if len(named) == 1:
        return [f"{label}: {value}" for label, value in named]
    return table_lines([[label for label, _ in named], [value for _, value in named]], headed=True)


def _text(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] in "nN" else found[1], value)
