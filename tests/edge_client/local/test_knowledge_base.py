"""A knowledge base in one file: what is found, what stays after whatever happens to it, what is refused."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_client.errors import StorageError
from edge_client.local.database import KEY_FILE
from edge_client.local.knowledge_base import LocalKnowledgeBase, kept_documents
from edge_client.local.records import LocalDocument
from memory3.codec.payload import Identity
from memory3.errors import (
    CodecMismatch,
    CorruptFile,
    EmbedderMismatch,
    FormatMismatch,
    InvalidInput,
    MissingFile,
    ModelMismatch,
)
from memory3.text.words import DEFAULT_RANKING, query_words, ranked, text_words
from tests.edge_client.local.small_base import HEAD, opened, vectors, written


@pytest.fixture
def base(tmp_path: Path) -> LocalKnowledgeBase:
    return LocalKnowledgeBase.create(tmp_path / "notes.db", HEAD)


def test_the_nearest_are_found_in_order_with_their_provenance(base: LocalKnowledgeBase) -> None:
    rows = vectors(40)
    for number in range(8):
        own = rows[5 * number :][:5]
        base.add(LocalDocument(f"{number}.md", f"Title {number}"), [f"text {n}" for n in range(5)], written(own))
    queries = vectors(3, seed=1)
    answer = base.retrieve(queries, k=4)
    for query, hits in zip(queries, answer.hits, strict=True):
        best = np.argsort(-(rows @ query))[:4].tolist()
        assert [(int(hit.document_key[0]) * 5 + hit.chunk_number) for hit in hits] == best
        assert [hit.score for hit in hits] == pytest.approx((rows @ query)[best].tolist(), abs=1e-6)
        assert {hit.knowledge_base for hit in hits} == {"notes"}
    first = answer.hits[0][0]
    assert first.payload == f"payload of {rows[int(first.document_key[0]) * 5 + first.chunk_number][0]}".encode()
    first.check()
    assert (first.title, first.text) == (f"Title {first.document_key[0]}", f"text {first.chunk_number}")


def test_a_search_by_vector_and_words_finds_what_comparing_everything_finds(base: LocalKnowledgeBase) -> None:
    rows, query = vectors(300), vectors(1, seed=1)
    texts = [f"Reference {n} of country {n % 7}: {n * 37}" for n in range(len(rows))]
    for start in range(0, len(rows), 3):
        title = f"Country {start % 7}"
        base.add(LocalDocument(str(start), title), texts[start : start + 3], written(rows[start : start + 3]))
    asked, cosines = query_words("What has country 3 to do with 37?"), rows @ query[0]
    near = np.argsort(-cosines)[: HEAD.candidates]
    titles = [query_words(f"Country {n // 3 * 3 % 7}") for n in near]
    order = ranked(
        asked, cosines[near].tolist(), [text_words(texts[n]) for n in near], titles, DEFAULT_RANKING.largest_drop
    )
    best = near[[place for place, _ in order[:5]]]
    (hits,) = base.retrieve(query, k=5, words=[asked]).hits
    assert [hit.text for hit in hits] == [texts[n] for n in best]
    assert [hit.score for hit in hits] == pytest.approx(cosines[best].tolist(), abs=1e-6)


def test_copies_of_a_text_hide_no_other(base: LocalKnowledgeBase) -> None:
    near, far = vectors(1), vectors(1) + vectors(1, seed=1) / 4
    for copy in range(20):
        base.add(LocalDocument(f"copy {copy}"), ["The same."], written(near))
    base.add(LocalDocument("other"), ["Another."], written(far / np.linalg.norm(far)))
    for words in ((), [query_words("another")]):
        (hits,) = base.retrieve(near, k=3, words=words).hits
        assert sorted(hit.text or "" for hit in hits) == ["Another.", "The same."]


def test_a_document_is_replaced_deleted_and_known_unchanged(base: LocalKnowledgeBase) -> None:
    rows = vectors(4)
    document = LocalDocument("a.txt", "A", "One. Two.", {"year": "1999"})
    base.add(document, ["One.", "Two."], written(rows[:2]))
    assert base.has(document)
    for other in (replace(document, text="One."), replace(document, metadata={}), replace(document, title="B")):
        assert not base.has(other)
    assert base.retrieve(rows[:1], k=1).hits[0][0].text == "One."
    base.add(replace(document, text="Three."), ["Three."], written(rows[2:3]))
    assert [hit.text for hit in base.retrieve(rows[:1], k=5).hits[0]] == ["Three."]
    (kept,) = base.documents()
    assert (kept.key, kept.references, kept.metadata) == ("a.txt", 1, {"year": "1999"})
    assert base.delete("a.txt")
    assert not base.delete("a.txt")
    assert (len(base), base.retrieve(rows[:1], k=5).hits) == (0, ((),))


def test_what_another_process_commits_is_found(base: LocalKnowledgeBase) -> None:
    rows = vectors(3)
    other = opened(base.path)
    for number in range(3):
        other.add(LocalDocument(str(number)), [str(number)], written(rows[number : number + 1]))
        assert base.retrieve(rows[number : number + 1], k=1).hits[0][0].text == str(number)
    other.delete("1")
    assert sorted(hit.text or "" for hit in base.retrieve(rows[:1], k=5).hits[0]) == ["0", "2"]


@pytest.mark.parametrize(
    ("field", "mismatch"),
    [
        ("model_id", ModelMismatch),
        ("codec_id", CodecMismatch),
        ("memory_format_id", FormatMismatch),
        ("embedder_id", EmbedderMismatch),
    ],
)
def test_a_file_of_another_bundle_is_refused_by_name_and_keeps_its_texts(
    field: str, mismatch: type[Exception], base: LocalKnowledgeBase
) -> None:
    base.add(LocalDocument("a.txt", "A", "One."), ["One."], written(vectors(1)))
    base.close()
    ids = {**vars(HEAD), field: "99" * 32}
    with pytest.raises(mismatch, match=r"knowledge base 'notes'.*remember --anew --kb notes"):
        LocalKnowledgeBase.open(
            base.path, Identity(ids["model_id"], ids["codec_id"], ids["memory_format_id"]), ids["embedder_id"]
        )
    assert [(d.key, d.text) for d in kept_documents(base.path)] == [("a.txt", "One.")]


def test_what_is_no_knowledge_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="edge-client remember"):
        opened(tmp_path / "none.db")
    noise, other = tmp_path / "noise.db", tmp_path / "other.db"
    noise.write_bytes(bytes(range(256)) * 40)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE diary (day)")
    for path in (noise, other):
        with pytest.raises(CorruptFile):
            opened(path)
    with pytest.raises(InvalidInput, match="holds something"):
        LocalKnowledgeBase.create(other, HEAD)


def test_damaged_vectors_and_payloads_are_not_read(base: LocalKnowledgeBase) -> None:
    rows = vectors(1)
    base.add(LocalDocument("a.txt"), ["One."], written(rows))
    with sqlite3.connect(base.path) as connection:
        connection.execute("UPDATE vectors SET vector = ?", ((rows[0] * 1.001).astype("<f4").tobytes(),))
    with pytest.raises(CorruptFile, match="damaged"):
        base.retrieve(rows, k=1)
    with sqlite3.connect(base.path) as connection:
        connection.execute("DELETE FROM payloads")
    with pytest.raises(CorruptFile, match="no vector, text or payload"):
        base.retrieve(rows, k=1)


def test_files_are_encrypted_with_the_key_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, key = tmp_path / "a.db", tmp_path / "key"
    monkeypatch.setenv(KEY_FILE, str(key))
    for content, error in ((None, MissingFile), (b" ", InvalidInput), (b"\xff\xfe\x80", InvalidInput)):
        key.write_bytes(content) if content else None
        with pytest.raises(error, match=KEY_FILE):
            LocalKnowledgeBase.create(path, HEAD)
    key.write_text("it's long and random")
    base, rows = LocalKnowledgeBase.create(path, HEAD), vectors(1)
    base.add(LocalDocument("diary", "", "One secret."), ["One secret."], written(rows))
    assert b"secret" not in base.content()
    base.close()
    assert opened(path).retrieve(rows, k=1).hits[0][0].text == "One secret."
    key.write_text("another")
    for named in (str(key), ""):
        monkeypatch.setenv(KEY_FILE, named)
        with pytest.raises(CorruptFile, match="encrypted with another key"):
            opened(path)
    monkeypatch.setenv(KEY_FILE, str(key))
    monkeypatch.setitem(sys.modules, "sqlcipher3", None)
    with pytest.raises(StorageError, match=r"memory3-edge\[encrypted\]"):
        opened(path)


def test_a_limit_of_files_is_named_and_keeps_what_was_there(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))"
    script = f"""
import signal, sys; {limit}; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from pathlib import Path
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.records import LocalDocument
from edge_client.local.writer import Written
from tests.edge_client.local.small_base import HEAD, vectors
base = LocalKnowledgeBase.create(Path(sys.argv[1]), HEAD)
for number in range(1000):
    base.add(LocalDocument(str(number)), ["x"], Written([bytes(20000)], vectors(1, number)))
    print(number, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.db")], capture_output=True, text=True)
    acknowledged = done.stdout.split()
    assert 0 < len(acknowledged) < 100
    assert all(said in done.stderr for said in ("StorageError", "limit for files is reached")), done.stderr
    assert [d.key for d in opened(tmp_path / "a.db").documents()] == sorted(acknowledged)


def test_a_correction_does_not_make_a_document_complete(base: LocalKnowledgeBase) -> None:
    rows = vectors(3)
    document = LocalDocument("rent.md", "Rent", "It is 700. It is due. It ends.")
    base.add(document, ["Rent\nIt is 700.", "Rent\nIt is due."], written(rows[:2]), whole=3)
    assert base.correct(document, 0, "Rent\nIt is 750.", written(rows[2:]))
    (listed,) = base.documents()
    assert (listed.references, listed.whole, listed.partial) == (2, 3, True)
    assert base.correct(document, 1)
    (listed,) = base.documents()
    assert (listed.references, listed.whole, listed.partial) == (1, 2, True)


def test_a_memory_is_corrected_and_removed_and_the_kept_text_follows(base: LocalKnowledgeBase, tmp_path: Path) -> None:
    rows = vectors(4)
    document = LocalDocument("rent.md", "Rent", "It is 700. It is due. It ends.")
    base.add(document, ["Rent\nIt is 700.", "Rent\nIt is due.", "Rent\nIt ends."], written(rows[:3]))
    began = base.documents()[0].written_at
    assert base.correct(document, 0, "Rent\nIt is 750.", written(rows[3:]))
    assert base.correct(document, 1)
    assert not base.correct(document, 1), "it is gone"
    (best,) = base.retrieve(rows[3:], k=1).hits[0]
    assert (best.text, best.chunk_number) == ("Rent\nIt is 750.", 0)
    best.check()
    assert [hit.text for hit in base.memories_of(["rent.md"])] == ["Rent\nIt is 750.", "Rent\nIt ends."]
    assert [one.text for one in kept_documents(tmp_path / "notes.db")] == ["It is 750.\nIt ends."]
    (listed,) = base.documents()
    assert (listed.references, listed.written_at >= began > 1e9) == (2, True)
    assert base.has(document), "its file has not changed, so it is not written again"
    assert not base.has(replace(document, text="It is 720. It is due. It ends."))
    assert base.correct(document, 0)
    assert base.correct(document, 2)
    assert base.documents() == []
