from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model_id", "codec_id", "memory_format_id", "embedder_id", "dimension", "memories_per_chunk", "reference_tokens", "chunk_tokens", "model_config_json", "service_version")
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
    def __init__(self, model_id: _Optional[str] = ..., codec_id: _Optional[str] = ..., memory_format_id: _Optional[str] = ..., embedder_id: _Optional[str] = ..., dimension: _Optional[int] = ..., memories_per_chunk: _Optional[int] = ..., reference_tokens: _Optional[int] = ..., chunk_tokens: _Optional[int] = ..., model_config_json: _Optional[str] = ..., service_version: _Optional[str] = ...) -> None: ...

class FetchBundleRequest(_message.Message):
    __slots__ = ("file", "offset")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchBundleResponse(_message.Message):
    __slots__ = ("data", "offset", "file_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offset: int
    file_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., offset: _Optional[int] = ..., file_bytes: _Optional[int] = ...) -> None: ...
