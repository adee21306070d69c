from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Filter(_message.Message):
    __slots__ = ("all_of", "any_of", "none_of", "is_in", "range", "exists")
    class List(_message.Message):
        __slots__ = ("filters",)
        FILTERS_FIELD_NUMBER: _ClassVar[int]
        filters: _containers.RepeatedCompositeFieldContainer[Filter]
        def __init__(self, filters: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ...) -> None: ...
    class In(_message.Message):
        __slots__ = ("name", "values")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        name: str
        values: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...
    class Range(_message.Message):
        __slots__ = ("name", "at_least", "above", "at_most", "below")
        NAME_FIELD_NUMBER: _ClassVar[int]
        AT_LEAST_FIELD_NUMBER: _ClassVar[int]
        ABOVE_FIELD_NUMBER: _ClassVar[int]
        AT_MOST_FIELD_NUMBER: _ClassVar[int]
        BELOW_FIELD_NUMBER: _ClassVar[int]
        name: str
        at_least: Filter.Bound
        above: Filter.Bound
        at_most: Filter.Bound
        below: Filter.Bound
        def __init__(self, name: _Optional[str] = ..., at_least: _Optional[_Union[Filter.Bound, _Mapping]] = ..., above: _Optional[_Union[Filter.Bound, _Mapping]] = ..., at_most: _Optional[_Union[Filter.Bound, _Mapping]] = ..., below: _Optional[_Union[Filter.Bound, _Mapping]] = ...) -> None: ...
    class Bound(_message.Message):
        __slots__ = ("number", "text")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        number: float
        text: str
        def __init__(self, number: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...
    ALL_OF_FIELD_NUMBER: _ClassVar[int]
    ANY_OF_FIELD_NUMBER: _ClassVar[int]
    NONE_OF_FIELD_NUMBER: _ClassVar[int]
    IS_IN_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    all_of: Filter.List
    any_of: Filter.List
    none_of: Filter.List
    is_in: Filter.In
    range: Filter.Range
    exists: str
    def __init__(self, all_of: _Optional[_Union[Filter.List, _Mapping]] = ..., any_of: _Optional[_Union[Filter.List, _Mapping]] = ..., none_of: _Optional[_Union[Filter.List, _Mapping]] = ..., is_in: _Optional[_Union[Filter.In, _Mapping]] = ..., range: _Optional[_Union[Filter.Range, _Mapping]] = ..., exists: _Optional[str] = ...) -> None: ...
