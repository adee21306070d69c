"""Whatever text UTF-8 has goes through every store unchanged, or is refused at the door by the same error."""

import contextlib
import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from edge_client.pull.pack import pull_pack
from memory3.channel import ChannelSettings
from memory3.files import knowledge_file
from memory_service.archive import Archive
from memory_service.client.backup import back_up, restore
from memory_service.stores.filters import Exists, Filter, In, Range, matches, number
from protos.memory.v1 import filter_pb2, ingestion_pb2
from protos.memory.v1 import knowledge_bases_pb2 as pb
from testing.encoders import HashEncoder
from tests.memory_service.odd_text import TEXTS, documents
from tests.memory_service.running import Client, document, refused, running

FEW = 40
"""Of the filters and prefixes, each a call, what `make test` tries; `make test-slow` tries all, on chdb too."""
SLOWLY = pytest.param("chdb", marks=pytest.mark.slow)
WAYS = [
    "file",
    "file to file",
    *(pytest.param(way, marks=pytest.mark.slow) for way in ("chdb", "chdb to file", "file to chdb")),
]
"""Of the documents: the store that they are written to, and the one that a backup of it is restored into."""
Documents = list[ingestion_pb2.Document]


@pytest.fixture(scope="module", params=WAYS)
def reopened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service that was started again after all documents were written, or restored, with a new index then."""
    first, _, last = request.param.partition(" to ")
    folder = tmp_path_factory.mktemp(first)
    store, archive = f"{first}://{folder}/first", Archive(str(folder / "backup"))
    with running(folder, HashEncoder(), store=store) as (client, server):
        answers = client.ingest("kb", *given())
        assert [one.failed for one in answers if one.HasField("failed")] == []
        if last:
            back_up(f"127.0.0.1:{server.port}", "kb", archive)
    if last:
        store = f"{last}://{folder}/last"
        with running(folder, HashEncoder(), store=store) as (_, server):
            restore(f"127.0.0.1:{server.port}", "kb", archive)
        for index in folder.glob("last/*/index.faiss"):
            index.unlink()
    with running(folder, HashEncoder(), store=store) as (client, server):
        client.address = f"127.0.0.1:{server.port}"
        yield client


def given() -> Documents:
    return documents(random.Random(7), 40)


def plain(text: str) -> str:
    """References have one blank in the place of several."""
    return " ".join(text.split())


def ordered(keys: Iterator[str]) -> list[str]:
    return sorted(keys, key=str.encode)


T = TypeVar("T")
some_or_every = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


def some(items: list[T], every: bool) -> list[T]:
    return items if every else random.Random(1).sample(items, min(FEW, len(items)))


def message_of(condition: Filter) -> filter_pb2.Filter:
    """A condition on one value as the wire has it."""
    if isinstance(condition, In):
        return filter_pb2.Filter(is_in=filter_pb2.Filter.In(name=condition.name, values=condition.values))
    if isinstance(condition, Exists):
        return filter_pb2.Filter(exists=condition.name)
    assert isinstance(condition, Range)
    kind = "text" if condition.of_text else "number"
    names = {">=": "at_least", ">": "above", "<=": "at_most", "<": "below"}
    bounds = {names[sign]: filter_pb2.Filter.Bound(**{kind: limit}) for sign, limit in condition.limits.items()}
    return filter_pb2.Filter(range=filter_pb2.Filter.Range(name=condition.name, **bounds))


def test_every_document_comes_back_unchanged(reopened: Client) -> None:
    for one in given():
        found = reopened.document("kb", one.key)
        assert (found.document_key, found.title, dict(found.metadata)) == (one.key, one.title, dict(one.metadata))
        assert plain(one.text) in plain(found.references[0].text)
    again = reopened.ingest("kb", *given())[1:]
    assert {one.acknowledged.outcome for one in again} == {ingestion_pb2.INGEST_OUTCOME_UNCHANGED}


def test_export_and_hits_say_the_same(reopened: Client) -> None:
    exported = {m.document_key: m for part in reopened.export("kb") for m in part.page.memories}
    by_key = {one.key: one for one in given()}
    assert exported.keys() == by_key.keys()
    assert all(exported[key].title == one.title for key, one in by_key.items())
    for key, memory in exported.items():
        (hit,) = reopened.hits("kb", memory.text, 1, return_text=True, return_metadata=True)
        assert (hit.document_key, hit.title, hit.text) == (key, memory.title, memory.text)
        assert dict(hit.metadata) == dict(by_key[key].metadata)


def test_a_pack_holds_the_same(reopened: Client, tmp_path: Path) -> None:
    pull_pack(ChannelSettings(reopened.address), "kb", tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "kb.memories")) as database:
        packed = {
            document.key: (document.title, [one.text for one in knowledge_file.references(database, row)])
            for row, document in knowledge_file.documents(database)
        }
    expected = {one.key: reopened.document("kb", one.key) for one in given()}
    assert packed == {key: (one.title, [r.text for r in one.references]) for key, one in expected.items()}


@some_or_every
def test_pages_and_prefixes_find_every_key(reopened: Client, every: bool) -> None:
    keys, found, page = ordered(one.key for one in given()), [], ""
    while True:
        listed = reopened.listed("kb", count=7, page_token=page)
        found += [one.document_key for one in listed.documents]
        page = listed.next_page_token
        if not page:
            break
    assert found == keys
    for key in some(keys, every):
        for prefix in (key, key[:1], key[: len(key) // 2 + 1]):
            listed = reopened.listed("kb", key_prefix=prefix, count=1000)
            expected = [other for other in keys if other.startswith(prefix)]
            assert [one.document_key for one in listed.documents] == expected, prefix


@some_or_every
def test_filters_pass_what_their_definition_passes(reopened: Client, every: bool) -> None:
    conditions: list[Filter] = []
    for one in given():
        for name, value in one.metadata.items():
            conditions += [In(name, (value,)), Exists(name)]
            if name == "number":
                conditions.append(Range("number", at_least=value, at_most=value))
                if (limit := number(value)) is not None:
                    conditions += [Range("number", at_least=limit, at_most=limit), Range("number", above=limit)]
    for condition in some(list(dict.fromkeys(conditions)), every):
        expected = ordered(one.key for one in given() if matches(condition, one.metadata))
        listed = reopened.listed("kb", filter=message_of(condition), count=1000)
        assert [one.document_key for one in listed.documents] == expected, condition


@pytest.fixture(scope="module", params=["file", SLOWLY])
def empty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp(request.param)
    with running(folder, HashEncoder(), store=f"{request.param}://{folder}") as (client, _):
        yield client


@pytest.mark.parametrize(
    ("field", "refused_document"),
    {
        "key": document("", "Text."),
        "key ": document("k" * 1025, "Text."),
        "metadata": ingestion_pb2.Document(key="a", text="Text.", metadata={str(n): "" for n in range(65)}),
        "metadata ": ingestion_pb2.Document(key="a", text="Text.", metadata={"name": "v" * 4093}),
        "metadata  ": ingestion_pb2.Document(key="a", text="Text.", metadata={"n" * (64 << 10): ""}),
        "text": document("a", " \n\u2003"),
    }.items(),
)
def test_what_is_refused_is_refused_at_the_door_with_its_field(
    empty: Client, field: str, refused_document: ingestion_pb2.Document
) -> None:
    request = ingestion_pb2.UpsertRequest(knowledge_base="kb", document=refused_document, create_if_missing=True)
    error = refused(lambda: empty.ingestion.Upsert(request, timeout=60))
    assert error.reason in ("INVALID_ARGUMENT", "DOCUMENT_EMPTY"), error
    assert error.field == field.strip()


def test_half_a_surrogate_pair_is_refused_as_a_malformed_request(empty: Client) -> None:
    whole = ingestion_pb2.UpsertRequest(knowledge_base="kb", document=document("key", "Text."), create_if_missing=True)
    broken = whole.SerializeToString().replace(b"key", b"\xed\xa0\x80")
    call = empty.channel.unary_unary("/memory.v1.Ingestion/Upsert")
    assert refused(lambda: call(broken, timeout=60)).reason == "MALFORMED_REQUEST"


def test_descriptions_and_names_too(empty: Client) -> None:
    for n, odd in enumerate(TEXTS.values()):
        request = pb.CreateKnowledgeBaseRequest(name=f"described-{n}", description=odd)
        assert empty.bases.CreateKnowledgeBase(request, timeout=60).knowledge_base.description == odd
        named = pb.CreateKnowledgeBaseRequest(name=f"a{odd}")
        if not re.fullmatch(r"[\w.-]*", odd, re.ASCII):
            error = refused(lambda named=named: empty.bases.CreateKnowledgeBase(named, timeout=60))  # type: ignore[misc]
            assert (error.reason, error.field) == ("INVALID_ARGUMENT", "name")
