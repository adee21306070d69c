"""What became of the files of a run: read, skipped and why, and what was assumed while reading.

`edge-client remember`, the page's upload and `memory-service ingest` fill one report and print it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from memory3.formats.document import FileDocument

HIDDEN = "hidden"
LEFT = "a program's own copy"
"""Of a file: what an editor, an office program or a download leaves beside it."""
UNSUPPORTED = "of an unsupported kind"
EMPTY = "empty"
TOO_LARGE = "too large"
NO_FILE = "no regular file"
NOT_OPENED = "not opened"
"""Of a folder."""
UNREADABLE = "unreadable"
NAMES = 12
"""Names that one line of a report lists."""


@dataclass(frozen=True)
class Skipped:
    """A file, or a hidden folder, that was not read. reason: one of the constants above; why: more about it."""

    name: str
    reason: str
    why: str = ""


@dataclass
class Report:
    """Filled while files are found and read. read: documents by kind of file; files: those that they are of."""

    read: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)
    notes: dict[str, dict[str, None]] = field(default_factory=dict)
    """What was assumed, changed or left out, by note, with the names of the files in their order."""

    def skip(self, name: object, reason: str, why: str = "") -> None:
        """Add a file that is not read."""
        self.skipped.append(Skipped(str(name), reason, why))

    def add(self, kind: str, documents: Iterable[FileDocument]) -> Iterator[FileDocument]:
        """The documents of one file of a kind, counted as they pass."""
        readable = False
        for document in documents:
            self.files[kind] += not readable and not document.unreadable
            readable = readable or not document.unreadable
            self.count(kind, document.where, document.source, document.unreadable, document.notes)
            yield document

    def count(self, kind: str, where: str, source: str, unreadable: str, notes: Iterable[str] = ()) -> None:
        """Add one document; where: it is, for people."""
        if unreadable:
            self.skip(where, UNREADABLE, unreadable)
        else:
            self.read[kind] += 1
        for note in notes:
            self.notes.setdefault(note, {})[source] = None

    def lines(self, *, unreadable: bool = True) -> list[str]:
        """For people: a line of what was read, one for each reason to skip, one for each note.

        unreadable: also what could not be read; a command that has printed each failure leaves it out.
        """
        read = [
            f"{files:,} {kind}{f' ({self.read[kind]:,} documents)' if self.read[kind] > files else ''}"
            for kind, files in sorted(self.files.items(), key=lambda item: (-item[1], item[0]))
        ]
        found = [f"read: {', '.join(read)}"] if read else []
        for reason in dict.fromkeys(skipped.reason for skipped in self.skipped):
            if reason == UNREADABLE and not unreadable:
                continue
            names = [f"{s.name} ({s.why})" if s.why else s.name for s in self.skipped if s.reason == reason]
            found.append(f"skipped {len(names):,} {reason}: {_listed(names)}")
        return [*found, *(f"{_listed(list(names))}: {note}" for note, names in self.notes.items())]

    def as_json(self) -> dict[str, object]:
        """For programs and the page."""
        return {
            "read": dict(self.read),
            "skipped": [{"name": s.name, "reason": s.reason, "why": s.why} for s in self.skipped],
            "notes": [{"note": note, "names": list(names)} for note, names in self.notes.items()],
        }


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES
    return ", ".join(names[:NAMES]) + (f" and {more:,} more" if more > 0 else "")
