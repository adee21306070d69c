"""A document as a file holds it, or why it cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class FileDocument:
    """One document of a file. source, place: the file and where in it, for people, such as "line 3".

    key: names the document; the file, where it is the document. unreadable: why it cannot be read, else empty.
    """

    source: str
    key: str
    title: str = ""
    text: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    unreadable: str = ""

    @property
    def where(self) -> str:
        """For people: the file, the place in it, and the key where it is another name."""
        return where(self.source, self.place, self.key)

    @classmethod
    def failed(cls, source: Path, error: Exception | str, place: str = "") -> FileDocument:
        """What cannot be read; the error says why."""
        message = str(error) or type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            message = f"not valid UTF-8 at byte {error.start}: convert the file"
        return cls(str(source), str(source), place=place, unreadable=message)

    def named(self, typed: Path) -> FileDocument:
        """With the file as it was typed, which also names the document where the file is one."""
        key = str(typed) if self.key == self.source else self.key
        return replace(self, source=str(typed), key=key)


def where(source: str, place: str, key: str) -> str:
    """For people: a file, the place in it, and the key where it is another name."""
    parts = [source, place, f"key {key}" if key != source else ""]
    return ", ".join(part for part in parts if part)
