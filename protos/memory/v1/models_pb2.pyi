from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model_id", "codec_id", "memory_format_id", "embedder_id", "dimension", "memories_per_chunk", "reference_tokens", "chunk_tokens", "model_config_json", "service_version", "limits", "bundles")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CODEC_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_ID_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_PER_CHUNK_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    memories_per_chunk: int
    reference_tokens: int
    chunk_tokens: int
    model_config_json: str
    service_version: str
    limits: Limits
    bundles: _containers.RepeatedCompositeFieldContainer[BundleVariant]
    def __init__(self, model_id: _Optional[str] = ..., codec_id: _Optional[str] = ..., memory_format_id: _Optional[str] = ..., embedder_id: _Optional[str] = ..., dimension: _Optional[int] = ..., memories_per_chunk: _Optional[int] = ..., reference_tokens: _Optional[int] = ..., chunk_tokens: _Optional[int] = ..., model_config_json: _Optional[str] = ..., service_version: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., bundles: _Optional[_Iterable[_Union[BundleVariant, _Mapping]]] = ...) -> None: ...

class BundleVariant(_message.Message):
    __slots__ = ("id", "precision", "cpu_decoder", "bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    CPU_DECODER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    precision: str
    cpu_decoder: bool
    bytes: int
    def __init__(self, id: _Optional[str] = ..., precision: _Optional[str] = ..., cpu_decoder: _Optional[bool] = ..., bytes: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("request_bytes", "payload_bytes", "k", "queries", "hits", "held_ids", "ping_interval_ms", "response_bytes")
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    HELD_IDS_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    request_bytes: int
    payload_bytes: int
    k: int
    queries: int
    hits: int
    held_ids: int
    ping_interval_ms: int
    response_bytes: int
    def __init__(self, request_bytes: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., k: _Optional[int] = ..., queries: _Optional[int] = ..., hits: _Optional[int] = ..., held_ids: _Optional[int] = ..., ping_interval_ms: _Optional[int] = ..., response_bytes: _Optional[int] = ...) -> None: ...

class FetchBundleRequest(_message.Message):
    __slots__ = ("file", "offset", "variant")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    variant: str
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., variant: _Optional[str] = ...) -> None: ...

class FetchBundleResponse(_message.Message):
    __slots__ = ("data", "offset", "file_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offset: int
    file_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., offset: _Optional[int] = ..., file_bytes: _Optional[int] = ...) -> None: ...
