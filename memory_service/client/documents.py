"""Stored documents of a service as commands list, show and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from memory3.formats.naming import Named, called, file_of, paths_of
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1.ingestion_pb2_grpc import IngestionStub

_KEYS_AT_ONCE = 1000
"""Documents of one call."""
_TIMEOUT_S, _DELETE_TIMEOUT_S = 60, 600


def listed(stub: IngestionStub, knowledge_base: str, prefix: str = "") -> Iterator[pb.DocumentVersion]:
    """The documents whose keys begin with `prefix`, page by page in the order of their keys."""
    request = pb.ListDocumentsRequest(knowledge_base=knowledge_base, key_prefix=prefix)
    while True:
        page = stub.ListDocuments(request, timeout=_TIMEOUT_S)
        yield from page.documents
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def document_pages(stub: IngestionStub, knowledge_base: str, key: str) -> Iterator[pb.GetDocumentResponse]:
    """A document with its texts, page by page."""
    request = pb.GetDocumentRequest(knowledge_base=knowledge_base, document_key=key, return_text=True)
    while True:
        page = stub.GetDocument(request, timeout=_TIMEOUT_S)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def keys_called(stub: IngestionStub, knowledge_base: str, name: str) -> list[str]:
    """The documents that people call so, as on a device (`memory3.formats.naming.called`), but not by their titles.

    All documents are listed only where none has the name for its key, its file or its folder. Raises InvalidInput where
    several files are called so.
    """
    keys = dict.fromkeys(key for path in paths_of(name) for key in _at(stub, knowledge_base, path))
    return _called(knowledge_base, keys, name) or _called(
        knowledge_base, (one.document_key for one in listed(stub, knowledge_base)), name
    )


def _at(stub: IngestionStub, knowledge_base: str, path: str) -> Iterator[str]:
    """The keys of a file and of its pages and rows, or of what is in a folder."""
    request = pb.GetVersionsRequest(knowledge_base=knowledge_base, document_keys=[path])
    yield from (one.document_key for one in stub.GetVersions(request, timeout=_TIMEOUT_S).versions)
    for inside in ("#", "/"):
        yield from (one.document_key for one in listed(stub, knowledge_base, f"{path}{inside}"))


def _called(knowledge_base: str, keys: Iterable[str], name: str) -> list[str]:
    known = (Named(knowledge_base, key, "", file_of(key, {})) for key in keys)
    return [one.key for one in called(known, name, folders=True)]


def delete_all(stub: IngestionStub, knowledge_base: str, keys: Sequence[str]) -> None:
    """Delete documents, some at a time, so that what is done stays done."""
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        request = pb.DeleteRequest(knowledge_base=knowledge_base, document_keys=keys[start : start + _KEYS_AT_ONCE])
        stub.Delete(request, timeout=_DELETE_TIMEOUT_S)
