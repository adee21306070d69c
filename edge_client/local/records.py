"""A document as the device keeps it; heads and references are the file's (`memory3.files.knowledge_file`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from memory3.formats.naming import FILE, file_of, source_of


@dataclass(frozen=True)
class LocalDocument:
    """A document as it is kept. text: whole, from which its memories can be written anew; None where it was not kept.

    references: number of memories that are written, of `whole`, and written_at: when, in seconds since 1970; set by the
    knowledge base.
    """

    key: str
    title: str = ""
    text: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    references: int = 0
    whole: int = 0
    written_at: float = 0.0

    @property
    def partial(self) -> bool:
        """Whether memories are missing, because writing ended early; remembering it again goes on."""
        return self.references < self.whole

    @property
    def file(self) -> str:
        """The key of the file that it is from; its own where it is the whole file."""
        return file_of(self.key, self.metadata)

    @property
    def source(self) -> str:
        """The document for people, as `MemoryRead.source`."""
        return source_of(self.key, self.title, self.file)

    @property
    def content_hash(self) -> bytes:
        """SHA-256 of title, metadata and text: an equal document needs no writing, whatever file it is from."""
        metadata = {name: value for name, value in sorted(self.metadata.items()) if name != FILE}
        content = json.dumps([self.title, metadata, self.text])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
