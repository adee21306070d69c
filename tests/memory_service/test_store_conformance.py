"""What every store must do, whatever is behind it: files, the embedded engine, an engine behind HTTP."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import google_crc32c
import numpy as np
import pytest

from memory3.text.words import query_words
from memory_service.errors import DocumentNotFound, KnowledgeBaseExists, KnowledgeBaseNotFound
from memory_service.ops.translating import TranslatingStore
from memory_service.stores.filters import And, Exists, Filter, In, Not, Or, Range, matches
from memory_service.stores.store import SNAPSHOT_PAGE_BYTES, NewDocument, Query, Revision, StoredMemory, digest
from testing.encoders import vector_of
from tests.memory_service.encoders import Later
from tests.memory_service.stored import IDENTITY, OpenedStore, document, keys_near, opened, require_whole

# Behind HTTP it takes seconds: what HTTP can make a difference to is tested always, the rest by `make test-slow`.
SLOWLY = pytest.param("clickhouse", marks=pytest.mark.slow)
# An engine of 2023 behind MyScale's dialect: what MyScale does not have yet fails.
MYSCALE = pytest.param("myscale", marks=pytest.mark.slow)
every_store = pytest.mark.parametrize("place", ["file", "chdb", "clickhouse", MYSCALE], indirect=True, scope="module")
every_store_slowly = pytest.mark.parametrize("place", ["file", "chdb", SLOWLY, MYSCALE], indirect=True, scope="module")


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedStore]:
    with opened(request.param, tmp_path_factory.mktemp(request.param)) as place:
        yield place


@every_store
def test_what_was_written_is_there_after_reopening(place: OpenedStore) -> None:
    base = place.new_base()
    place.store.write(base, [document("a", "one", "two"), document("b", "three")])
    place.store.write(base, [document("a", "four")])
    before = place.store.revision(base)
    queries = Query(np.stack([vector_of(text) for text in ("one", "two", "three", "four")]), 3)
    hits = place.store.retrieve(base, queries).hits
    again = place.reopen()
    found = again.knowledge_base(base.name)
    assert found == base
    assert again.retrieve(found, queries).hits == hits
    assert sorted(keys_near(again, found, "one")) == ["a", "b"]
    require_whole(again, found)
    assert again.revision(found) == before
    counts = again.statistics(found)
    assert (counts.documents, counts.references, counts.text_bytes) == (2, 2, len("fourthree"))
    assert counts.payload_bytes == sum(len(m.payload) for m in again.memories(found, after_id=None, count=9))


@every_store_slowly
@pytest.mark.parametrize("translating", [False, True])
def test_a_knowledge_base_that_is_gone_names_no_other(place: OpenedStore, translating: bool) -> None:
    """Whoever looked it up may be a tenant, the others are all tenants'."""
    base, _ = place.new_base(), place.new_base()
    place.store.drop(base)
    store = TranslatingStore(place.store, Later()) if translating else place.store
    calls = [lambda: store.adopt(base, IDENTITY), lambda: store.write(base, [document("a", "one")])]
    if isinstance(store, TranslatingStore):
        calls.append(lambda: store.retrieve(base, Query(vector_of("one")[None], 1, held_ids=frozenset([1]))))
    for call in calls:
        with pytest.raises(KnowledgeBaseNotFound, match=f"^knowledge base '{base.name}' was deleted meanwhile$"):
            call()


@every_store
def test_a_hit_says_all_of_its_reference(place: OpenedStore) -> None:
    base = place.new_base()
    stored = document("a/ключ", "one", "two", title="A title", metadata={"year": "2026", "": "'\\"})
    place.store.write(base, [stored])
    (hits,) = (retrieved := place.store.retrieve(base, Query(vector_of("two")[None], 1, return_text=True))).hits
    (hit,), reference = hits, stored.references[1]
    assert (hit.memory_id, hit.document_key, hit.title, hit.chunk_number, hit.text, hit.crc32c) == (
        reference.memory_id,
        "a/ключ",
        "A title",
        1,
        "two",
        reference.crc32c,
    )
    assert hit.score == pytest.approx(1.0, abs=0.01)  # engines keep bfloat16
    assert {n: bytes(p) for n, p in retrieved.payloads.items()} == {reference.memory_id: reference.payload}
    (without,) = place.store.retrieve(base, Query(vector_of("two")[None], 1)).hits
    assert without[0].text is None
    found = place.store.document(base, "a/ключ")
    assert (found.title, found.metadata, found.content_hash) == (stored.title, stored.metadata, stored.content_hash)
    assert list(found.references) == [(r.memory_id, r.text) for r in stored.references]
    with pytest.raises(DocumentNotFound):
        place.store.document(base, "b")


@every_store
def test_written_memories_replace_unwritten_ones_of_the_same_content_and_never_the_reverse(place: OpenedStore) -> None:
    base = place.new_base()
    written = document("a", "one", "two")
    references = [replace(one, memory_id=one.memory_id + 1, payload=b"", crc32c=0) for one in written.references]
    unwritten = replace(written, references=references, written=False)
    place.store.write(base, [unwritten])
    assert not place.store.versions(base, ["a"])["a"].written
    assert (place.store.unwritten(base, 9), place.store.statistics(base).unwritten_documents) == (["a"], 1)
    assert place.store.write(base, [unwritten])[0].unchanged
    assert place.store.write(base, [replace(written, replaces=b"another" * 4)])[0].unchanged
    assert place.store.write(base, [replace(written, replaces=written.content_hash)])[0].replaced
    assert place.store.write(base, [unwritten])[0].unchanged
    assert place.reopen().versions(base, ["a"])["a"].written
    assert (place.store.unwritten(base, 9), place.store.statistics(base).unwritten_documents) == ([], 0)


def without_memories(whole: NewDocument) -> NewDocument:
    """As a cold start stores it."""
    references = [replace(one, memory_id=one.memory_id ^ 1, payload=b"", crc32c=0) for one in whole.references]
    return replace(whole, references=references, written=False)


@every_store
def test_reads_add_up_and_order_what_is_unwritten(place: OpenedStore) -> None:
    base, store = place.new_base(), place.store
    store.write(base, [without_memories(document(key, f"{key} text", f"{key} more")) for key in "abc"])
    store.write(base, [document("w", "written text")])
    store.add_reads(base, {("b", 1): 5, ("w", 0): 100, ("gone", 0): 7})
    store.add_reads(base, {("b", 1): 5, ("c", 0): 20, ("w", 7): 1})
    store = place.reopen()
    assert store.unwritten(base, 9) == ["c", "b", "a"]
    assert store.unwritten(base, 1) == ["c"]
    assert store.most_read(base, 2) == [("w", 0, 100), ("c", 0, 20)]
    found = {(one.written, one.level): (one.references, one.reads) for one in store.usage(base, [1, 20])}
    assert found == {(False, 0): (4, 0), (False, 1): (1, 10), (False, 2): (1, 20), (True, 2): (1, 100)}
    groups = store.usage(base, [])
    assert sum(one.payload_bytes for one in groups) == store.statistics(base).payload_bytes
    assert sum(one.text_bytes for one in groups) == store.statistics(base).text_bytes


@every_store
def test_a_document_is_stored_again_without_its_memories_and_keeps_its_reads(place: OpenedStore) -> None:
    base, store, whole = place.new_base(), place.store, document("a", "one", "two")
    store.write(base, [whole])
    store.add_reads(base, {("a", 1): 3})
    cooled = replace(without_memories(whole), replaces=whole.content_hash, again=True)
    assert store.write(base, [replace(cooled, content_hash=b"another!" * 4, replaces=b"another!" * 4)])[0].unchanged
    assert store.write(base, [cooled])[0].replaced
    assert store.unwritten(base, 9) == ["a"]
    assert store.statistics(base).payload_bytes == 0
    require_whole(store, base)
    assert store.most_read(base, 9) == [("a", 1, 3)]
    store.delete(base, ["a"])
    assert store.most_read(base, 9) == []


@every_store
def test_a_snapshot_reads_some_mebibytes_at_once_however_large_memories_are(place: OpenedStore) -> None:
    base, store = place.new_base(), place.store

    def with_payloads(key: str, count: int, size: int) -> NewDocument:
        made = document(key, *(f"{key} {chunk}" for chunk in range(count)))
        payloads = [one.payload.ljust(size, b"0") for one in made.references]
        large = [
            replace(one, payload=payload, crc32c=google_crc32c.value(payload))
            for one, payload in zip(made.references, payloads, strict=True)
        ]
        return replace(made, references=large)

    store.write(base, [with_payloads("many", 40, 1 << 18), with_payloads("one", 2, 5 << 20), document("small", "a")])
    with store.snapshot(base) as snapshot:
        pages = [
            (page.document.key, page.document.reference_count, [len(m.payload) for m in page.memories])
            for page in snapshot.pages
        ]
    assert {key: sum(len(sizes) for k, _, sizes in pages if k == key) for key, _, _ in pages} == {
        key: count for key, count, _ in pages
    }
    assert max(sum(sizes) for key, _, sizes in pages if key != "one") <= SNAPSHOT_PAGE_BYTES
    assert [sizes for key, _, sizes in pages if key == "one"] == [[5 << 20]] * 2
    assert len(pages) <= 6, "and as much as that"


@every_store
def test_of_a_long_document_only_what_is_asked_for_is_read(place: OpenedStore) -> None:
    base, store = place.new_base(), place.store
    long, short = document("long", *(f"text {chunk}" for chunk in range(70))), document("short", "a text")
    harmed = [*long.references]
    harmed[69] = replace(harmed[69], crc32c=harmed[69].crc32c ^ 1)  # so that reading it is an error of the local store
    store.write(base, [replace(long, references=harmed), short])
    named = [(one.memory_id, one.text) for one in long.references]
    for first, count in ((0, 3), (3, 3), (68, 9), (70, 9)):
        found = store.document(base, "long", first=first, count=count)
        assert (list(found.references), found.reference_count) == (named[first : first + count], 70)
    with store.snapshot(base, first_only=True) as snapshot:
        pages = list(snapshot.pages)
    assert (snapshot.documents, snapshot.revision.memories) == (2, 71)
    assert snapshot.revision.digest == store.revision(base).digest
    assert [(page.document.key, page.document.reference_count) for page in pages] == [("long", 70), ("short", 1)]
    assert [[one.memory_id for one in page.memories] for page in pages] == [
        [one.references[0].memory_id] for one in (long, short)
    ]


@every_store
def test_a_snapshot_is_of_one_moment_whatever_is_written_meanwhile(place: OpenedStore) -> None:
    base, store = place.new_base(), place.store
    documents = [document(f"d{n:03}", *(f"text {n} {chunk}" for chunk in range(3)), title=f"T{n}") for n in range(30)]
    long = document("long", *(f"text {chunk}" for chunk in range(150)), metadata={"a": "b"})
    later = document("unwritten", "later")
    later = replace(later, references=[replace(one, payload=b"", crc32c=0) for one in later.references], written=False)
    store.write(base, [*documents, long, later])
    before = store.revision(base)
    found: dict[str, list[StoredMemory]] = {}
    with store.snapshot(base) as snapshot:
        assert (snapshot.revision.memories, snapshot.revision.digest) == (before.memories, before.digest)
        for page in snapshot.pages:
            if not found:
                store.write(base, [document("d003", "another"), document("new", "one"), document("long", "short")])
                store.delete(base, ["d010", "unwritten"])
            found.setdefault(page.document.key, []).extend(page.memories)
            assert page.document.metadata == ({"a": "b"} if page.document.key == "long" else {})
            assert page.document.written is (page.document.key != "unwritten")
    assert list(found) == sorted(found)
    for stored in [*documents, long, later]:
        expected = [(r.memory_id, chunk, r.text, r.payload) for chunk, r in enumerate(stored.references)]
        assert [(m.memory_id, m.chunk_number, m.text, bytes(m.payload)) for m in found[stored.key]] == expected
    assert snapshot.documents == len(found) == 32
    require_whole(store, base)


@every_store_slowly
def test_search_agrees_with_comparing_every_vector(place: OpenedStore) -> None:
    base = place.new_base()
    texts = [f"text {n}" for n in range(300)]
    for start in range(0, 300, 100):
        place.store.write(base, [document(f"d{n}", texts[n]) for n in range(start, start + 100)])
    place.store.delete(base, [f"d{n}" for n in range(0, 300, 3)])
    living = [n for n in range(300) if n % 3]
    vectors = np.stack([vector_of(texts[n]) for n in living])
    right = 0
    for query in range(30):
        vector = vector_of(f"text {query}")  # a third of these are the vectors of deleted references
        expected = {f"d{living[row]}" for row in np.argsort(-vectors @ vector)[:5]}
        right += len(expected & set(keys_near(place.store, base, f"text {query}", k=5)))
    assert right >= 0.97 * 30 * 5  # an engine's index is approximate and keeps bfloat16


@every_store_slowly
def test_several_queries_share_their_payloads_and_held_ones_stay(place: OpenedStore) -> None:
    base = place.new_base()
    one, two = document("a", "one"), document("b", "two")
    place.store.write(base, [one, two])
    vectors = np.stack([vector_of("one"), vector_of("two"), vector_of("one")])
    held = one.references[0].memory_id
    retrieved = place.store.retrieve(base, Query(vectors, 2, held_ids=frozenset([held])))
    assert [[hit.document_key for hit in hits] for hits in retrieved.hits] == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert set(retrieved.payloads) == {two.references[0].memory_id}
    (near, _, _) = place.store.retrieve(base, Query(vectors, 2, minimum_score=0.9)).hits
    assert [hit.document_key for hit in near] == ["a"]


@every_store
def test_words_lift_a_reference_above_the_minimum_score(place: OpenedStore) -> None:
    base = place.new_base()
    place.store.write(base, [document("a", "order forty frames"), document("b", "a kettle")])
    question = -vector_of("order forty frames")[None]
    (least,) = (place.store.retrieve(base, Query(question, 2)).hits)[0][-1:]

    def read(*words: int) -> list[str]:
        query = Query(question, 2, minimum_score=least.score + 0.001, words=[words] if words else ())
        return [hit.document_key for hit in place.store.retrieve(base, query).hits[0]]

    assert (least.document_key, read()) == ("a", ["b"])
    assert set(read(*query_words("how many frames to order"))) == {"a", "b"}


@every_store_slowly
def test_a_filter_passes_what_its_definition_passes(place: OpenedStore) -> None:
    base = place.new_base()
    values = [
        "",
        "a",
        "b",
        "ä",
        "1",
        "10",
        "9.5",
        "-3",
        "1e2",
        "1e999",
        "nan",
        "inf",
        " 7",
        "0x10",
        "+2",
        ".5",
        "5.",
        "2026-11-22",
        "1_0",
    ]
    of = [{"x": value} for value in values] + [{"y": "1"}, {}, {"x": "a", "y": "b"}]
    stored = [document(f"d{n:02}", f"text {n}", metadata=metadata) for n, metadata in enumerate(of)]
    place.store.write(base, stored)
    conditions: list[Filter] = [
        In("x", ("a", "ä")),
        In("x", ("a", "10", "")),
        In("x", ()),
        In("z", ("a",)),
        Exists("x"),
        Exists("'\\"),
        Range("x"),
        Range("x", at_least=1.0, below=10.0),
        Range("x", above=-2.0, at_most=100),
        Range("x", below=2.5),
        Range("x", at_least="2026", below="2027"),
        Range("x", at_least="a", below="c"),
        Range("x", above=""),
        Not(In("x", ("a",))),
        Not(Range("x", at_least=0.0)),
        And(()),
        Or(()),
        And((Exists("x"), Not(Exists("y")))),
        Or((In("x", ("b",)), In("y", ("1",)))),
        And((Exists("x"), Or((In("y", ("b",)), Range("x", at_least=10.0))))),
    ]
    for condition in conditions:
        expected = [d.key for d in stored if matches(condition, d.metadata)]
        assert place.store.keys(base, "", after_key=None, count=99, filter=condition) == expected, condition
        query = Query(vector_of("any")[None], 50, filter=condition, return_metadata=True)
        (hits,) = place.store.retrieve(base, query).hits
        assert sorted(hit.document_key for hit in hits) == expected, condition
        assert all(hit.metadata == of[int(hit.document_key[1:])] for hit in hits)


@every_store
def test_words_order_the_nearest(place: OpenedStore) -> None:
    base = place.new_base()
    place.store.write(base, [document("a", "the harbour is deep"), document("b", "the glacier is blue")])
    for text, first in (("a blue glacier", "b"), ("a deep harbour", "a")):
        query = Query(vector_of("neither")[None], 1, words=[query_words(text)], candidates=2)
        (hits,) = place.store.retrieve(base, query).hits
        assert [(hit.document_key, hit.text) for hit in hits] == [(first, None)]
        assert hits[0].rank_score > hits[0].score


@every_store_slowly
def test_documents_are_replaced_deleted_and_left_alone(place: OpenedStore) -> None:
    base = place.new_base()
    assert place.store.revision(base) == Revision(place.store.revision(base).number)
    first, second = document("a", "one", "two"), document("a", "three")
    (written,) = place.store.write(base, [first])
    assert (written.reference_count, written.replaced, written.unchanged) == (2, False, False)
    (again,) = place.store.write(base, [first])
    assert again.unchanged
    one = place.store.revision(base)
    replaced, new = place.store.write(base, [second, document("b", "four")])
    assert replaced.replaced
    assert not new.replaced
    two = place.store.revision(base)
    assert two.number > one.number
    assert two.memories == 2
    ids = [second.references[0].memory_id, document("b", "four").references[0].memory_id]
    assert two.digest == digest(ids)
    versions = place.store.versions(base, ["a", "b", "c"])
    assert {key: version.memory_ids for key, version in versions.items()} == {"a": (ids[0],), "b": (ids[1],)}
    assert place.store.delete(base, ["a", "none"]) == (1, 1)
    assert place.store.delete(base, ["a"]) == (0, 0)
    assert keys_near(place.store, base, "three") == ["b"]
    place.store.write(base, [second])
    assert sorted(keys_near(place.store, base, "three")) == ["a", "b"]
    require_whole(place.store, base)


@every_store
def test_keys_are_listed_page_after_page_in_the_order_of_their_bytes(place: OpenedStore) -> None:
    base = place.new_base()
    keys = ["a", "a/1", "a/2", "a_", "b", "ä", "Z", "%", "𝄞", "\uffff"]
    place.store.write(base, [document(key, key) for key in keys])
    place.store.delete(base, ["b"])
    expected = sorted((key for key in keys if key != "b"), key=str.encode)
    assert place.store.keys(base, "", after_key=None, count=99) == expected
    pages, after = [], None
    while page := place.store.keys(base, "", after_key=after, count=4):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [4, 4, 1]
    assert [key for page in pages for key in page] == expected
    assert place.store.keys(base, "a/", after_key=None, count=99) == ["a/1", "a/2"]
    assert place.store.keys(base, "a", after_key="a/1", count=1) == ["a/2"]
    assert place.store.keys(base, "%", after_key=None, count=9) == ["%"]


@every_store_slowly
def test_names_are_taken_once_and_dropping_frees_them(place: OpenedStore) -> None:
    first, other = place.new_base(), place.new_base()
    place.store.write(first, [document("a", "one")])
    place.store.write(other, [document("a", "two")])
    with pytest.raises(KnowledgeBaseExists):
        place.store.create(first.name, "", IDENTITY)
    place.store.drop(first)
    with pytest.raises(KnowledgeBaseNotFound):
        place.store.write(first, [document("b", "two")])
    with pytest.raises(KnowledgeBaseNotFound, match=first.name):
        place.store.knowledge_base(first.name)
    second = place.store.create(first.name, "", IDENTITY)
    assert second.number > first.number
    assert keys_near(place.store, second, "one") == []
    require_whole(place.store, other)
    assert keys_near(place.store, other, "one") == ["a"]


@every_store_slowly
def test_a_search_finds_one_version_of_a_document_and_all_of_it(place: OpenedStore) -> None:
    """Whatever moment of a replacement it comes at: never both, never neither, never a part."""
    base = place.new_base()
    texts = ["text 1", "text 2", "text 3"]
    place.store.write(base, [document("d", *texts, title="version 0")])
    problems: list[object] = []
    seen: set[str] = set()
    done = threading.Event()

    def search() -> None:
        try:
            while not done.is_set():
                for query in (Query(vector_of("text 2")[None], 5), Query(vector_of("text 2")[None], 2)):
                    (hits,) = place.store.retrieve(base, query).hits
                    titles = {hit.title for hit in hits}
                    if len(titles) != 1 or len({hit.chunk_number for hit in hits}) != min(query.k, 3):
                        problems.append([(hit.title, hit.chunk_number) for hit in hits])
                    seen.update(titles)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()

    def until_seen(title: str) -> None:  # a busy machine may let the searches begin late
        while title not in seen and not problems:
            time.sleep(0.001)

    until_seen("version 0")
    for version in range(1, 4):
        place.store.write(base, [document("d", *texts, title=f"version {version}")])
    until_seen("version 3")
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(seen) > 1
    (hits,) = place.store.retrieve(base, Query(vector_of("text 2")[None], 5)).hits
    assert {hit.title for hit in hits} == {"version 3"}
