from __future__ import annotations

import google_crc32c

from deploy.bench.faulty_front import flip_payloads
from protos.memory.v1 import retrieval_pb2


def test_corruption_changes_every_payload_and_nothing_else():
    def hit(number: int, payload: bytes) -> retrieval_pb2.Hit:
        return retrieval_pb2.Hit(
            memory_id=number, payload=payload, payload_crc32c=google_crc32c.value(payload)
        )

    sent = retrieval_pb2.RetrieveResponse(
        results=[retrieval_pb2.QueryResult(hits=[hit(1, b"abc"), hit(2, b"x"), hit(3, b"")])]
    )
    got = retrieval_pb2.RetrieveResponse.FromString(flip_payloads(sent.SerializeToString()))
    before, after = sent.results[0].hits, got.results[0].hits
    assert [h.payload_crc32c for h in before] == [h.payload_crc32c for h in after], "the checksums stay"
    assert [google_crc32c.value(h.payload) == h.payload_crc32c for h in after] == [False, False, True]
    assert [len(h.payload) for h in before] == [len(h.payload) for h in after]
