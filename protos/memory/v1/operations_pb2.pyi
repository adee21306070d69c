from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OperationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_KIND_UNSPECIFIED: _ClassVar[OperationKind]
    OPERATION_KIND_WRITE_MEMORIES: _ClassVar[OperationKind]
    OPERATION_KIND_REINDEX: _ClassVar[OperationKind]
    OPERATION_KIND_REWRITE_MEMORIES: _ClassVar[OperationKind]
OPERATION_KIND_UNSPECIFIED: OperationKind
OPERATION_KIND_WRITE_MEMORIES: OperationKind
OPERATION_KIND_REINDEX: OperationKind
OPERATION_KIND_REWRITE_MEMORIES: OperationKind

class Operation(_message.Message):
    __slots__ = ("name", "kind", "knowledge_base", "done", "progress", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: OperationKind
    knowledge_base: str
    done: bool
    progress: OperationProgress
    problem: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[OperationKind, str]] = ..., knowledge_base: _Optional[str] = ..., done: _Optional[bool] = ..., progress: _Optional[_Union[OperationProgress, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class OperationProgress(_message.Message):
    __slots__ = ("documents_done", "documents_left", "documents_failed", "references_done", "references_left")
    DOCUMENTS_DONE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_DONE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_LEFT_FIELD_NUMBER: _ClassVar[int]
    documents_done: int
    documents_left: int
    documents_failed: int
    references_done: int
    references_left: int
    def __init__(self, documents_done: _Optional[int] = ..., documents_left: _Optional[int] = ..., documents_failed: _Optional[int] = ..., references_done: _Optional[int] = ..., references_left: _Optional[int] = ...) -> None: ...

class ListOperationsRequest(_message.Message):
    __slots__ = ("knowledge_base",)
    KNOWLEDGE_BASE_FIELD_NUMBER: _ClassVar[int]
    knowledge_base: str
    def __init__(self, knowledge_base: _Optional[str] = ...) -> None: ...

class ListOperationsResponse(_message.Message):
    __slots__ = ("operations",)
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class GetOperationRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetOperationResponse(_message.Message):
    __slots__ = ("operation",)
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    operation: Operation
    def __init__(self, operation: _Optional[_Union[Operation, _Mapping]] = ...) -> None: ...
