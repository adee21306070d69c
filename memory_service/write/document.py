"""A document before it is stored: read from the wire's items, split into references, completed by the encoder.

A document of a cold start is stored with its texts and vectors, with empty payloads, and marked as not written.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from memory3.errors import Memory3Error
from memory3.text.references import fitting_title, split
from memory_service.encoder import Encoder, read_vectors
from memory_service.errors import BadRequest, DocumentEmpty, DocumentTooLarge, ShuttingDown
from memory_service.stores.store import NewDocument, NewReference, StoredVersion, Written
from protos.memory.v1 import ingestion_pb2 as pb

_KEY_BYTES = 1024
_TITLE_BYTES = 1024
_METADATA_ENTRIES = 64
_METADATA_BYTES = 4096
LARGE_BYTES = 64 << 10
"""From this size on a document is prepared and written where it delays no small one."""
_REFERENCES_LIMIT = 64
"""Text of a document's references, in document limits: titles and overlaps are repeated in each. It is the same for
texts that are split here and for references that are sent, so that what was stored can be restored."""


@dataclass
class PendingDocument:
    """A document whose vectors and payloads are still being made; `finished` is what a store takes.

    The store's `NewDocument` never changes and lacks nothing, so that no store has to check it; this one is filled
    reference by reference, and may be refused or found unchanged before it is complete.

    vectors (float32 [dimension]), payloads: as many as `texts`; None for what is still to be made. later: the payloads
    are written after the document is stored.

    In an ingest stream: its sequence number there; error: why it is refused; size_bytes: of its messages; held_bytes:
    of the budget of memory; unchanged: the stored version, where it equals this one; written: the store's answer.
    """

    key: str
    title: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_hash: bytes = b""
    texts: list[str] = field(default_factory=list)
    vectors: list[np.ndarray | None] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    later: bool = False
    sequence: int = 0
    error: Exception | None = None
    size_bytes: int = 0
    held_bytes: int = 0
    unchanged: StoredVersion | None = None
    written: Written | None = None

    def take(self, texts: Sequence[str]) -> None:
        """Sets the references' texts; their vectors and payloads are still to be made."""
        self.texts = list(texts)
        self.vectors = [None] * len(texts)
        self.payloads = [None] * len(texts)

    def refuse(self, error: Exception) -> None:
        """Sets why it is refused, and drops its references."""
        self.error = error
        self.take([])

    @property
    def to_write(self) -> bool:
        """Whether the store must write it."""
        return self.error is None and self.unchanged is None

    def missing(self) -> list[int]:
        """References that lack a vector, or a payload unless that comes later."""
        return [
            chunk
            for chunk, (vector, payload) in enumerate(zip(self.vectors, self.payloads, strict=True))
            if vector is None or (payload is None and not self.later)
        ]

    def fill(self, chunk: int, vector: np.ndarray, payload: bytes | None) -> None:
        """Gives a reference what the client did not send."""
        if self.vectors[chunk] is None:
            self.vectors[chunk] = vector
        if self.payloads[chunk] is None:
            self.payloads[chunk] = payload

    def reference(self, chunk: int) -> NewReference | None:
        """One reference as the store takes it; None while its vector or its memory is missing."""
        vector, payload = self.vectors[chunk], b"" if self.later else self.payloads[chunk]
        if vector is None or payload is None:
            return None
        memory_id = memory_id_of(self.key, self.content_hash, chunk, payload)
        crc32c = google_crc32c.value(payload) if payload else 0
        return NewReference(memory_id, self.texts[chunk], vector, payload, crc32c)

    def finished(self) -> NewDocument:
        """The document as the store takes it: with all memories, or with none where they come later."""
        references = [self.reference(chunk) for chunk in range(len(self.texts))]
        whole = [reference for reference in references if reference is not None]
        assert len(whole) == len(references), "filled before it is finished"
        return NewDocument(self.key, self.title, self.metadata, self.content_hash, whole, written=not self.later)


class DocumentReader:
    """Checks and splits the items of one stream; a document may come in several (`PreparedDocument.continued`)."""

    def __init__(
        self,
        encoder: Encoder,
        limit_bytes: int,
        *,
        memory_bytes: int = sys.maxsize,
        overlap_tokens: int = 0,
        later: bool = False,
    ) -> None:
        """limit_bytes: of a document's text. overlap_tokens: of a reference's end that the next one repeats.

        memory_bytes: of a document's vectors and memories, which are in memory together until they are stored.
        later: memories are written after the documents are stored (cold start).
        """
        self._encoder = encoder
        self._limit_bytes, self._memory_bytes = limit_bytes, memory_bytes
        self._overlap_tokens, self._later = overlap_tokens, later
        self.ended = False
        self._open: PendingDocument | None = None
        self._hashed: list[bytes] = []
        self._text_bytes = 0
        self._made_bytes = 0

    @property
    def open_sequence(self) -> int | None:
        """Sequence number of the document of which more is to come."""
        return self._open.sequence if self._open is not None else None

    def read(self, item: pb.IngestItem, refusal: Exception | None = None) -> PendingDocument | None:
        """The item's document, None while more of it is to come; what is wrong with it becomes its `error`.

        refusal: why the item's content is not taken; the document ends with its last piece all the same.
        """
        kind = item.WhichOneof("content")
        content = item.prepared if kind == "prepared" else item.document
        document = self._open
        first = document is None
        if document is None:
            document = PendingDocument(content.key, content.title, dict(content.metadata), sequence=item.sequence)
            self._hashed, self._text_bytes, self._made_bytes = [], 0, 0
        document.size_bytes += item.ByteSize()
        continued = kind == "prepared" and item.prepared.continued
        if document.error is None and refusal is not None:
            document.refuse(refusal)
        if document.error is None:
            try:
                if kind is None:
                    raise BadRequest("the item has neither a document nor prepared references", field="content")
                if not first and (kind, content.key) != ("prepared", document.key):
                    raise BadRequest("a document's pieces must be prepared and have one key", field="key")
                if first and kind == "document":
                    document.title = title_of(item.document, self._encoder)
                if first:
                    check_head(document.key, document.title, document.metadata)
                if kind == "prepared":
                    self._read_prepared(document, item.prepared, continued)
                else:
                    self._read_text(document, item.document)
                document.later = self._later and not any(document.payloads)
            except Memory3Error as error:
                document.refuse(error)
        self._open = document if continued else None
        return None if continued else document

    def _read_text(self, document: PendingDocument, sent: pb.Document) -> None:
        text = sent.text
        size, limit = len(text.encode()), self._limit_bytes
        if size > limit:
            raise DocumentTooLarge(
                f"the document has {size} bytes of text, at most {limit}: cut it into several documents",
                field="text",
                found=size,
                limit=limit,
            )
        overlap = self._overlap_tokens
        document.take(self._split(text, document.title, overlap) if text.strip() else [])
        if not document.texts:
            raise DocumentEmpty("the document has no text", field="text")
        self._text_bytes = sum(len(reference.encode()) for reference in document.texts)
        self._made_bytes = len(document.texts) * self._bytes_of_reference(b"")
        self._require_room("text")
        document.content_hash = text_hash_of(sent.title, document.metadata, text, overlap)

    def _split(self, text: str, title: str, overlap_tokens: int) -> list[str]:
        """The document's references; a text is left where the stream has ended."""
        encoder = self._encoder

        def count_tokens(part: str) -> int:
            if self.ended:
                raise ShuttingDown("the client has left")
            return encoder.count_tokens(part)

        return split(text, title, count_tokens, encoder.description.reference_tokens, overlap_tokens)

    def _read_prepared(self, document: PendingDocument, prepared: pb.PreparedDocument, continued: bool) -> None:
        limit = self._encoder.description.reference_tokens
        for number, reference in enumerate(prepared.references):
            text, embedding, payload = reference.text, reference.embedding, reference.payload
            name = f"references[{number}]"
            if not text.strip():
                raise DocumentEmpty(f"reference {number} has no text", field=f"{name}.text")
            if (tokens := self._encoder.count_tokens(text)) > limit:
                raise BadRequest(f"reference {number} has {tokens} tokens, at most {limit}", field=f"{name}.text")
            vector = None
            if embedding:
                rows = read_vectors(embedding, self._encoder.description.identity.dimension, field=f"{name}.embedding")
                if len(rows) != 1:
                    raise BadRequest(f"{len(rows)} embeddings, expected one", field=f"{name}.embedding")
                vector = rows[0]
            if payload:
                self._encoder.check_payload(payload)
            self._text_bytes += len(text.encode())
            self._made_bytes += self._bytes_of_reference(payload)
            document.texts.append(text)
            document.vectors.append(vector)
            document.payloads.append(payload or None)
            if not document.content_hash:
                self._hashed += [text.encode(), embedding, payload]
        self._require_room("references")
        document.content_hash = document.content_hash or prepared.content_hash
        unwritten = self._later and not any(document.payloads)
        lacking = None in document.payloads and not unwritten
        if document.content_hash and (
            len(document.content_hash) != 32 or lacking or any(vector is None for vector in document.vectors)
        ):
            raise BadRequest(
                "content_hash has 32 bytes and goes with references that all have embedding and payload; without"
                " payloads, with MEMORY_WRITING_LATER",
                field="content_hash",
            )
        if not continued:
            if not document.texts:
                raise DocumentEmpty("the document has no references", field="references")
            if self._later and any(document.payloads) and not all(document.payloads):
                number = document.payloads.index(None)
                raise BadRequest(
                    f"reference {number} has no payload and others have one: with MEMORY_WRITING_LATER send"
                    " payloads for all references of a document or for none",
                    field="references",
                )
            document.content_hash = document.content_hash or content_hash_of(
                document.title, document.metadata, self._hashed
            )

    def _bytes_of_reference(self, payload: bytes) -> int:
        """Of its vector and memory; one that is still to be written, also later, counts as the longest."""
        description = self._encoder.description
        return 4 * description.identity.dimension + (len(payload) or description.payload_bytes)

    def _require_room(self, field: str) -> None:
        if self._made_bytes > self._memory_bytes:
            raise DocumentTooLarge(
                f"the document's vectors and memories have {self._made_bytes} bytes, at most {self._memory_bytes}:"
                " cut it into several documents, or raise document_memory_bytes",
                field=field,
                found=self._made_bytes,
                limit=self._memory_bytes,
            )
        limit = _REFERENCES_LIMIT * self._limit_bytes
        if self._text_bytes > limit:
            raise DocumentTooLarge(
                f"the references have {self._text_bytes} bytes of text, at most {limit}, because each repeats title and"
                " overlap: shorten these, or cut the document into several",
                field=field,
                found=self._text_bytes,
                limit=limit,
            )


def check_head(key: str, title: str, metadata: Mapping[str, str]) -> None:
    """Raises BadRequest for a key, a title or metadata that is too long."""
    sizes = [len(name.encode()) + len(value.encode()) for name, value in metadata.items()]
    for name, text, most in (("key", key, _KEY_BYTES), ("title", title, _TITLE_BYTES)):
        if len(text.encode()) > most or (name == "key" and not text):
            raise BadRequest(f"a {name} of {len(text.encode())} bytes, at most {most}", field=name)
    if len(sizes) > _METADATA_ENTRIES or any(size > _METADATA_BYTES for size in sizes):
        raise BadRequest(
            f"metadata of {len(sizes)} entries, the longest {max(sizes)} bytes;"
            f" at most {_METADATA_ENTRIES} of {_METADATA_BYTES}",
            field="metadata",
        )


def title_of(sent: pb.Document, encoder: Encoder) -> str:
    """What is stored of a document's title and stands at the head of its references: as much as fits there."""
    title, whole = sent.title, " ".join(sent.title.split())
    if len(whole.encode()) > _TITLE_BYTES:
        beginning = whole.encode()[:_TITLE_BYTES].decode(errors="ignore")
        title = beginning.rpartition(" ")[0] or beginning
    return fitting_title(title, encoder.count_tokens, encoder.description.reference_tokens)


def memory_id_of(key: str, content_hash: bytes, chunk: int, payload: bytes) -> int:
    """64 bits of SHA-256: names these bytes for ever, so that a client may keep them.

    The payload names its model itself.
    """
    digest = hashlib.sha256(content_hash + chunk.to_bytes(4, "big") + hashlib.sha256(payload).digest() + key.encode())
    return int.from_bytes(digest.digest()[:8], "big")


def content_hash_of(title: str, metadata: Mapping[str, str], parts: Sequence[bytes]) -> bytes:
    """SHA-256 over title, metadata and content, each with its length, so that no two documents run together."""
    digest = hashlib.sha256()
    pairs = [text.encode() for pair in sorted(metadata.items()) for text in pair]
    for group in ([title.encode()], pairs, parts):
        digest.update(len(group).to_bytes(8, "big"))
        for part in group:
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def text_hash_of(title: str, metadata: Mapping[str, str], text: str, overlap_tokens: int = 0) -> bytes:
    """The content hash of a document as text; cut otherwise, it is another document."""
    cut = [f"overlap of {overlap_tokens} tokens".encode()] if overlap_tokens else []
    return content_hash_of(title, metadata, [text.encode(), *cut])
