"""kill -9 of the service at random points of ingestion: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import grpc
import pytest

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2
from tests.memory_service.encoders import vector_of
from tests.memory_service.processes import client_of, service
from tests.memory_service.running import Client, document, ingest_requests

SLOW_KILLS = 2  # of each seed, one after the other on the same files
KEYS = 30
SLOW_SEEDS = 20


class Writer:
    """One who sends versions of documents, and what he was told of them.

    versions: of each key, the last that is known to be stored and those that were sent after it, 0 for none.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent = 0
        self.acknowledged = 0
        self.versions: dict[str, list[int]] = defaultdict(lambda: [0])

    def documents(self, count: int) -> list[pb.Document]:
        """New versions of keys chosen at random, of one to four references each: replacing one changes their number."""
        made = []
        for _ in range(count):
            self.sent += 1
            key, version = f"d{self.chance.randrange(KEYS)}", self.sent
            text = " ".join(
                f"Sentence {n} of {key} in version {version}." for n in range(1 + version % 4 * 18)
            )
            made.append(document(key, text, version=str(version)))
        return made

    def ingest(self, client: Client, documents: list[pb.Document]) -> None:
        """Sends the documents; returns when the stream ends, however it ends."""
        by_sequence = dict(enumerate(documents, 1))

        def requests() -> object:
            for request in ingest_requests("kb", documents):
                if request.HasField("item"):
                    sent = by_sequence[request.item.sequence]
                    self.versions[sent.key].append(int(sent.metadata["version"]))
                yield request

        ended = grpc.StatusCode.OK
        try:
            for answer in client.ingestion.Ingest(requests(), timeout=600):  # type: ignore[arg-type]
                assert not answer.HasField("failed"), answer
                if answer.HasField("acknowledged"):
                    said = by_sequence[answer.acknowledged.sequence]
                    versions, version = self.versions[said.key], int(said.metadata["version"])
                    del versions[: versions.index(version)]
                    self.acknowledged += 1
        except grpc.RpcError as error:
            ended = error.code()
        assert ended in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)

    def check(self, client: Client) -> None:
        """Every document is there in the version that was acknowledged last or one sent since, once, and no other."""
        references: Counter[tuple[str, int]] = Counter()
        for key, versions in self.versions.items():
            try:
                found = client.ingestion.GetDocument(
                    pb.GetDocumentRequest(knowledge_base="kb", document_key=key), timeout=60
                )
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
                version = 0
            else:
                version = int(found.metadata["version"])
                references.update((key, chunk) for chunk in range(len(found.references)))
            assert version in versions, f"{key}: version {version} is stored, {versions} were sent"
            self.versions[key] = [version]
        hits = client.retrieve("kb", vector_of("x")[None], k=1000).results[0].hits
        assert Counter((hit.document_key, hit.chunk_number) for hit in hits) == references
        counts = client.bases.GetStatistics(knowledge_bases_pb2.GetStatisticsRequest(name="kb"), timeout=60)
        assert counts.reference_count == references.total()
        assert counts.document_count == len({key for key, _ in references})


def kill_again_and_again(engine: str, folder: Path, seed: int, kills: int) -> int:
    """Returns how many documents were acknowledged."""
    writer = Writer(seed)
    settings = {"engine": engine, "seconds_per_reference": 0.001, "MEMORY_SERVICE_MAX_K": "1000"}
    for kill in range(kills):
        with service(folder, **settings) as running, client_of(running) as client:  # type: ignore[arg-type]
            if kill:
                writer.check(client)
            stream = threading.Thread(target=writer.ingest, args=(client, writer.documents(400)))
            stream.start()
            first, until = writer.acknowledged, time.monotonic() + writer.chance.uniform(0, 1.5)
            while stream.is_alive() and (writer.acknowledged == first or time.monotonic() < until):
                time.sleep(0.001)
            running.process.kill()
            running.process.wait(60)
            stream.join(120)
    with service(folder, **settings) as running, client_of(running) as client:  # type: ignore[arg-type]
        writer.check(client)
        writer.ingest(client, writer.documents(40))
        assert all(len(versions) == 1 for versions in writer.versions.values())
        writer.check(client)
    return writer.acknowledged


def test_kill_9_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path) -> None:
    kill_again_and_again("chdb", tmp_path, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["file", "chdb"])
@pytest.mark.parametrize("seed", range(100, 100 + SLOW_SEEDS))
def test_kill_9_loses_and_doubles_nothing_over_many_seeds(tmp_path: Path, engine: str, seed: int) -> None:
    acknowledged = kill_again_and_again(engine, tmp_path, seed, SLOW_KILLS)
    print(f"{engine}: {SLOW_KILLS} kills, {acknowledged} acknowledged documents")
