"""A document on its way into the store: from the wire's item to references ready to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from memory_model.errors import Memory3Error
from memory_service.errors import BadRequest, DocumentEmpty, DocumentTooLarge
from memory_service.stores import NewDocument, NewReference
from memory_service.write.content_hash import content_hash_of, memory_id_of, text_hash_of, unwritten_hash_of
from memory_service.write.encoder import EncodedReferences, Encoder
from memory_service.write.vectors import read_vectors
from protos.memory.v1 import ingestion_pb2 as pb

_KEY_BYTES = 1024
_TITLE_BYTES = 1024
_METADATA_ENTRIES = 64
_METADATA_BYTES = 4096


@dataclass(frozen=True)
class StreamOptions:
    """What holds for all documents of a stream.

    overlap_tokens: how much of a reference's end the next one repeats. later: memories are written after the
    documents are stored.
    """

    document_limit_bytes: int = 1 << 22
    overlap_tokens: int = 0
    later: bool = False


@dataclass
class PendingDocument:
    """One item of a stream. Either `error` is set, or `texts` are its references.

    vectors, payloads: as long as `texts`; None where the service has still to make them. later: the memories are
    written after the document is stored (see late_memories); then no payload is there.
    """

    sequence: int
    key: str
    title: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_hash: bytes = b""
    texts: Sequence[str] = ()
    vectors: list[np.ndarray | None] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    error: Exception | None = None
    size_bytes: int = 0
    later: bool = False

    def take(self, texts: Sequence[str]) -> None:
        """Sets the references' texts; their vectors and payloads are still to be made."""
        self.texts = texts
        self.vectors = [None] * len(texts)
        self.payloads = [None] * len(texts)

    def missing(self) -> list[int]:
        """References that lack a vector, or a payload unless that comes later."""
        return [
            place
            for place, (vector, payload) in enumerate(zip(self.vectors, self.payloads, strict=True))
            if vector is None or (payload is None and not self.later)
        ]

    def fill(self, place: int, vector: np.ndarray, payload: bytes | None) -> None:
        """Gives reference `place` what the client did not send."""
        if self.vectors[place] is None:
            self.vectors[place] = vector
        if self.payloads[place] is None:
            self.payloads[place] = payload

    def reference(self, place: int) -> NewReference | None:
        """One reference as the store takes it; None while its vector or its memory is missing."""
        vector, payload = self.vectors[place], self.payloads[place]
        if vector is None or payload is None:
            return None
        memory_id = memory_id_of(self.key, self.content_hash, place, payload)
        return NewReference(memory_id, self.texts[place], vector, payload, google_crc32c.value(payload))

    def stored_hash(self) -> bytes:
        """The hash under which the document is stored."""
        return unwritten_hash_of(self.content_hash) if self.later else self.content_hash

    def finished(self) -> NewDocument:
        """The document as the store takes it: with all memories, or with none where they come later."""
        references = []
        for place, (text, vector) in enumerate(zip(self.texts, self.vectors, strict=True)):
            assert vector is not None, "filled before it is finished"
            if self.later:
                memory_id = memory_id_of(self.key, self.stored_hash(), place, b"")
                references.append(NewReference(memory_id, text, vector, b"", 0))
                continue
            reference = self.reference(place)
            assert reference is not None, "filled before it is finished"
            references.append(reference)
        return NewDocument(self.key, self.title, self.metadata, self.stored_hash(), references)


def read_item(item: pb.IngestItem, encoder: Encoder, options: StreamOptions) -> PendingDocument:
    """Checks and splits one item; what is wrong with it becomes its `error`, nothing is raised."""
    kind = item.WhichOneof("content")
    content = item.prepared if kind == "prepared" else item.document
    document = PendingDocument(item.sequence, content.key, content.title, dict(content.metadata))
    document.size_bytes = item.ByteSize()
    try:
        if kind is None:
            raise BadRequest("the item has neither a document nor prepared references", field="content")
        _check_head(document)
        if kind == "prepared":
            _read_prepared(document, item.prepared, encoder)
        else:
            _read_text(document, item.document.text, encoder, options)
        document.later = options.later and not any(document.payloads)
    except Memory3Error as error:
        document.error = error
    return document


def _check_head(document: PendingDocument) -> None:
    if not 1 <= len(document.key.encode()) <= _KEY_BYTES:
        raise BadRequest(
            f"a key of {len(document.key.encode())} bytes, expected 1 to {_KEY_BYTES}", field="key"
        )
    if len(document.title.encode()) > _TITLE_BYTES:
        raise BadRequest(
            f"a title of {len(document.title.encode())} bytes, at most {_TITLE_BYTES}", field="title"
        )
    sizes = [len(name.encode()) + len(value.encode()) for name, value in document.metadata.items()]
    if len(sizes) > _METADATA_ENTRIES or any(size > _METADATA_BYTES for size in sizes):
        raise BadRequest(
            f"metadata of {len(sizes)} entries, the longest {max(sizes)} bytes;"
            f" at most {_METADATA_ENTRIES} of {_METADATA_BYTES}",
            field="metadata",
        )


def _read_text(document: PendingDocument, text: str, encoder: Encoder, options: StreamOptions) -> None:
    raw, limit_bytes = text.encode(), options.document_limit_bytes
    if len(raw) > limit_bytes:
        raise DocumentTooLarge(
            f"the document has {len(raw)} bytes of text, at most {limit_bytes}: cut it into several documents",
            field="text", found=len(raw), limit=limit_bytes,
        )  # fmt: skip
    document.take(encoder.split(text, document.title, options.overlap_tokens) if text.strip() else [])
    if not document.texts:
        raise DocumentEmpty("the document has no text", field="text")
    document.content_hash = text_hash_of(document.title, document.metadata, text, options.overlap_tokens)


def _read_prepared(document: PendingDocument, prepared: pb.PreparedDocument, encoder: Encoder) -> None:
    if not prepared.references:
        raise DocumentEmpty("the document has no references", field="references")
    limit = encoder.description.reference_tokens
    texts, parts = [], []
    for place, reference in enumerate(prepared.references):
        text, embedding, payload = reference.text, reference.embedding, reference.payload
        if not text.strip():
            raise DocumentEmpty(f"reference {place} has no text", field=f"references[{place}].text")
        if (tokens := encoder.count_tokens(text)) > limit:
            raise BadRequest(
                f"reference {place} has {tokens} tokens, at most {limit}", field=f"references[{place}].text"
            )
        vector = None
        if embedding:
            name = f"references[{place}].embedding"
            rows = read_vectors(embedding, encoder.description.identity.dimension, field=name)
            if len(rows) != 1:
                raise BadRequest(f"reference {place} has {len(rows)} embeddings, expected one", field=name)
            vector = rows[0]
        if payload:
            encoder.check_payload(payload)
        texts.append(text)
        parts += [text.encode(), embedding, payload]
        document.vectors.append(vector)
        document.payloads.append(payload or None)
    document.texts = texts
    if prepared.content_hash:
        if len(prepared.content_hash) != 32 or document.missing():
            raise BadRequest(
                "content_hash has 32 bytes and goes with references that have embedding and payload",
                field="content_hash",
            )
        document.content_hash = prepared.content_hash
        return
    document.content_hash = content_hash_of(document.title, document.metadata, parts)


def checked(encoded: EncodedReferences, count: int, dimension: int) -> EncodedReferences:
    """The encoder's work, if it kept its contract; a NaN from a broken model must not reach the index."""
    if encoded.vectors.shape != (count, dimension) or len(encoded.payloads) != count:
        raise ValueError(
            f"the encoder gave vectors {encoded.vectors.shape}, {len(encoded.payloads)} payloads for {count} texts"
        )
    vectors = read_vectors(np.ascontiguousarray(encoded.vectors, "<f4").tobytes(), dimension, field="encoder")
    return EncodedReferences(vectors, encoded.payloads)
