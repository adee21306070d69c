from protos.memory.v1 import filter_pb2 as _filter_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetrieveRequest(_message.Message):
    __slots__ = ("knowledge_base", "query_vectors", "dimension", "k", "held_ids", "model_id", "codec_id", "embedder_id", "memory_format_id", "minimum_score", "metadata_filter", "return_text", "query_words", "maximum_drop", "query_texts", "filter", "return_metadata", "word_weight", "title_weight")
    class MetadataFilterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    QUERY_VECTORS_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    HELD_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CODEC_ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_ID_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_SCORE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FILTER_FIELD_NUMBER: _ClassVar[int]
    RETURN_TEXT_FIELD_NUMBER: _ClassVar[int]
    QUERY_WORDS_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_DROP_FIELD_NUMBER: _ClassVar[int]
    QUERY_TEXTS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RETURN_METADATA_FIELD_NUMBER: _ClassVar[int]
    WORD_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TITLE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    query_vectors: bytes
    dimension: int
    k: int
    held_ids: _containers.RepeatedScalarFieldContainer[int]
    model_id: str
    codec_id: str
    embedder_id: str
    memory_format_id: str
    minimum_score: float
    metadata_filter: _containers.ScalarMap[str, str]
    return_text: bool
    query_words: _containers.RepeatedCompositeFieldContainer[QueryWords]
    maximum_drop: float
    query_texts: _containers.RepeatedScalarFieldContainer[str]
    filter: _filter_pb2.Filter
    return_metadata: bool
    word_weight: float
    title_weight: float
    def __init__(self, knowledge_base: _Optional[str] = ..., query_vectors: _Optional[bytes] = ..., dimension: _Optional[int] = ..., k: _Optional[int] = ..., held_ids: _Optional[_Iterable[int]] = ..., model_id: _Optional[str] = ..., codec_id: _Optional[str] = ..., embedder_id: _Optional[str] = ..., memory_format_id: _Optional[str] = ..., minimum_score: _Optional[float] = ..., metadata_filter: _Optional[_Mapping[str, str]] = ..., return_text: _Optional[bool] = ..., query_words: _Optional[_Iterable[_Union[QueryWords, _Mapping]]] = ..., maximum_drop: _Optional[float] = ..., query_texts: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_filter_pb2.Filter, _Mapping]] = ..., return_metadata: _Optional[bool] = ..., word_weight: _Optional[float] = ..., title_weight: _Optional[float] = ...) -> None: ...

class QueryWords(_message.Message):
    __slots__ = ("hashes", "earlier")
    HASHES_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    hashes: _containers.RepeatedScalarFieldContainer[int]
    earlier: _containers.RepeatedCompositeFieldContainer[QueryWords]
    def __init__(self, hashes: _Optional[_Iterable[int]] = ..., earlier: _Optional[_Iterable[_Union[QueryWords, _Mapping]]] = ...) -> None: ...

class RetrieveResponse(_message.Message):
    __slots__ = ("results", "server_times")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIMES_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[QueryResult]
    server_times: ServerTimes
    def __init__(self, results: _Optional[_Iterable[_Union[QueryResult, _Mapping]]] = ..., server_times: _Optional[_Union[ServerTimes, _Mapping]] = ...) -> None: ...

class QueryResult(_message.Message):
    __slots__ = ("hits",)
    HITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[Hit]
    def __init__(self, hits: _Optional[_Iterable[_Union[Hit, _Mapping]]] = ...) -> None: ...

class Hit(_message.Message):
    __slots__ = ("memory_id", "score", "document_key", "title", "chunk_number", "text", "payload", "held", "payload_crc32c", "rank_score", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32C_FIELD_NUMBER: _ClassVar[int]
    RANK_SCORE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    memory_id: int
    score: float
    document_key: str
    title: str
    chunk_number: int
    text: str
    payload: bytes
    held: bool
    payload_crc32c: int
    rank_score: float
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, memory_id: _Optional[int] = ..., score: _Optional[float] = ..., document_key: _Optional[str] = ..., title: _Optional[str] = ..., chunk_number: _Optional[int] = ..., text: _Optional[str] = ..., payload: _Optional[bytes] = ..., held: _Optional[bool] = ..., payload_crc32c: _Optional[int] = ..., rank_score: _Optional[float] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ServerTimes(_message.Message):
    __slots__ = ("search_us", "fetch_us", "total_us", "queue_us", "rank_us")
    SEARCH_US_FIELD_NUMBER: _ClassVar[int]
    FETCH_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    RANK_US_FIELD_NUMBER: _ClassVar[int]
    search_us: int
    fetch_us: int
    total_us: int
    queue_us: int
    rank_us: int
    def __init__(self, search_us: _Optional[int] = ..., fetch_us: _Optional[int] = ..., total_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., rank_us: _Optional[int] = ...) -> None: ...
