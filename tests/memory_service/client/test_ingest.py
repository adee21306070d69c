"""The ingestion client against real services that go away, or whose store does."""

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memory3.errors import CorruptFile
from memory_service.cli import app
from memory_service.client.connection import RemoteError
from memory_service.client.ingest import Destination, Ingestion, Upload
from memory_service.errors import StoreFull, StoreUnavailable
from memory_service.stores.store import NewDocument
from memory_service.write.document import DocumentReader
from protos.memory.v1 import ingestion_pb2 as pb
from testing.encoders import HashEncoder
from tests.memory_service.processes import client_of, service
from tests.memory_service.running import document, running


def uploads(count: int) -> Iterator[Upload]:
    for n in range(count):
        yield Upload(f"k{n}", pb.IngestItem(document=document(f"k{n}", f"Fact {n}.")), "facts", f"line {n}")


def counted(to: Destination, count: int) -> Counter[str]:
    return Counter(upload.outcome for upload in Ingestion(to).run(uploads(count)))


def test_a_store_that_is_away_for_a_while_fails_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s") as (_, server):
        monkeypatch.setattr(StoreUnavailable, "retry_after_s", 0.05)
        to = Destination(f"127.0.0.1:{server.port}", "default")
        store, left = server.store, [3]
        assert store is not None
        write = store.write

        def away(*arguments: object) -> object:
            left[0] -= 1
            if left[0] >= 0:
                raise StoreUnavailable("the server restarts")
            return write(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "write", away)
        empty = Upload("empty", pb.IngestItem(document=document("empty", " ")), "facts")
        unread = Upload("unread", source="facts").failed("UNREADABLE", "not UTF-8")
        outcomes = [upload.outcome for upload in Ingestion(to).run([empty, unread, *uploads(300)])]
        assert Counter(outcomes) == {"stored": 300, "failed": 2}
        assert left[0] < 0
        assert counted(to, 320) == {"unchanged": 300, "stored": 20}


def test_a_store_that_stays_full_ends_the_ingestion_which_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreFull, "retry_after_s", 0.01)
    waited, written = list[str](), list[str]()

    def full(base: object, documents: Sequence[NewDocument]) -> object:
        written.extend(one.key for one in documents)
        raise StoreFull("the disk is full")

    with running(tmp_path, HashEncoder()) as (_, server):
        assert server.store is not None
        monkeypatch.setattr(server.store, "write", full)
        to = Destination(f"127.0.0.1:{server.port}", "default")
        with pytest.raises(RemoteError, match=r"\Athe disk is full\Z") as failed:
            list(Ingestion(to, attempts=3, on_wait=lambda why, _: waited.append(why)).run(uploads(1000)))
        assert failed.value.reason == "STORE_FULL"
        assert waited == 2 * ["the disk is full"]
        assert len(set(written)) < 500, "the rest is not even tried"


def test_a_knowledge_base_that_is_deleted_meanwhile_ends_the_ingestion(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder(), ingest_batch_references=1) as (client, server):
        client.create("gone")
        outcomes = Ingestion(Destination(f"127.0.0.1:{server.port}", "gone")).run(uploads(1000))
        done = [next(outcomes)]
        client.drop("gone")
        with pytest.raises(RemoteError, match="'gone' was deleted meanwhile") as failed:
            done.extend(outcomes)
        assert failed.value.reason == "KNOWLEDGE_BASE_NOT_FOUND"
        assert {upload.outcome for upload in done} == {"stored"}


def test_the_command_says_why_nothing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreFull, "retry_after_s", 0.01)
    monkeypatch.setattr(sys.modules["memory_service.cli.ingest"], "_NOTICED_S", 0.0)
    (tmp_path / "page.md").write_text("A page.")
    with running(tmp_path, HashEncoder()) as (_, server):
        assert server.store is not None
        write, full = server.store.write, [True, True]

        def full_at_first(*arguments: Any) -> object:
            if full:
                full.pop()
                raise StoreFull("the disk is full")
            return write(*arguments)

        monkeypatch.setattr(server.store, "write", full_at_first)
        command = ["ingest", str(tmp_path / "page.md"), "--kb", "default", "--address", f"127.0.0.1:{server.port}"]
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, "1 document: 1 stored; 1 reference\n" in done.stdout) == (0, True), done.output
        assert done.stderr.count("trying again in 0 s: the disk is full\n") == 1


def test_of_a_key_that_occurs_twice_the_last_text_stays_although_the_first_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, HashEncoder(), ingest_batch_references=1) as (client, server):
        monkeypatch.setattr(StoreUnavailable, "retry_after_s", 0.05)
        store, away = server.store, [True]
        assert store is not None
        write = store.write

        def once_away(*arguments: object) -> object:
            if away.pop() if away else False:
                raise StoreUnavailable("the server restarts")
            return write(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "write", once_away)
        texts = [Upload("k", pb.IngestItem(document=document("k", text)), "facts") for text in ("First.", "Last.")]
        done = list(Ingestion(Destination(f"127.0.0.1:{server.port}", "default")).run([*texts, *uploads(1)]))
        assert [upload.outcome for upload in done] == ["stored", "replaced", "replaced"]
        assert [one.text for one in client.document("default", "k").references] == ["Last."]


def test_a_knowledge_base_that_another_share_creates_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, HashEncoder()) as (client, server):
        to, store = Destination(f"127.0.0.1:{server.port}", "shared"), server.store
        assert store is not None
        create = store.create

        def after_another(*arguments: object) -> object:
            create(*arguments)  # type: ignore[arg-type]
            return create(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "create", after_another)
        assert (to.require(create=True), client.names()) == (False, ["default", "shared"])
        assert counted(to, 3) == {"stored": 3}


def test_a_file_that_takes_longer_to_read_than_the_service_waits_ends_nothing(tmp_path: Path) -> None:
    def slowly() -> Iterator[Upload]:
        for upload in uploads(3):
            yield upload
            time.sleep(0.6)

    with running(tmp_path, HashEncoder(), ingest_idle_timeout_s=0.2) as (client, server):
        done = list(Ingestion(Destination(f"127.0.0.1:{server.port}", "default")).run(slowly()))
        assert [(upload.key, upload.outcome) for upload in done] == [(f"k{n}", "stored") for n in range(3)]
        assert client.counts("default") == (3, 3)


def test_a_document_that_fits_into_no_message_fails_alone(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder(), message_limit_bytes=1 << 20) as (_, server):
        large = Upload("large", pb.IngestItem(document=document("large", "x " * (1 << 19))), "facts", "line 9")
        done = Ingestion(Destination(f"127.0.0.1:{server.port}", "default")).run([*uploads(2), large, *uploads(4)])
        found = {upload.key: (upload.outcome, upload.reason) for upload in done}
    assert found.pop("large") == ("failed", "DOCUMENT_TOO_LARGE")
    assert {outcome for outcome, _ in found.values()} <= {"stored", "unchanged"}
    assert len(found) == 4


def reading(references: Callable[[], Iterator[pb.PreparedReference]]) -> Upload:
    item = pb.IngestItem(prepared=pb.PreparedDocument(key="long"))
    return Upload("long", item, "backup", references_of=references)


def test_references_are_read_while_they_are_sent_and_again_where_they_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, ahead = [], []

    def references() -> Iterator[pb.PreparedReference]:
        for n in range(60):
            read.append(n)
            yield pb.PreparedReference(text=f"{n} " + "w" * (64 << 10))

    with running(tmp_path, HashEncoder(), message_limit_bytes=1 << 20) as (client, server):
        monkeypatch.setattr(StoreUnavailable, "retry_after_s", 0.05)
        assert server.store is not None
        write, take = server.store.write, DocumentReader.read

        def counted_read(*arguments: Any) -> Any:
            ahead.append(len(read))
            return take(*arguments)

        def once_away(*arguments: Any) -> Any:
            if len(read) == 60:
                raise StoreUnavailable("the server restarts")
            return write(*arguments)

        monkeypatch.setattr(DocumentReader, "read", counted_read)
        monkeypatch.setattr(server.store, "write", once_away)
        (done,) = Ingestion(Destination(f"127.0.0.1:{server.port}", "default")).run([reading(references)])
        assert (done.outcome, done.references, read) == ("stored", 60, [*range(60), *range(60)])
        assert ahead[0] < 60, "the first piece is there before all are read"
        assert len(client.document("default", "long").references) == 60


def test_what_goes_wrong_while_references_are_read_is_what_is_raised(tmp_path: Path) -> None:
    def references() -> Iterator[pb.PreparedReference]:
        yield pb.PreparedReference(text="w " * 100)
        raise CorruptFile("a memory is damaged")

    with running(tmp_path, HashEncoder()) as (client, server):
        to = Destination(f"127.0.0.1:{server.port}", "default")
        with pytest.raises(CorruptFile, match="a memory is damaged"):
            list(Ingestion(to).run([*uploads(2), reading(references), *uploads(9)]))
        assert client.counts("default")[0] <= 2


def test_a_service_that_is_killed_and_started_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    found: list[Counter[str]] = []
    to = Destination(address, "default")
    with service(tmp_path, engine="file", seconds_per_reference=0.01, MEMORY_SERVICE_LISTEN=address) as first:
        client = threading.Thread(target=lambda: found.append(counted(to, 300)))
        client.start()
        with client_of(first) as stubs:
            while stubs.counts("default")[0] == 0:
                pass
        first.process.kill()
        first.process.wait(60)
        with service(tmp_path, engine="file", MEMORY_SERVICE_LISTEN=address) as second, client_of(second) as stubs:
            client.join(120)
            assert stubs.counts("default")[0] == 300
    assert found[0].total() == 300
    assert set(found[0]) <= {"stored", "unchanged"}


def test_a_service_that_refuses_or_stays_away_ends_it(tmp_path: Path) -> None:
    with (
        running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s") as (_, server),
        pytest.raises(RemoteError, match="nowhere"),
    ):
        counted(Destination(f"127.0.0.1:{server.port}", "nowhere"), 3)
    with pytest.raises(RemoteError, match="no memory service answers"):
        list(Ingestion(Destination("127.0.0.1:1", "default"), attempts=2).run(uploads(3)))
