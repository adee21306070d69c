"""Models: what the service runs, and the files of its edge bundles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from memory3.errors import shortened
from memory3.files.bundle import CPU_DECODER, MANIFEST, Bundle
from memory_service import __version__
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest, BundleFileNotFound, BundleNotConfigured
from memory_service.service import Runtime
from memory_service.settings import MAX_HELD_IDS, MAX_HITS, MAX_QUERIES, Settings
from memory_service.stores.store import WriterIdentity, require_same
from protos.memory.v1 import models_pb2, models_pb2_grpc

_PIECE_BYTES = 1 << 20
_HIT_BYTES = 8 << 10
"""Of a hit besides payload and metadata: a key and a title of 1 KiB each, the text of a reference, numbers."""
PING_INTERVAL_MS = 10_000
"""Devices may keep an idle connection alive through their NATs; more frequent pings end it (too_many_pings)."""


class _Offer(NamedTuple):
    """A bundle as devices may fetch it. id: SHA-256 of its manifest."""

    id: str
    folder: Path
    manifest: dict[str, Any]


def check_bundles(settings: Settings) -> None:
    """Opens every bundle of the settings, the largest files too; raises MissingFile, CorruptFile, IdentityMismatch."""
    if settings.bundle is None:
        return
    first = _identity(Bundle.open(settings.bundle))
    for folder in settings.bundle_folders[1:]:
        require_same(first, _identity(Bundle.open(folder)), f"{folder}: export it from the same model as the bundle")


def _identity(bundle: Bundle) -> WriterIdentity:
    manifest = bundle.manifest
    return WriterIdentity(manifest.model_id, manifest.codec_id, manifest.memory_format_id, manifest.embedder_id, 0)


class Models(models_pb2_grpc.ModelsServicer):
    """Describes the encoder and serves the bundles' files, as the manifests name them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._description = description = runtime.encoder.description
        settings = runtime.settings
        self._folders = settings.bundle_folders
        self._limits = models_pb2.Limits(
            request_bytes=settings.message_limit_bytes,
            payload_bytes=description.payload_bytes,
            k=settings.max_k,
            queries=MAX_QUERIES,
            hits=MAX_HITS,
            held_ids=MAX_HELD_IDS,
            ping_interval_ms=PING_INTERVAL_MS,
            response_bytes=MAX_HITS * (description.payload_bytes + _HIT_BYTES),
        )

    async def Describe(self, request: models_pb2.DescribeRequest, call: Call) -> models_pb2.DescribeResponse:
        """See models.proto."""
        description, identity = self._description, self._description.identity
        offers = await self._runtime.run("read", self._offers)
        return models_pb2.DescribeResponse(
            model_id=identity.model_id,
            codec_id=identity.codec_id,
            memory_format_id=identity.memory_format_id,
            embedder_id=identity.embedder_id,
            dimension=identity.dimension,
            memories_per_chunk=description.memories_per_chunk,
            reference_tokens=description.reference_tokens,
            chunk_tokens=description.chunk_tokens,
            model_config_json=description.model_config_json,
            service_version=__version__,
            limits=self._limits,
            bundles=[
                models_pb2.BundleVariant(
                    id=offer.id,
                    precision=offer.manifest.get("precision", ""),
                    cpu_decoder=CPU_DECODER in offer.manifest["files"],
                    bytes=sum(entry.get("bytes", 0) for entry in offer.manifest["files"].values()),
                )
                for offer in offers
            ],
        )

    async def FetchBundle(
        self, request: models_pb2.FetchBundleRequest, call: Call
    ) -> AsyncIterator[models_pb2.FetchBundleResponse]:
        """See models.proto."""
        path = await self._runtime.run("read", self._file, request.file or MANIFEST, request.variant)
        size = path.stat().st_size
        if request.offset > size:
            raise BadRequest(f"offset {request.offset} is behind the end of {path.name} ({size} bytes)", field="offset")
        offset = request.offset
        with path.open("rb") as file:
            file.seek(offset)
            while True:
                data = await self._runtime.run("read", file.read, _PIECE_BYTES)
                if not data and offset != request.offset:
                    return
                yield models_pb2.FetchBundleResponse(data=data, offset=offset, file_bytes=size)
                if not data:  # an empty answer tells the size to a client that has everything
                    return
                offset += len(data)

    def _offers(self) -> list[_Offer]:
        """The bundles as they are now: an operator may replace one while the service runs."""
        raw = [(folder, (folder / MANIFEST).read_bytes()) for folder in self._folders]
        return [_Offer(hashlib.sha256(text).hexdigest(), folder, json.loads(text)) for folder, text in raw]

    def _file(self, name: str, variant: str) -> Path:
        """The path of a file of a bundle; only the manifest and what it names."""
        offers = self._offers()
        if not offers:
            raise BundleNotConfigured("this service offers no edge bundle: start it with --bundle FOLDER")
        offer = next((one for one in offers if variant in ("", one.id)), None)
        if offer is None:
            message = f"there is no bundle {shortened(variant, 80)!r} (any more): Describe lists what there is"
            raise BundleFileNotFound(message)
        names = {MANIFEST, *offer.manifest["files"]}
        if name not in names:
            raise BundleFileNotFound(f"the bundle has no file {shortened(name)!r}; it has {', '.join(sorted(names))}")
        return offer.folder / name
