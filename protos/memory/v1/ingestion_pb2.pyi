import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from protos.memory.v1 import filter_pb2 as _filter_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemoryWriting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_WRITING_UNSPECIFIED: _ClassVar[MemoryWriting]
    MEMORY_WRITING_NOW: _ClassVar[MemoryWriting]
    MEMORY_WRITING_LATER: _ClassVar[MemoryWriting]

class IngestOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INGEST_OUTCOME_UNSPECIFIED: _ClassVar[IngestOutcome]
    INGEST_OUTCOME_STORED: _ClassVar[IngestOutcome]
    INGEST_OUTCOME_REPLACED: _ClassVar[IngestOutcome]
    INGEST_OUTCOME_UNCHANGED: _ClassVar[IngestOutcome]
MEMORY_WRITING_UNSPECIFIED: MemoryWriting
MEMORY_WRITING_NOW: MemoryWriting
MEMORY_WRITING_LATER: MemoryWriting
INGEST_OUTCOME_UNSPECIFIED: IngestOutcome
INGEST_OUTCOME_STORED: IngestOutcome
INGEST_OUTCOME_REPLACED: IngestOutcome
INGEST_OUTCOME_UNCHANGED: IngestOutcome

class IngestRequest(_message.Message):
    __slots__ = ("start", "item")
    START_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    start: IngestStart
    item: IngestItem
    def __init__(self, start: _Optional[_Union[IngestStart, _Mapping]] = ..., item: _Optional[_Union[IngestItem, _Mapping]] = ...) -> None: ...

class IngestStart(_message.Message):
    __slots__ = ("knowledge_base", "create_if_missing", "memory_writing", "overlap_tokens")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    CREATE_IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_WRITING_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    create_if_missing: bool
    memory_writing: MemoryWriting
    overlap_tokens: int
    def __init__(self, knowledge_base: _Optional[str] = ..., create_if_missing: _Optional[bool] = ..., memory_writing: _Optional[_Union[MemoryWriting, str]] = ..., overlap_tokens: _Optional[int] = ...) -> None: ...

class IngestItem(_message.Message):
    __slots__ = ("sequence", "document", "prepared")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    document: Document
    prepared: PreparedDocument
    def __init__(self, sequence: _Optional[int] = ..., document: _Optional[_Union[Document, _Mapping]] = ..., prepared: _Optional[_Union[PreparedDocument, _Mapping]] = ...) -> None: ...

class Document(_message.Message):
    __slots__ = ("key", "title", "text", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    key: str
    title: str
    text: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, key: _Optional[str] = ..., title: _Optional[str] = ..., text: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PreparedDocument(_message.Message):
    __slots__ = ("key", "title", "references", "metadata", "content_hash", "continued")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    key: str
    title: str
    references: _containers.RepeatedCompositeFieldContainer[PreparedReference]
    metadata: _containers.ScalarMap[str, str]
    content_hash: bytes
    continued: bool
    def __init__(self, key: _Optional[str] = ..., title: _Optional[str] = ..., references: _Optional[_Iterable[_Union[PreparedReference, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., content_hash: _Optional[bytes] = ..., continued: _Optional[bool] = ...) -> None: ...

class PreparedReference(_message.Message):
    __slots__ = ("text", "embedding", "payload")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    text: str
    embedding: bytes
    payload: bytes
    def __init__(self, text: _Optional[str] = ..., embedding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class IngestResponse(_message.Message):
    __slots__ = ("started", "acknowledged", "failed", "progress")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    started: IngestStarted
    acknowledged: Acknowledgement
    failed: DocumentFailure
    progress: IngestProgress
    def __init__(self, started: _Optional[_Union[IngestStarted, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledgement, _Mapping]] = ..., failed: _Optional[_Union[DocumentFailure, _Mapping]] = ..., progress: _Optional[_Union[IngestProgress, _Mapping]] = ...) -> None: ...

class IngestStarted(_message.Message):
    __slots__ = ("knowledge_base", "document_limit_bytes", "reference_tokens")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    document_limit_bytes: int
    reference_tokens: int
    def __init__(self, knowledge_base: _Optional[str] = ..., document_limit_bytes: _Optional[int] = ..., reference_tokens: _Optional[int] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("sequence", "document_key", "outcome", "reference_count", "content_hash")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    document_key: str
    outcome: IngestOutcome
    reference_count: int
    content_hash: bytes
    def __init__(self, sequence: _Optional[int] = ..., document_key: _Optional[str] = ..., outcome: _Optional[_Union[IngestOutcome, str]] = ..., reference_count: _Optional[int] = ..., content_hash: _Optional[bytes] = ...) -> None: ...

class UpsertRequest(_message.Message):
    __slots__ = ("knowledge_base", "create_if_missing", "memory_writing", "overlap_tokens", "document", "prepared")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    CREATE_IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_WRITING_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    create_if_missing: bool
    memory_writing: MemoryWriting
    overlap_tokens: int
    document: Document
    prepared: PreparedDocument
    def __init__(self, knowledge_base: _Optional[str] = ..., create_if_missing: _Optional[bool] = ..., memory_writing: _Optional[_Union[MemoryWriting, str]] = ..., overlap_tokens: _Optional[int] = ..., document: _Optional[_Union[Document, _Mapping]] = ..., prepared: _Optional[_Union[PreparedDocument, _Mapping]] = ...) -> None: ...

class UpsertResponse(_message.Message):
    __slots__ = ("acknowledged",)
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    acknowledged: Acknowledgement
    def __init__(self, acknowledged: _Optional[_Union[Acknowledgement, _Mapping]] = ...) -> None: ...

class DocumentFailure(_message.Message):
    __slots__ = ("sequence", "document_key", "code", "reason", "message", "metadata", "status", "retryable")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    document_key: str
    code: int
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    status: _status_pb2.Status
    retryable: bool
    def __init__(self, sequence: _Optional[int] = ..., document_key: _Optional[str] = ..., code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., retryable: _Optional[bool] = ...) -> None: ...

class IngestProgress(_message.Message):
    __slots__ = ("items_received", "items_answered", "references_written")
    ITEMS_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ITEMS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    items_received: int
    items_answered: int
    references_written: int
    def __init__(self, items_received: _Optional[int] = ..., items_answered: _Optional[int] = ..., references_written: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("knowledge_base", "document_keys", "filter")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    document_keys: _containers.RepeatedScalarFieldContainer[str]
    filter: _filter_pb2.Filter
    def __init__(self, knowledge_base: _Optional[str] = ..., document_keys: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_filter_pb2.Filter, _Mapping]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("documents_deleted", "references_deleted")
    DOCUMENTS_DELETED_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_DELETED_FIELD_NUMBER: _ClassVar[int]
    documents_deleted: int
    references_deleted: int
    def __init__(self, documents_deleted: _Optional[int] = ..., references_deleted: _Optional[int] = ...) -> None: ...

class GetDocumentRequest(_message.Message):
    __slots__ = ("knowledge_base", "document_key", "return_text", "page_token")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    RETURN_TEXT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    document_key: str
    return_text: bool
    page_token: str
    def __init__(self, knowledge_base: _Optional[str] = ..., document_key: _Optional[str] = ..., return_text: _Optional[bool] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetDocumentResponse(_message.Message):
    __slots__ = ("document_key", "title", "metadata", "content_hash", "stored_at", "references", "reference_count", "next_page_token")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    document_key: str
    title: str
    metadata: _containers.ScalarMap[str, str]
    content_hash: bytes
    stored_at: _timestamp_pb2.Timestamp
    references: _containers.RepeatedCompositeFieldContainer[StoredReference]
    reference_count: int
    next_page_token: str
    def __init__(self, document_key: _Optional[str] = ..., title: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., content_hash: _Optional[bytes] = ..., stored_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., references: _Optional[_Iterable[_Union[StoredReference, _Mapping]]] = ..., reference_count: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class StoredReference(_message.Message):
    __slots__ = ("memory_id", "chunk_number", "text")
    MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    memory_id: int
    chunk_number: int
    text: str
    def __init__(self, memory_id: _Optional[int] = ..., chunk_number: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class GetVersionsRequest(_message.Message):
    __slots__ = ("knowledge_base", "document_keys")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    document_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, knowledge_base: _Optional[str] = ..., document_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class GetVersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[DocumentVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[DocumentVersion, _Mapping]]] = ...) -> None: ...

class DocumentVersion(_message.Message):
    __slots__ = ("document_key", "content_hash", "reference_count", "memories_written")
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    document_key: str
    content_hash: bytes
    reference_count: int
    memories_written: bool
    def __init__(self, document_key: _Optional[str] = ..., content_hash: _Optional[bytes] = ..., reference_count: _Optional[int] = ..., memories_written: _Optional[bool] = ...) -> None: ...

class ListDocumentsRequest(_message.Message):
    __slots__ = ("knowledge_base", "key_prefix", "after_key", "count", "page_token", "filter")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_KEY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    key_prefix: str
    after_key: str
    count: int
    page_token: str
    filter: _filter_pb2.Filter
    def __init__(self, knowledge_base: _Optional[str] = ..., key_prefix: _Optional[str] = ..., after_key: _Optional[str] = ..., count: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[_Union[_filter_pb2.Filter, _Mapping]] = ...) -> None: ...

class ListDocumentsResponse(_message.Message):
    __slots__ = ("documents", "next_page_token")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedCompositeFieldContainer[DocumentVersion]
    next_page_token: str
    def __init__(self, documents: _Optional[_Iterable[_Union[DocumentVersion, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
