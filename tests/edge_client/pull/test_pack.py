"""Memory packs: what a device finds without a network is what the service finds."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_client.cli.main import app
from edge_client.errors import RetrievalError, StorageError
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.pull import pack as pull_pack_module
from edge_client.pull import staging as pull_staging
from edge_client.pull.pack import pull_pack
from edge_client.wire.channel import ChannelSettings
from edge_client.wire.client import MemoryClient
from memory_model.codec.payload import Identity
from memory_model.errors import CorruptFile, InvalidInput, ModelMismatch
from memory_model.words import query_words
from tests.edge_client.cut_connection import cutting
from tests.memory_service.encoders import DIMENSION, HashEncoder, vector_of
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


def opened(place: Path) -> LocalKnowledgeBase:
    return LocalKnowledgeBase.open(place, IDENTITY, WRITER.embedder_id)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_staging, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(pull_pack_module, "_PAUSE_S", 0.01)


@pytest.mark.parametrize("by_words", [False, True])
def test_the_pack_finds_what_the_service_finds(address: str, tmp_path: Path, by_words: bool) -> None:
    pull_pack(ChannelSettings(address), "towns", tmp_path / "towns")
    pack = opened(tmp_path / "towns")
    questions = [stored(key) for key in TEXTS_OF][::4]  # one request's worth: payloads are not sent twice
    rng = np.random.default_rng(7)
    noise = rng.standard_normal((len(questions), DIMENSION)) / DIMENSION**0.5
    vectors = (np.stack([vector_of(q) for q in questions]) + 0.7 * noise).astype(np.float32)
    words = [query_words(q) for q in questions] if by_words else ()
    client = MemoryClient(ChannelSettings(address), "towns", IDENTITY, WRITER.embedder_id, deadline_s=60)
    theirs = client.retrieve(vectors, k=5, words=words)
    client.close()
    ours = pack.retrieve(vectors, k=5, words=words)
    pack.close()
    assert len(ours.hits) == len(questions)
    for mine, remote in zip(ours.hits, theirs.hits, strict=True):
        assert [h.memory_id for h in mine] == [h.memory_id for h in remote]
        # The service's index computes in bfloat16: 8 bits of a number, summed over the vector.
        assert np.allclose([h.score for h in mine], [h.score for h in remote], atol=8e-3)
        for hit, other in zip(mine, remote, strict=True):
            assert dataclasses.replace(hit, score=0, knowledge_base="") == dataclasses.replace(other, score=0)
            if hit.payload:
                hit.check()


def test_another_models_pack_is_refused_when_it_is_opened_and_before_it_is_fetched(
    address: str, tmp_path: Path
) -> None:
    other = dataclasses.replace(IDENTITY, model_id="ab" * 32)
    with pytest.raises(RetrievalError) as caught:
        pull_pack(ChannelSettings(address), "towns", tmp_path / "towns", identity=other)
    assert caught.value.reason == "MODEL_MISMATCH"
    pull_pack(ChannelSettings(address), "towns", tmp_path / "towns")
    with pytest.raises(ModelMismatch, match="abababababab"):
        LocalKnowledgeBase.open(tmp_path / "towns", other, WRITER.embedder_id)


# Interrupted


def everything(place: Path) -> list[tuple[object, ...]]:
    """All that a pack holds, in its order."""
    pack = opened(place)
    pack.verify()
    rows = pack._connection.execute(
        "SELECT memory_id, key, title, chunk, refs.text, vector, crc32c, payload FROM refs"
        " JOIN documents ON documents.id = document JOIN vectors USING (id) JOIN payloads USING (id)"
    ).fetchall()
    pack.close()
    return sorted(rows)


@pytest.fixture(scope="module")
def whole(address: str, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    place = tmp_path_factory.mktemp("whole") / "many"
    head = pull_pack(ChannelSettings(address), "many", place)
    assert head.memories == len(everything(place)) == MANY
    assert [p.name for p in place.parent.iterdir()] == ["many"], "nothing is left beside it"
    return everything(place)


def collected(place: Path) -> Path:
    """What a pull to `place` has fetched so far."""
    return place.parent / f".{place.name}.pull" / "pack.sqlite"


def interrupted(address: str, place: Path) -> Path:
    """The collection of a pull whose service went away in the middle."""
    for _ in range(5):  # the break may reach a busy device before it has written the first page
        with cutting(address, 400_000, *AWAY) as proxy, pytest.raises(RetrievalError):
            pull_pack(ChannelSettings(proxy.address, attempts=1), "many", place)
        if collected(place).exists() and everything(collected(place)):
            break
    assert 0 < len(everything(collected(place))) < MANY
    assert not place.exists()
    return collected(place)


def test_a_broken_connection_goes_on_where_it_stopped(
    address: str, whole: list[tuple[object, ...]], tmp_path: Path
) -> None:
    with cutting(address, 400_000, 300_000, 50) as proxy:
        pull_pack(ChannelSettings(proxy.address, attempts=1), "many", tmp_path / "many")
    assert everything(tmp_path / "many") == whole


@pytest.mark.parametrize("damaged", [False, True])
def test_the_next_run_keeps_what_came_unless_it_is_damaged(
    address: str, whole: list[tuple[object, ...]], tmp_path: Path, damaged: bool
) -> None:
    file = interrupted(address, tmp_path / "many")
    if damaged:
        data = file.read_bytes()
        place = data.index(bytes(whole[0][7])[:64])  # type: ignore[call-overload]  # a payload
        file.write_bytes(data[:place] + b"x" + data[place + 1 :])
        with pytest.raises(CorruptFile, match="damaged"):
            opened(file).verify()
    done: list[int] = []
    pull_pack(
        ChannelSettings(address), "many", tmp_path / "many",
        progress=lambda done_bytes, total_bytes, what: done.append(done_bytes),
    )  # fmt: skip
    assert (done[0] > 0) is not damaged
    assert done == sorted(done)
    assert everything(tmp_path / "many") == whole


@pytest.mark.slow
def test_a_knowledge_base_written_to_in_between_starts_anew(
    service: tuple[Client, str], tmp_path: Path
) -> None:
    client, address = service
    client.ingest("growing", *(document(f"g{n}", f"Number {n}.") for n in range(MANY)))
    place = tmp_path / "growing"
    with cutting(address, 400_000, *AWAY) as proxy, pytest.raises(RetrievalError):
        pull_pack(ChannelSettings(proxy.address, attempts=1), "growing", place)
    client.ingest("growing", document("g0", "Number 0, anew."), document("new", "A new one."))
    assert pull_pack(ChannelSettings(address), "growing", place).memories == MANY + 1
    pack = opened(place)
    (hits,) = pack.retrieve(vector_of("Number 0, anew.")[None], k=1).hits
    assert hits[0].text == "Number 0, anew."
    keys = [h.document_key for h in pack.retrieve(vector_of("x")[None], k=MANY + 1).hits[0]]
    assert len(set(keys)) == MANY + 1


@pytest.mark.slow
def test_one_that_never_rests_is_named(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, address = service
    client.ingest("restless", *(document(f"r{n}", f"Number {n}.") for n in range(MANY)))
    count = [0]

    def write(done_bytes: int, total_bytes: int, what: str) -> None:
        count[0] += 1
        client.ingest("restless", document("r0", f"Number 0, version {count[0]}."))

    with cutting(address, *[400_000] * 50) as proxy:
        settings = ChannelSettings(proxy.address, attempts=1)
        with pytest.raises(StorageError, match="ingestion is over"):
            pull_pack(settings, "restless", tmp_path / "restless", progress=write)
    assert not (tmp_path / "restless").exists()


def test_nothing_to_fetch_and_no_room_for_it_are_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="no memories"):
        pull_pack(ChannelSettings(address), "default", tmp_path / "default")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="not a memory pack"):
        pull_pack(ChannelSettings(address), "many", tmp_path / "letters")
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="are free"):
        pull_pack(ChannelSettings(address), "many", tmp_path / "many")


def test_the_command_fetches_a_pack(address: str, tmp_path: Path) -> None:
    def pull(name: str, *more: str) -> tuple[int, str, str]:
        place, bundle = str(tmp_path / "pack"), str(tmp_path / "none")
        options = ["--service", address, "--kb", name, "--out", place, "--bundle", bundle, *more]
        result = CliRunner().invoke(app, ["pull", *options])
        return result.exit_code, " ".join(result.stdout.split()), result.stderr

    code, said, _ = pull("towns")
    assert code == 0
    assert f"{len(TEXTS_OF)} memories of towns" in said
    code, said, _ = pull("many", "--limit", "300")  # replaces the first
    assert code == 0
    assert f"300 of {MANY} memories of many" in said
    pack = opened(tmp_path / "pack")
    assert (pack.name, len(pack)) == ("many", 300)
    code, _, said = pull("nobody's")
    assert code == 1
    assert "there are: default, " in said
    assert CliRunner().invoke(app, ["pull", "--limit", "3"]).exit_code == 2
