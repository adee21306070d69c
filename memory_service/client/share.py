"""Documents divided among processes and machines that read the same files and know nothing of one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from memory3.errors import InvalidInput, shortened
from memory3.formats import count_documents, holds_records, read_documents
from memory3.formats.document import FileDocument


@dataclass(frozen=True)
class Share:
    """One of `count` parts of the documents. Raises InvalidInput.

    Files are dealt out, and where one holds many records, these: nothing is converted twice.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Check the index."""
        if not 0 <= self.index < self.count:
            raise InvalidInput(f"there is no share {self.index}/{self.count}: the first of 8 is 0/8, the last 7/8")

    @classmethod
    def parse(cls, text: str) -> Share:
        """`2/8`."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal()):
            raise InvalidInput(f"a share is INDEX/COUNT, the first of 8 is 0/8: not {shortened(text)!r}")
        return cls(int(index), int(count))

    def of(self, other: Share) -> Share:
        """This share of another one."""
        return Share(self.index * other.count + other.index, self.count * other.count)

    @property
    def is_all(self) -> bool:
        """Whether there is no other share."""
        return self.count == 1

    def has(self, key: str) -> bool:
        """Whether what has this key is in it; the same in every process."""
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.index

    def has_some_of(self, source: Path, key: str) -> bool:
        """Whether documents of a file can be in it."""
        return self.has(key) or holds_records(source)

    def expected(self, source: Path) -> int:
        """About how many documents of a file that it has some of are in it."""
        return -(-count_documents(source) // self.count) if holds_records(source) else count_documents(source)

    def documents(self, sources: Mapping[str, Path]) -> Iterator[FileDocument]:
        """The documents of files, {key: file}, that are in it, in a fixed order."""
        for key, source in sources.items():
            dealt_whole = not holds_records(source)
            if dealt_whole and not self.has(key):
                continue
            for document in read_documents(source, Path(key)):
                if dealt_whole or self.has(document.key):
                    yield document
