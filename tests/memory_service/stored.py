"""Documents for tests of stores, and stores to try them on."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import google_crc32c

from memory_service.stores.address import StoreOptions
from memory_service.stores.opening import open_store
from memory_service.stores.store import KnowledgeBase, NewDocument, NewReference, Query, Store, StoredMemory, digest
from memory_service.write.document import content_hash_of, memory_id_of
from testing.clickhouse import PASSWORD, clickhouse_server, myscale_server
from testing.encoders import identity_of, payload_of, vector_of

IDENTITY = identity_of("test")


def document(key: str, *texts: str, title: str = "", metadata: Mapping[str, str] | None = None) -> NewDocument:
    """A document with a reference for each text."""
    content_hash = content_hash_of(title, metadata or {}, [text.encode() for text in texts])
    references = []
    for chunk, text in enumerate(texts):
        payload = payload_of(text, IDENTITY.model_id)
        memory_id = memory_id_of(key, content_hash, chunk, payload)
        references.append(NewReference(memory_id, text, vector_of(text), payload, google_crc32c.value(payload)))
    return NewDocument(key, title, metadata or {}, content_hash, references)


def keys_near(store: Store, base: KnowledgeBase, text: str, k: int = 100) -> list[str]:
    """Keys of the k references nearest to the text's vector, best first."""
    return [hit.document_key for hit in store.retrieve(base, Query(vector_of(text)[None], k)).hits[0]]


def require_whole(store: Store, base: KnowledgeBase) -> None:
    """All that the store says of a knowledge base agrees, and everything that is stored is found once."""
    assert store.knowledge_base(base.name).problem == ""
    keys = store.keys(base, "", after_key=None, count=100_000)
    versions = store.versions(base, keys)
    ids = sorted(memory_id for version in versions.values() for memory_id in version.memory_ids)
    memories: list[StoredMemory] = []
    while page := store.memories(base, after_id=memories[-1].memory_id if memories else None, count=500):
        memories += page
    assert [memory.memory_id for memory in memories] == ids
    assert all(google_crc32c.value(bytes(memory.payload)) == memory.crc32c for memory in memories)
    counts, revision = store.statistics(base), store.revision(base)
    assert (counts.documents, counts.references) == (len(keys), len(ids))
    assert (revision.memories, revision.digest) == (len(ids), digest(ids))
    (hits,) = store.retrieve(base, Query(vector_of("any")[None], len(ids) + 1)).hits
    assert sorted(hit.memory_id for hit in hits) == ids


def rows_of(store: Store, base: KnowledgeBase) -> list[int]:
    """ClickHouse's rows of references and payloads, whatever their version."""
    tables = (f"references_{IDENTITY.dimension}", "payloads")
    engine = store._engine  # type: ignore[attr-defined]
    return [int(engine.rows(f"SELECT count() FROM {table} WHERE kb = {base.number}")[0][0]) for table in tables]


def wait_for_rows(store: Store, base: KnowledgeBase, count: int) -> None:
    """The engine removes rows in the background."""
    deadline = time.monotonic() + 60
    while rows_of(store, base) != [count, count] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert rows_of(store, base) == [count, count]


class OpenedStore:
    """A store that can be opened again: `store` is the present one."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self.url = url
        self.options = options
        self.store = open_store(url, options)
        self._bases = 0

    def reopen(self) -> Store:
        self.store.close()
        self.store = open_store(self.url, self.options)
        return self.store

    def new_base(self) -> KnowledgeBase:
        self._bases += 1
        return self.store.create(f"kb-{self._bases}", "words", IDENTITY)


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[OpenedStore]:
    """An empty store of one kind: file, chdb, clickhouse or myscale."""
    with contextlib.ExitStack() as stack:
        url, options = f"{kind}://{folder}/store", StoreOptions()
        if kind == "clickhouse":
            port = stack.enter_context(clickhouse_server(folder))
            url, options = f"clickhouse://127.0.0.1:{port}/memories", StoreOptions(password=PASSWORD)
        elif kind == "myscale":
            port = stack.enter_context(myscale_server(folder))
            url = f"myscale://127.0.0.1:{port}/memories"
            options = StoreOptions(password=PASSWORD, timeout_s=300.0)  # it runs one statement at a time
        made = OpenedStore(url, options)
        stack.callback(lambda: made.store.close())
        yield made
