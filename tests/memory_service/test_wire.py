"""The response that is joined by hand has exactly the bytes that protobuf writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_service.api.wire import response_parts, server_times, varint
from memory_service.stores import Found, Retrieved
from protos.memory.v1 import retrieval_pb2

_U32, _U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_IDS = st.one_of(st.integers(0, 3), _U64)
_TEXTS = st.one_of(st.text(max_size=6), st.text(min_size=120, max_size=140))
_FOUND = st.builds(
    Found,
    memory_id=_IDS, score=st.floats(width=32, allow_nan=False), document_key=_TEXTS, title=_TEXTS,
    chunk_number=_U32, crc32c=_U32, text=st.none() | _TEXTS, rank_score=st.floats(width=32, allow_nan=False),
    metadata=st.none() | st.dictionaries(_TEXTS, _TEXTS, max_size=3),
)  # fmt: skip


@st.composite
def _retrieved(draw: st.DrawFn) -> Retrieved:
    hits = draw(st.lists(st.lists(_FOUND, max_size=4), max_size=4))
    ids = sorted({found.memory_id for of_query in hits for found in of_query})
    sizes = st.one_of(st.integers(0, 3), st.sampled_from([127, 128, 16383, 16384, 39_424]))
    sent = draw(st.sets(st.sampled_from(ids)) if ids else st.just(set()))
    return Retrieved(hits, {memory_id: b"\x80" * draw(sizes) for memory_id in sent}, 0, 0)


def _by_protobuf(retrieved: Retrieved, times: retrieval_pb2.ServerTimes) -> retrieval_pb2.RetrieveResponse:
    unsent = dict(retrieved.payloads)
    response = retrieval_pb2.RetrieveResponse(server_times=times)
    for hits in retrieved.hits:
        result = response.results.add()
        for found in hits:
            hit = result.hits.add(
                memory_id=found.memory_id, score=found.score, document_key=found.document_key, title=found.title,
                chunk_number=found.chunk_number, text=found.text, payload_crc32c=found.crc32c,
                rank_score=found.rank_score, metadata=found.metadata,
            )  # fmt: skip
            payload = unsent.pop(found.memory_id, None)
            if payload is None:
                hit.held = True
            else:
                hit.payload = payload
    return response


@given(_retrieved(), st.lists(_U64, min_size=5, max_size=5))
def test_the_bytes_are_those_of_protobuf(retrieved: Retrieved, us: list[int]) -> None:
    times = retrieval_pb2.ServerTimes(
        search_us=us[0], fetch_us=us[1], total_us=us[2], queue_us=us[3], rank_us=us[4]
    )
    raw, expected = b"".join((*response_parts(retrieved), server_times(*us))), _by_protobuf(retrieved, times)
    assert retrieval_pb2.RetrieveResponse.FromString(raw) == expected
    if all(len(found.metadata or ()) <= 1 for hits in retrieved.hits for found in hits):  # maps have no order
        assert raw == expected.SerializeToString()


@given(_U64)
def test_a_varint_is_read_back(number: int) -> None:
    field = b"\x08" + varint(number)
    assert retrieval_pb2.ServerTimes.FromString(field).search_us == number
