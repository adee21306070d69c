"""A document on its way from this device into a knowledge base: what may be its key, its title and its text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath

from memory_model.errors import InvalidInput, MissingFile

LARGEST_BYTES = 4 << 20
LONGEST_KEY_BYTES = 1024
LONGEST_TITLE = 200
_OTHER_FORMATS = {
    b"%PDF-": "a PDF", b"PK\x03\x04": "an archive or an office document", b"\xd0\xcf\x11\xe0": "an office document",
}  # fmt: skip


@dataclass(frozen=True)
class OwnDocument:
    """Checked when made; raises InvalidInput. key: a later document of that key replaces this one."""

    key: str
    title: str
    text: str

    def __post_init__(self) -> None:
        """Refuse what the service would refuse later, or what holds nothing."""
        if (
            not 0 < len(self.key.encode(errors="replace")) <= LONGEST_KEY_BYTES
            or len(self.title) > LONGEST_TITLE
        ):
            raise InvalidInput(
                f"a key has 1 to {LONGEST_KEY_BYTES} bytes, a title at most {LONGEST_TITLE} characters"
            )
        if not self.text.strip():
            raise InvalidInput("the document is empty")


def text_of(content: bytes) -> str:
    """The text of a file's bytes, UTF-8 with or without a mark; raises InvalidInput, which says what to do."""
    for beginning, name in _OTHER_FORMATS.items():
        if content.startswith(beginning):
            raise InvalidInput(
                f"the document is {name}, not text: save it as text, or let `memory-service ingest` read it"
            )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the document is no UTF-8 text (byte {error.start}): save it as text first"
        ) from error
    if "\0" in text:
        raise InvalidInput("the document holds zero bytes, so it is no text: convert it first")
    return text


def document_of(path: str | Path) -> OwnDocument:
    """A file of this device: its name is the key, its name without the ending the title.

    Raises MissingFile, InvalidInput.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise InvalidInput(
                f"{file} is larger than {LARGEST_BYTES >> 20} MB: let `memory-service ingest` read it"
            )
        content = file.read_bytes()
    except OSError as error:
        raise MissingFile(f"{file} cannot be read: {error.strerror}") from error
    name = os.fsencode(file.name).decode(errors="replace")  # file names are bytes, keys are text
    return OwnDocument(name, PurePath(name).stem[:LONGEST_TITLE], text_of(content))
