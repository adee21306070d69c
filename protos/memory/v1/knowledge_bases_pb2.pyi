import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KnowledgeBaseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KNOWLEDGE_BASE_STATE_UNSPECIFIED: _ClassVar[KnowledgeBaseState]
    KNOWLEDGE_BASE_STATE_READY: _ClassVar[KnowledgeBaseState]
    KNOWLEDGE_BASE_STATE_DAMAGED: _ClassVar[KnowledgeBaseState]
    KNOWLEDGE_BASE_STATE_MISMATCHED: _ClassVar[KnowledgeBaseState]
    KNOWLEDGE_BASE_STATE_UNAVAILABLE: _ClassVar[KnowledgeBaseState]

class KnowledgeForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KNOWLEDGE_FORM_UNSPECIFIED: _ClassVar[KnowledgeForm]
    KNOWLEDGE_FORM_TEXT: _ClassVar[KnowledgeForm]
    KNOWLEDGE_FORM_MEMORY: _ClassVar[KnowledgeForm]
    KNOWLEDGE_FORM_WEIGHTS: _ClassVar[KnowledgeForm]
KNOWLEDGE_BASE_STATE_UNSPECIFIED: KnowledgeBaseState
KNOWLEDGE_BASE_STATE_READY: KnowledgeBaseState
KNOWLEDGE_BASE_STATE_DAMAGED: KnowledgeBaseState
KNOWLEDGE_BASE_STATE_MISMATCHED: KnowledgeBaseState
KNOWLEDGE_BASE_STATE_UNAVAILABLE: KnowledgeBaseState
KNOWLEDGE_FORM_UNSPECIFIED: KnowledgeForm
KNOWLEDGE_FORM_TEXT: KnowledgeForm
KNOWLEDGE_FORM_MEMORY: KnowledgeForm
KNOWLEDGE_FORM_WEIGHTS: KnowledgeForm

class KnowledgeBase(_message.Message):
    __slots__ = ("name", "description", "model_id", "codec_id", "memory_format_id", "embedder_id", "dimension", "created_at", "state", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CODEC_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_ID_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    created_at: _timestamp_pb2.Timestamp
    state: KnowledgeBaseState
    problem: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., model_id: _Optional[str] = ..., codec_id: _Optional[str] = ..., memory_format_id: _Optional[str] = ..., embedder_id: _Optional[str] = ..., dimension: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[KnowledgeBaseState, str]] = ..., problem: _Optional[str] = ...) -> None: ...

class CreateKnowledgeBaseRequest(_message.Message):
    __slots__ = ("name", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class CreateKnowledgeBaseResponse(_message.Message):
    __slots__ = ("knowledge_base",)
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: KnowledgeBase
    def __init__(self, knowledge_base: _Optional[_Union[KnowledgeBase, _Mapping]] = ...) -> None: ...

class GetKnowledgeBaseRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetKnowledgeBaseResponse(_message.Message):
    __slots__ = ("knowledge_base",)
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: KnowledgeBase
    def __init__(self, knowledge_base: _Optional[_Union[KnowledgeBase, _Mapping]] = ...) -> None: ...

class ListKnowledgeBasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListKnowledgeBasesResponse(_message.Message):
    __slots__ = ("knowledge_bases",)
    KNOWLEDGE_BASES_FIELD_NUMBER: _ClassVar[int]
    knowledge_bases: _containers.RepeatedCompositeFieldContainer[KnowledgeBase]
    def __init__(self, knowledge_bases: _Optional[_Iterable[_Union[KnowledgeBase, _Mapping]]] = ...) -> None: ...

class DeleteKnowledgeBaseRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteKnowledgeBaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatisticsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetStatisticsResponse(_message.Message):
    __slots__ = ("document_count", "reference_count", "payload_bytes", "text_bytes", "stored_bytes", "unwritten_document_count")
    DOCUMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNWRITTEN_DOCUMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    document_count: int
    reference_count: int
    payload_bytes: int
    text_bytes: int
    stored_bytes: int
    unwritten_document_count: int
    def __init__(self, document_count: _Optional[int] = ..., reference_count: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., text_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., unwritten_document_count: _Optional[int] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UsageGroup(_message.Message):
    __slots__ = ("memories_written", "cheapest", "reference_count", "read_count", "payload_bytes", "text_bytes")
    MEMORIES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CHEAPEST_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    memories_written: bool
    cheapest: KnowledgeForm
    reference_count: int
    read_count: int
    payload_bytes: int
    text_bytes: int
    def __init__(self, memories_written: _Optional[bool] = ..., cheapest: _Optional[_Union[KnowledgeForm, str]] = ..., reference_count: _Optional[int] = ..., read_count: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., text_bytes: _Optional[int] = ...) -> None: ...

class ReadReference(_message.Message):
    __slots__ = ("document_key", "chunk_number", "read_count")
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    READ_COUNT_FIELD_NUMBER: _ClassVar[int]
    document_key: str
    chunk_number: int
    read_count: int
    def __init__(self, document_key: _Optional[str] = ..., chunk_number: _Optional[int] = ..., read_count: _Optional[int] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("groups", "memory_from_reads", "weights_from_reads", "most_read")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FROM_READS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FROM_READS_FIELD_NUMBER: _ClassVar[int]
    MOST_READ_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[UsageGroup]
    memory_from_reads: float
    weights_from_reads: float
    most_read: _containers.RepeatedCompositeFieldContainer[ReadReference]
    def __init__(self, groups: _Optional[_Iterable[_Union[UsageGroup, _Mapping]]] = ..., memory_from_reads: _Optional[float] = ..., weights_from_reads: _Optional[float] = ..., most_read: _Optional[_Iterable[_Union[ReadReference, _Mapping]]] = ...) -> None: ...

class CoolKnowledgeBaseRequest(_message.Message):
    __slots__ = ("name", "keep_share")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    keep_share: float
    def __init__(self, name: _Optional[str] = ..., keep_share: _Optional[float] = ...) -> None: ...

class CoolKnowledgeBaseResponse(_message.Message):
    __slots__ = ("document_count", "reference_count", "payload_bytes")
    DOCUMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    document_count: int
    reference_count: int
    payload_bytes: int
    def __init__(self, document_count: _Optional[int] = ..., reference_count: _Optional[int] = ..., payload_bytes: _Optional[int] = ...) -> None: ...

class ExportKnowledgeBaseRequest(_message.Message):
    __slots__ = ("name", "after_id", "revision", "limit", "model_id", "codec_id", "memory_format_id", "embedder_id", "while_written", "snapshot")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CODEC_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_ID_FIELD_NUMBER: _ClassVar[int]
    WHILE_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    name: str
    after_id: int
    revision: int
    limit: int
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    while_written: bool
    snapshot: bool
    def __init__(self, name: _Optional[str] = ..., after_id: _Optional[int] = ..., revision: _Optional[int] = ..., limit: _Optional[int] = ..., model_id: _Optional[str] = ..., codec_id: _Optional[str] = ..., memory_format_id: _Optional[str] = ..., embedder_id: _Optional[str] = ..., while_written: _Optional[bool] = ..., snapshot: _Optional[bool] = ...) -> None: ...

class ExportKnowledgeBaseResponse(_message.Message):
    __slots__ = ("head", "page")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    head: ExportHead
    page: ExportPage
    def __init__(self, head: _Optional[_Union[ExportHead, _Mapping]] = ..., page: _Optional[_Union[ExportPage, _Mapping]] = ...) -> None: ...

class ExportHead(_message.Message):
    __slots__ = ("knowledge_base", "revision", "memory_count", "id_digest", "payload_bytes", "text_bytes", "rerank_candidates", "document_count")
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ID_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RERANK_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: KnowledgeBase
    revision: int
    memory_count: int
    id_digest: int
    payload_bytes: int
    text_bytes: int
    rerank_candidates: int
    document_count: int
    def __init__(self, knowledge_base: _Optional[_Union[KnowledgeBase, _Mapping]] = ..., revision: _Optional[int] = ..., memory_count: _Optional[int] = ..., id_digest: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., text_bytes: _Optional[int] = ..., rerank_candidates: _Optional[int] = ..., document_count: _Optional[int] = ...) -> None: ...

class ExportPage(_message.Message):
    __slots__ = ("memories", "documents")
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    memories: _containers.RepeatedCompositeFieldContainer[ExportedMemory]
    documents: _containers.RepeatedCompositeFieldContainer[ExportedDocument]
    def __init__(self, memories: _Optional[_Iterable[_Union[ExportedMemory, _Mapping]]] = ..., documents: _Optional[_Iterable[_Union[ExportedDocument, _Mapping]]] = ...) -> None: ...

class ExportedDocument(_message.Message):
    __slots__ = ("document_key", "title", "metadata", "content_hash", "memories_written", "reference_count")
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
    MEMORIES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    document_key: str
    title: str
    metadata: _containers.ScalarMap[str, str]
    content_hash: bytes
    memories_written: bool
    reference_count: int
    def __init__(self, document_key: _Optional[str] = ..., title: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., content_hash: _Optional[bytes] = ..., memories_written: _Optional[bool] = ..., reference_count: _Optional[int] = ...) -> None: ...

class ExportedMemory(_message.Message):
    __slots__ = ("memory_id", "document_key", "title", "chunk_number", "text", "vector", "payload", "payload_crc32c")
    MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32C_FIELD_NUMBER: _ClassVar[int]
    memory_id: int
    document_key: str
    title: str
    chunk_number: int
    text: str
    vector: bytes
    payload: bytes
    payload_crc32c: int
    def __init__(self, memory_id: _Optional[int] = ..., document_key: _Optional[str] = ..., title: _Optional[str] = ..., chunk_number: _Optional[int] = ..., text: _Optional[str] = ..., vector: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., payload_crc32c: _Optional[int] = ...) -> None: ...
