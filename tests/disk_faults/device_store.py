"""A device's store while its disk fails: python -m tests.disk_faults.device_store FOLDER DEPTH, with `disk_faults.c`.

Prints what `tests.disk_faults.faults.try_all` does. No service is called: what it would send is made here.
"""

import contextlib
import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import google_crc32c
import numpy as np

from edge_client.errors import StorageError
from edge_client.local.folder import LocalKnowledgeBases, install
from edge_client.local.knowledge_base import LocalKnowledgeBase, kept_documents
from edge_client.local.records import LocalDocument
from edge_client.local.writer import Written
from edge_client.pull.bundle import pull_bundle
from edge_client.pull.pack import pull_pack
from memory3.channel import ChannelSettings
from memory3.codec.payload import Identity
from memory3.config import ModelConfig
from memory3.files.bundle import MANIFEST, REQUIRED, Bundle, FileEntry, Manifest
from memory3.files.knowledge_file import Head
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import models_pb2
from testing.encoders import DIMENSION, identity_of, payload_of, vector_of
from tests.disk_faults.faults import Case, Faults, try_all

WRITER = identity_of("test")
IDENTITY = Identity(WRITER.model_id, WRITER.codec_id, WRITER.memory_format_id)
MANIFEST_OF = SimpleNamespace(embedder_id=WRITER.embedder_id)
BUNDLE = cast(Bundle, SimpleNamespace(identity=IDENTITY, manifest=MANIFEST_OF))
ADDRESS = ChannelSettings("127.0.0.1:9")
OWN = "mine.memories"


def head(name: str) -> Head:
    return Head.of(name, IDENTITY, WRITER.embedder_id, DIMENSION)


def add(base: LocalKnowledgeBase, key: str, *texts: str) -> None:
    """A document with a reference for each text."""
    payloads = [payload_of(text, WRITER.model_id) for text in texts]
    base.add(LocalDocument(key, text=" ".join(texts)), texts, Written(payloads, vectors_of(*texts)))


def vectors_of(*texts: str) -> np.ndarray:
    """float32 [n, DIMENSION]."""
    return np.stack([vector_of(text) for text in texts])


def opened(folder: Path) -> LocalKnowledgeBases:
    return LocalKnowledgeBases(folder, BUNDLE)


def found(base: LocalKnowledgeBase | LocalKnowledgeBases) -> set[str]:
    """The texts of all memories, each whole."""
    (hits,) = base.retrieve(vectors_of("any"), k=50).hits
    for hit in hits:
        hit.check()
        assert hit.payload == payload_of(hit.text or "", WRITER.model_id)
    return {hit.text or "" for hit in hits}


def opening(folder: Path, faults: Faults, case: Case) -> None:
    """Knowledge bases are opened while the disk fails: unavailable, and there once it is well."""
    with faults.of(*case), contextlib.suppress(StorageError), closing(opened(folder)) as store:
        for _ in range(2):
            with contextlib.suppress(StorageError):
                found(store)
    with closing(opened(folder)) as store:
        assert found(store) == {"one", "two", "three"}


def using(folder: Path, faults: Faults, case: Case) -> None:
    """The disk fails while a knowledge base is used: each call says so; all goes on, nothing acknowledged is lost."""
    there, unsure = {"one", "two", "three"}, set[str]()
    with closing(opened(folder)) as store:
        base = store.base("mine")
        with faults.of(*case):
            for n in range(3):
                with contextlib.suppress(StorageError):
                    unsure.add(f"text {n}")
                    add(base, f"n{n}", f"text {n}")
                    there.add(f"text {n}")
                with contextlib.suppress(StorageError):
                    found(store)
                with contextlib.suppress(StorageError):
                    base.documents(), base.files(), len(base)
            unsure.add("three")
            with contextlib.suppress(StorageError):
                store.forget("mine", "b")
                there.discard("three")
            with contextlib.suppress(StorageError):
                store.base("other", DIMENSION)
        add(base, "last", "last")
        after = found(store)
        assert there - {"three"} <= after <= there | unsure | {"last"}, (there, after)
        add(store.base("other", DIMENSION), "other", "other")
        assert found(store) == after | {"other"}
    with closing(opened(folder)) as store:
        assert found(store) == after | {"other"}


def appearing(folder: Path, faults: Faults, case: Case) -> None:
    """A knowledge base comes while a program runs and the disk fails: it is read once the disk is well."""
    own, aside = folder / OWN, folder / "aside"
    own.rename(aside)
    with closing(opened(folder)) as store:
        aside.rename(own)
        with faults.of(*case):
            for _ in range(2):
                with contextlib.suppress(StorageError):
                    found(store)
        assert found(store) == {"one", "two", "three"}


def replacing(folder: Path, faults: Faults, case: Case) -> None:
    """A file is replaced by a finished one, or stays with all that it holds, what is only in its journal too."""
    made = folder / "made"
    with closing(LocalKnowledgeBase.create(made, head("mine"))) as base:
        add(base, "new", "new")
    with closing(LocalKnowledgeBase.open(folder / OWN, IDENTITY, WRITER.embedder_id)) as old:
        add(old, "journal", "journal")  # stays in the journal as long as the file is open
        replaced = False
        with faults.of(*case), contextlib.suppress(StorageError):
            install(made, folder / OWN)
            replaced = True
        if not replaced:
            assert {one.key for one in kept_documents(folder / OWN)} == {"a", "b", "journal"}
    if not replaced:
        install(made, folder / OWN)
    with closing(opened(folder)) as store:
        assert found(store) == {"new"}


# Pulls: `stream` is replaced by what a service would send

PACK = [f"packed {n}" for n in range(6)]


def exported(texts: list[str], after_id: int | None) -> Iterator[bases.ExportKnowledgeBaseResponse]:
    """A knowledge base in pages of two memories, numbered from 1."""
    base = bases.KnowledgeBase(
        name="pack",
        model_id=WRITER.model_id,
        codec_id=WRITER.codec_id,
        memory_format_id=WRITER.memory_format_id,
        embedder_id=WRITER.embedder_id,
        dimension=DIMENSION,
    )
    digest = 0
    for number in range(1, len(texts) + 1):
        digest ^= number
    sent = bases.ExportHead(
        knowledge_base=base, revision=len(texts), memory_count=len(texts), id_digest=digest, payload_bytes=4000
    )
    yield bases.ExportKnowledgeBaseResponse(head=sent)
    for first in range(after_id or 0, len(texts), 2):
        page = bases.ExportPage()
        for number, text in enumerate(texts[first : first + 2], first + 1):
            payload = payload_of(text, WRITER.model_id)
            page.memories.add(
                memory_id=number,
                document_key=f"k{number}",
                text=text,
                vector=vector_of(text).tobytes(),
                payload=payload,
                payload_crc32c=google_crc32c.value(payload),
            )
        yield bases.ExportKnowledgeBaseResponse(page=page)


def sending(texts: list[str]) -> Callable[..., Iterator[bases.ExportKnowledgeBaseResponse]]:
    def stream(channel: Any, method: Any, request: Any) -> Iterator[bases.ExportKnowledgeBaseResponse]:
        return exported(texts, request.after_id if request.HasField("after_id") else None)

    return stream


def packing(folder: Path, faults: Faults, case: Case) -> None:
    """A pack takes the place of an older one, or that stays; the next pull goes on."""

    def pull(texts: list[str]) -> None:
        with mock.patch("edge_client.pull.pack.stream", sending(texts)):
            pull_pack(ADDRESS, "pack", folder)

    pull(PACK[:3])
    with faults.of(*case), contextlib.suppress(StorageError):
        pull(PACK)
    with closing(LocalKnowledgeBase.open(folder / "pack.memories", IDENTITY, WRITER.embedder_id)) as base:
        assert found(base) in (set(PACK[:3]), set(PACK))
    pull(PACK)
    with closing(opened(folder)) as store:
        (pack,) = store.stand_ins("pack")
        assert found(pack) == set(PACK)


def manifest_of(version: str) -> tuple[dict[str, bytes], bytes]:
    """The files of a bundle, small ones, and its manifest."""
    files = {name: f"{name} {version}".encode() * 100 for name in REQUIRED}
    config = ModelConfig("tiny", 1, 1, 1, 8, 8, 8, 1e4, 1e-5, True)
    entries = {name: FileEntry(hashlib.sha256(raw).hexdigest(), len(raw)) for name, raw in files.items()}
    made = Manifest(version, "1" * 64, "2" * 64, config.memory_format_id, "4" * 64, "float32", "", config, entries)
    return files, made.to_json().encode()


def bundling(folder: Path, faults: Faults, case: Case) -> None:
    """A bundle takes the place of an older one, or that stays; the next pull goes on."""
    target = folder / "bundle"

    def pull(version: str) -> None:
        files, manifest = manifest_of(version)

        def stream(channel: Any, method: Any, request: models_pb2.FetchBundleRequest) -> Iterator[Any]:
            raw = {**files, MANIFEST: manifest}[request.file]
            piece = raw[request.offset :]
            yield models_pb2.FetchBundleResponse(data=piece, offset=request.offset, file_bytes=len(raw))

        with (
            mock.patch("edge_client.pull.bundle.offered", return_value=[]),
            mock.patch("edge_client.pull.bundle.stream", stream),
        ):
            pull_bundle(ADDRESS, target)

    def whole(version: str) -> bool:
        files, manifest = manifest_of(version)
        return {path.name: path.read_bytes() for path in target.iterdir()} == {**files, MANIFEST: manifest}

    pull("old")
    with faults.of(*case), contextlib.suppress(StorageError):
        pull("new")
    # A rename that fails for good can be undone only by one that does not.
    assert not target.exists() or whole("old") or whole("new")
    assert target.exists() or case[0] == "rename"
    pull("new")
    assert whole("new")
    assert [path.name for path in folder.iterdir() if "bundle" in path.name] == ["bundle"]


def main(scratch: Path, depth: int) -> None:
    logging.disable(logging.WARNING)
    whole = scratch / "whole"
    whole.mkdir()
    with closing(LocalKnowledgeBase.create(whole / OWN, head("mine"))) as base:
        add(base, "a", "one", "two")
        add(base, "b", "three")
    try_all(whole, scratch / "faulty", depth, opening, using, appearing, replacing, packing, bundling)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
