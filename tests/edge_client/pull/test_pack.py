"""Memory packs: what a device finds without a network is what the service finds, whatever broke on the way."""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.folder import LocalKnowledgeBases
from edge_client.local.knowledge_base import LocalKnowledgeBase, read_head
from edge_client.pull import transfer
from edge_client.pull.pack import pull_pack
from edge_client.retrieval import Hit
from edge_client.wire.client import MemoryClient
from memory3.channel import ChannelSettings
from memory3.codec.payload import Identity
from memory3.errors import InvalidInput, ModelMismatch
from memory3.files.bundle import Bundle
from memory3.files.knowledge_file import Head
from memory3.text.words import query_words
from testing.encoders import DIMENSION, HashEncoder, vector_of
from testing.tcp_proxy import TcpProxy
from tests.edge_client.cli.conftest import run
from tests.memory_service.running import Client, document, running

WRITER = HashEncoder().description.identity
IDENTITY = Identity(WRITER.model_id, WRITER.codec_id, WRITER.memory_format_id)
TOWNS = ["Oslo", "Rome", "Lima", "Cairo", "Quito", "Paris", "Delhi"]
THINGS = ["area", "population", "highest point", "river", "language", "currency", "harbour", "coast"]
TEXTS_OF = {
    f"k{n}": (town, f"{town}: the {thing} of {town} is {n * 37}.")
    for n, (town, thing) in enumerate((town, thing) for town in TOWNS for thing in THINGS)
}
MANY = 700  # three pages
AWAY = [50] * 5000
"""Connections that are cut before a call gets through: gRPC makes new ones as fast as it can."""


def stored(key: str) -> str:
    """The document's one reference as it is written: under its title."""
    title, text = TEXTS_OF[key]
    return f"{title}\n{text}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    with running(tmp_path_factory.mktemp("store"), HashEncoder(), default_deadline_s=60) as (client, server):
        client.ingest("towns", *(document(key, text, title) for key, (title, text) in TEXTS_OF.items()))
        client.ingest("many", *(document(f"m{n}", f"Number {n}.") for n in range(MANY)))
        yield client, f"127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def address(service: tuple[Client, str]) -> str:
    return service[1]


@pytest.fixture(scope="module")
def towns(address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    pull_pack(ChannelSettings(address), "towns", folder)
    return folder / "towns.memories"


@pytest.fixture
def pack(towns: Path) -> LocalKnowledgeBase:
    return opened(towns)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("edge_client.pull.pack._PAUSE_S", 0.01)


def opened(path: Path, minimum_score: float | None = None) -> LocalKnowledgeBase:
    return LocalKnowledgeBase.open(path, IDENTITY, WRITER.embedder_id, minimum_score=minimum_score)


@pytest.mark.parametrize("by_words", [False, True])
def test_the_pack_finds_what_the_service_finds(address: str, pack: LocalKnowledgeBase, by_words: bool) -> None:
    questions = [stored(key) for key in TEXTS_OF][::4]  # one request's worth: payloads are not sent twice
    rng = np.random.default_rng(7)
    noise = rng.standard_normal((len(questions), DIMENSION)) / DIMENSION**0.5
    vectors = (np.stack([vector_of(q) for q in questions]) + 0.7 * noise).astype(np.float32)
    words = [query_words(q) for q in questions] if by_words else ()
    client = MemoryClient(ChannelSettings(address), "towns", IDENTITY, WRITER.embedder_id, deadline_s=60)
    theirs = client.retrieve(vectors, k=5, words=words)
    client.close()
    ours = pack.retrieve(vectors, k=5, words=words)
    assert len(ours.hits) == len(questions)
    for mine, remote in zip(ours.hits, theirs.hits, strict=True):
        assert [h.memory_id for h in mine] == [h.memory_id for h in remote]
        # The service's index computes in bfloat16: 8 bits of a number, summed over the vector.
        assert np.allclose([h.score for h in mine], [h.score for h in remote], atol=8e-3)
        for hit, other in zip(mine, remote, strict=True):
            assert hit == dataclasses.replace(other, score=hit.score, knowledge_base="towns")
            if hit.payload:
                hit.check()


def test_scores_are_cosines_and_none_are_below_the_least(towns: Path, pack: LocalKnowledgeBase) -> None:
    vector = vector_of(stored("k3"))[None]
    (best, *_), (longer, *_) = (pack.retrieve(v, k=2).hits[0] for v in (vector, 100 * vector))
    assert best.document_key == "k3"
    assert best.score == pytest.approx(1.0, abs=1e-2)
    assert longer.score == pytest.approx(best.score, abs=1e-6)
    assert len(pack.retrieve(vector, k=1000).hits[0]) == len(TEXTS_OF)
    strict = opened(towns, minimum_score=0.9)
    assert [h.document_key for h in strict.retrieve(vector, k=5).hits[0]] == ["k3"]
    assert strict.retrieve(-vector, k=5, words=[query_words("nothing of this")]).hits == ((),)
    assert strict.retrieve(-vector, k=5).hits == ((),)


def test_words_lift_a_memory_above_the_least(towns: Path, pack: LocalKnowledgeBase) -> None:
    vector = vector_of("like none of them")[None]
    best, second = pack.retrieve(vector, k=2).hits[0]
    strict = opened(towns, minimum_score=best.score + 0.001)
    assert strict.retrieve(vector, k=5).hits == ((),)
    words = query_words(stored(second.document_key))
    assert strict.retrieve(vector, k=5, words=[words]).hits[0][0].document_key == second.document_key


def test_questions_that_are_none_are_refused(pack: LocalKnowledgeBase) -> None:
    good = vector_of("x")[None]
    for bad in (good[0], good[:, :3], np.zeros_like(good), good * np.nan, good[:0]):
        with pytest.raises(InvalidInput):
            pack.retrieve(bad, k=1)
    with pytest.raises(InvalidInput):
        pack.retrieve(good, k=0)
    with pytest.raises(InvalidInput):
        pack.retrieve(good, k=1, words=[[1], [2]])


def test_a_pack_stands_in_for_the_knowledge_base_of_its_name_and_takes_nothing_of_the_devices_own(
    tiny: Bundle, towns: Path
) -> None:
    with pytest.raises(ModelMismatch, match="edge-client pull --kb towns"):
        LocalKnowledgeBases(towns.parent, tiny)
    manifest = dataclasses.replace(
        tiny.manifest,
        model_id=IDENTITY.model_id,
        codec_id=IDENTITY.codec_id,
        memory_format_id=IDENTITY.memory_format_id,
        embedder_id=WRITER.embedder_id,
    )
    bases = LocalKnowledgeBases(towns.parent, Bundle(tiny.folder, manifest))
    assert [base.name for base in bases.stand_ins("atlas,towns")] == ["towns"]
    assert (bases.documents(), bases.stand_ins("atlas")) == ({}, [])
    with pytest.raises(InvalidInput, match="pulled from a service"):
        bases.base("towns", DIMENSION)


# Pulling


def everything(path: Path) -> list[Hit]:
    """All that a pack finds, in the order of its ids."""
    (hits,) = opened(path).retrieve(vector_of("x")[None], k=10 * MANY).hits
    return sorted(hits, key=lambda hit: hit.memory_id)


@pytest.fixture(scope="module")
def whole(address: str, tmp_path_factory: pytest.TempPathFactory) -> list[Hit]:
    folder = tmp_path_factory.mktemp("whole")
    head, path = pull_pack(ChannelSettings(address), "many", folder), folder / "many.memories"
    assert [p.name for p in folder.iterdir()] == ["many.memories"], "nothing is left beside it"
    assert (head.memories, len(opened(path))) == (MANY, MANY)
    return everything(path)


def interrupted(address: str, folder: Path) -> Path:
    """What a pull collected whose service went away in the middle."""
    collected = folder / ".many.memories.pull" / "many.memories"
    count = 0
    for _ in range(5):  # the break may reach a busy device before it has written the first record
        with TcpProxy(address, 400_000, *AWAY) as proxy, pytest.raises(RetrievalError):
            pull_pack(ChannelSettings(proxy.address, attempts=1), "many", folder)
        if collected.is_file():
            with closing(LocalKnowledgeBase.any(collected)) as base:
                count = len(base)
        if count:
            break
    assert 0 < count < MANY
    assert not (folder / "many.memories").exists()
    return collected


def test_a_broken_connection_goes_on_where_it_stopped(address: str, whole: list[Hit], tmp_path: Path) -> None:
    with TcpProxy(address, 400_000, 300_000, 50) as proxy:
        pull_pack(ChannelSettings(proxy.address, attempts=1), "many", tmp_path)
    assert everything(tmp_path / "many.memories") == whole


@pytest.mark.parametrize("damaged", [False, True])
def test_the_next_run_keeps_what_came_unless_it_is_damaged(
    address: str, whole: list[Hit], tmp_path: Path, damaged: bool
) -> None:
    collected = interrupted(address, tmp_path)
    if damaged:
        collected.write_bytes(b"noise" * 1000)
    done: list[int] = []
    pull_pack(ChannelSettings(address), "many", tmp_path, progress=lambda have, total, what: done.append(have))
    assert (done[0] > 100_000) is not damaged
    assert done == sorted(done)
    assert everything(tmp_path / "many.memories") == whole


@pytest.mark.slow
def test_a_knowledge_base_written_to_in_between_starts_anew(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    client.ingest("growing", *(document(f"g{n}", f"Number {n}.") for n in range(MANY)))
    with TcpProxy(address, 400_000, *AWAY) as proxy, pytest.raises(RetrievalError):
        pull_pack(ChannelSettings(proxy.address, attempts=1), "growing", tmp_path)
    client.ingest("growing", document("g0", "Number 0, anew."), document("new", "A new one."))
    assert pull_pack(ChannelSettings(address), "growing", tmp_path).memories == MANY + 1
    pack = opened(tmp_path / "growing.memories")
    (hits,) = pack.retrieve(vector_of("Number 0, anew.")[None], k=1).hits
    assert hits[0].text == "Number 0, anew."
    keys = [h.document_key for h in pack.retrieve(vector_of("x")[None], k=MANY + 1).hits[0]]
    assert len(set(keys)) == MANY + 1


def test_what_cannot_be_fetched_is_named(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = ChannelSettings(address)
    other = Identity("ab" * 32, IDENTITY.codec_id, IDENTITY.memory_format_id)
    with pytest.raises(RetrievalError) as caught:
        pull_pack(channel, "many", tmp_path, identity=other)
    assert caught.value.reason == "MODEL_MISMATCH"
    with pytest.raises(StorageError, match="no memories"):
        pull_pack(channel, "default", tmp_path)
    head = Head.of("many", IDENTITY, WRITER.embedder_id, DIMENSION)
    LocalKnowledgeBase.create(tmp_path / "many.memories", head).close()
    with pytest.raises(InvalidInput, match="this device's own memories"):
        pull_pack(channel, "many", tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="are free"):
        pull_pack(channel, "towns", tmp_path)


def test_the_command_fetches_a_pack(address: str, tmp_path: Path) -> None:
    command = ["pull", "--service", address, "--local", tmp_path, "--bundle", tmp_path / "none", "--kb"]
    for _ in range(2):  # the second replaces the first
        result = run(*command, "towns")
        assert result.exit_code == 0, result.output
        assert f"{len(TEXTS_OF)} memories of towns" in " ".join(result.stdout.split())
    assert read_head(tmp_path / "towns.memories").pulled
    result = run(*command, "nobodys")
    assert result.exit_code == 1
    assert "there are: default, " in result.stderr
