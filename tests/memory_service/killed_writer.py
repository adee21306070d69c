"""One who sends, replaces and deletes documents until the service is killed, and knows what must be there then."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import models_pb2
from tests.memory_service.processes import Service
from tests.memory_service.running import Client, document, ingest_requests

KEYS = 30
DELETED_AT_ONCE = 8


@contextlib.contextmanager
def refused(code: grpc.StatusCode) -> Iterator[None]:
    """A call that may end with this code."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() != code:
            raise


class Writer:
    """Versions of documents, and what was said of them.

    versions: of each key, the last that is known to be stored and those that were sent after it, 0 for none.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent = self.acknowledged = self.deleted = 0
        self.versions: dict[str, list[int]] = defaultdict(lambda: [0])

    def documents(self, count: int, name: str = "d") -> list[pb.Document]:
        """New versions of keys chosen at random, of one to four references each: replacing one changes their number."""
        made = []
        for _ in range(count):
            self.sent += 1
            key, version = f"{name}{self.chance.randrange(KEYS)}", self.sent
            text = " ".join(f"Sentence {n} of {key} in version {version}." for n in range(1 + version % 4 * 18))
            made.append(document(key, text, version=str(version)))
        return made

    def ingest(self, client: Client, documents: Sequence[pb.Document], *, later: bool = False) -> None:
        """Sends the documents; returns when the stream ends or the service is gone. later: memories come afterwards."""
        by_sequence = dict(enumerate(documents, 1))

        def requests() -> Iterator[pb.IngestRequest]:
            for request in ingest_requests("kb", documents):
                if request.HasField("item"):
                    sent = by_sequence[request.item.sequence]
                    self.versions[sent.key].append(int(sent.metadata["version"]))
                elif later:
                    request.start.memory_writing = pb.MEMORY_WRITING_LATER
                yield request

        with refused(grpc.StatusCode.UNAVAILABLE):
            for answer in client.ingestion.Ingest(requests(), timeout=600):
                assert not answer.HasField("failed"), answer
                if answer.HasField("acknowledged"):
                    said = by_sequence[answer.acknowledged.sequence]
                    versions, version = self.versions[said.key], int(said.metadata["version"])
                    del versions[: versions.index(version)]
                    self.acknowledged += 1

    def delete(self, client: Client, keys: Sequence[str]) -> None:
        """Deletes the documents one after the other; returns when that is done or the service is gone."""
        with refused(grpc.StatusCode.UNAVAILABLE):
            for key in keys:
                self.versions[key].append(0)
                request = pb.DeleteRequest(knowledge_base="kb", document_keys=[key])
                client.ingestion.Delete(request, timeout=600)
                self.versions[key] = [0]
                self.deleted += 1

    def work_until_killed(self, running: Service, client: Client, within_s: float, documents: int = 400) -> None:
        """Ingests and deletes at the same time; the service is killed some time after the first acknowledgement."""
        old = {one.key: one for one in self.documents(DELETED_AT_ONCE, "old")}
        self.ingest(client, list(old.values()))
        new, later = self.documents(documents), self.chance.random() < 0.5
        until, first = time.monotonic() + self.chance.uniform(0, within_s), self.acknowledged
        with ThreadPoolExecutor(2) as pool:
            doing = [pool.submit(self.ingest, client, new, later=later), pool.submit(self.delete, client, list(old))]
            while not doing[0].done() and (self.acknowledged == first or time.monotonic() < until):
                time.sleep(0.001)
            running.process.kill()
            running.process.wait(60)
            for one in doing:
                one.result(120)

    def check(self, client: Client) -> None:
        """Every document is there in the version that was acknowledged last or one sent since, once, and no other."""
        deadline = time.monotonic() + 300
        while (counts := client.statistics("kb")).unwritten_document_count:
            assert time.monotonic() < deadline, "memories that were left for later are not written"
            time.sleep(0.02)
        references: Counter[tuple[str, int]] = Counter()
        for key, versions in self.versions.items():
            version = 0
            with refused(grpc.StatusCode.NOT_FOUND):
                found = client.document("kb", key)
                version = int(found.metadata["version"])
                references.update((key, chunk) for chunk in range(len(found.references)))
            assert version in versions, f"{key}: version {version} is stored, {versions} were sent"
            self.versions[key] = [version]
        dimension = client.models.Describe(models_pb2.DescribeRequest(), timeout=60).dimension
        hits = client.retrieve("kb", np.ones((1, dimension), np.float32), k=1000).results[0].hits
        assert Counter((hit.document_key, hit.chunk_number) for hit in hits) == references
        assert counts.reference_count == references.total()
        assert counts.document_count == len({key for key, _ in references})
