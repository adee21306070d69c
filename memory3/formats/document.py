"""A document as a file holds it, or why it cannot be read."""

from __future__ import annotations

import contextlib
import json
import re
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from memory3.errors import InvalidInput, shortened

NO_TEXT = "it has no text"
"""Why a file that is blank cannot be read."""
ENCRYPTED = "it is encrypted: store it without a password"
_MOST_SAID = 200
COMPOUND = bytes.fromhex("d0cf11e0a1b11ae1")
"""How a compound file begins: one of Office before 2007, a newer one with a password, a message of Outlook."""
LARGEST_UNPACKED_BYTES = 512 << 20
"""Of all parts of an archive together, which are read in memory."""


@dataclass(frozen=True)
class FileDocument:
    """One document of a file. source, position: the file and the position in it, such as "line 3".

    key: names the document; the file, where it is the document, or the file, `#` and where in it. unreadable: why it
    cannot be read, else empty. notes: what was assumed, changed or left out while reading, for people.
    """

    source: str
    key: str
    title: str = ""
    text: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    position: str = ""
    unreadable: str = ""
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """For messages: the file, the position in it, and the key if it differs from the file."""
        return where(self.source, self.position, self.key)

    @classmethod
    def failed(cls, source: Path, error: Exception | str, position: str = "") -> FileDocument:
        """A document that cannot be read, with the reason."""
        message = str(error) or type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            message = f"not valid {error.encoding.upper()} at byte {error.start}: convert the file"
        elif isinstance(error, json.JSONDecodeError):
            message = f"it is no JSON object: {error.msg} at character {error.colno}"
        elif isinstance(error, OSError) and error.strerror:
            message = f"it cannot be read: {error.strerror}"
        return cls(str(source), str(source), position=position, unreadable=message)

    @classmethod
    def broken(cls, source: Path, kind: str, error: BaseException, position: str = "") -> FileDocument:
        """A document that is not what its name says, with what it seems to be and what to do about it.

        kind: "DOCX file". error: of the reader, whose words stand in parentheses, other than those of an InvalidInput.
        """
        said, name = " ".join(str(error).split())[:_MOST_SAID], type(error).__name__
        named = said if said.startswith(name) else f"{name}: {said}"
        why = said if isinstance(error, InvalidInput) else f"{_seems(source)} ({named})"
        return cls.failed(source, f"it is no readable {kind}: {why}", position)

    def named(self, typed: Path) -> FileDocument:
        """With the file as it was typed, which also names the document where the file is one or it is in the file."""
        key, of_file = self.key, self.source
        if key == of_file or key.startswith(f"{of_file}#"):
            key = f"{typed}{key[len(of_file) :]}"
        return replace(self, source=str(typed), key=key)

    def noted(self, *notes: str) -> FileDocument:
        """With further notes; empty ones do not count."""
        return replace(self, notes=(*self.notes, *filter(None, notes)))


def _seems(source: Path) -> str:
    """What is in a file that its reader could not read, and what to do."""
    try:
        data = source.read_bytes()
    except OSError:
        data = b""
    if data.startswith(COMPOUND) and "EncryptedPackage".encode("utf-16-le") in data:
        return ENCRYPTED
    if data.startswith(b"PK") and _is_encrypted(source):
        return ENCRYPTED
    if not data:
        return "it is empty"
    head = data[:1024].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "it is a web page, perhaps one that asks to sign in: download the file again, or name it .html"
    if head.startswith(b"%pdf-") and source.suffix.lower() != ".pdf":
        return "it is a PDF: name it .pdf"
    return "it is damaged, or of another kind: copy it again, or save it anew with the program that made it"


def _is_encrypted(source: Path) -> bool:
    """Whether an OpenDocument file or an EPUB says that its parts are."""
    with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        manifest = archive.read("META-INF/manifest.xml") if "META-INF/manifest.xml" in names else b""
        return "META-INF/encryption.xml" in names or b"encryption-data" in manifest
    return False


def joined(documents: Sequence[FileDocument]) -> str:
    """The texts of a file's documents as one, each under its title where they have different ones."""
    if len({document.title for document in documents}) == 1:  # one, or the pages of one
        return "\n\n".join(document.text for document in documents)
    return "\n\n".join(f"{one.title}\n{one.text}" for one in documents)


def check_unpacked(archive: zipfile.ZipFile) -> None:
    """Raise InvalidInput for an archive whose parts are larger than what is read."""
    if (size := sum(part.file_size for part in archive.infolist())) > LARGEST_UNPACKED_BYTES:
        raise InvalidInput(f"it unpacks to {size >> 20:,} MiB, at most {LARGEST_UNPACKED_BYTES >> 20} are read")


def where(source: str, position: str, key: str) -> str:
    """For messages: a file, the position in it, and the key if it differs from the file."""
    parts = [source, position, f"key {shortened(key)}" if key != source and key.partition("#")[0] != source else ""]
    return ", ".join(part for part in parts if part)


def title_of(source: Path) -> str:
    """A title from the file's name."""
    return source.stem.replace("_", " ")


_PROGRAMS = r"microsoft (office )?(word|excel|powerpoint)|openoffice|libreoffice|google docs|writer|print"
_USELESS_TITLE = re.compile(
    rf"({_PROGRAMS}) - .*|.*\.(docx?|dotx?|odt|rtf|pages|tex|dvi|pdf|indd|qxd|pptx?|xlsx?|html?|txt|tmp|eps|fm)"
    r"|(untitled|unbenannt|sans titre|no title|kein titel|new|title|document|dokument|presentation|slide|page|sheet"
    r"|workbook|book|mappe|scan|img|image|powerpoint presentation|powerpoint-präsentation|word document"
    r"|\(?anonymous\)?|unspecified)"
    r"[ _.-]*(document|page|dokument|seite)?[ _.()\d-]*|[\W\d_]*|d:\d{8}.*|file:.*|https?:.*",
    re.IGNORECASE,
)


def useful_title(title: object) -> str:
    """A title from a file's metadata; empty for one that a program made up, such as "Microsoft Word - Document1"."""
    words = " ".join(str(title or "").replace("\0", " ").split())
    return "" if _USELESS_TITLE.fullmatch(words) else words


def composed(text: str) -> str:
    """The text with ä as one character, as it is asked for, where a file or its name has a and two dots (NFC)."""
    return unicodedata.normalize("NFC", text)
