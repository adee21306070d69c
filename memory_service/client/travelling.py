"""A document on its way through the stages of a distributed ingestion: one row of a table that workers pass on.

item        the document as the wire has it: text, then references, then references with vectors and memories
outcome     empty while it is on its way; then `item` is gone and the stages that are left pass the row on as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memory_service.client.formats import SourceDocument
from protos.memory.v1 import ingestion_pb2 as pb

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Travelling:
    """One row. source, number, place, key: where the document comes from, see SourceDocument."""

    source: str
    number: int
    place: str
    key: str
    item: bytes = b""
    outcome: str = ""
    references: int = 0
    reason: str = ""
    message: str = ""

    @classmethod
    def of(cls, document: SourceDocument) -> Travelling:
        """A document as it was read; one that cannot be read has failed already."""
        row = cls(str(document.source), document.number, document.place, document.key)
        if document.error:
            return row.failed("UNREADABLE", document.error)
        text = pb.Document(
            key=document.key, title=document.title, text=document.text, metadata=document.metadata
        )
        return replace(row, item=pb.IngestItem(document=text).SerializeToString())

    def parsed(self) -> pb.IngestItem:
        """The item."""
        return pb.IngestItem.FromString(self.item)

    def with_item(self, item: pb.IngestItem) -> Travelling:
        """With more of the work done."""
        return replace(self, item=item.SerializeToString())

    def done(self, outcome: str, references: int) -> Travelling:
        """Has its answer."""
        return replace(self, item=b"", outcome=outcome, references=references)

    def failed(self, reason: str, message: str) -> Travelling:
        """Was refused."""
        return replace(self, item=b"", outcome="failed", reason=reason, message=message)

    @property
    def document(self) -> SourceDocument:
        """Where it comes from, for people."""
        return SourceDocument(Path(self.source), self.number, self.key, place=self.place)


def table_of(rows: Sequence[Travelling]) -> pyarrow.Table:
    """Rows as a table; numpy would take zero bytes off the end of binary values."""
    import pyarrow as pa

    kinds = {"str": pa.large_string(), "int": pa.int64(), "bytes": pa.large_binary()}
    columns = {field.name: kinds[str(field.type)] for field in fields(Travelling)}
    return pa.Table.from_pylist([vars(row) for row in rows], schema=pa.schema(columns))


def rows_of(table: pyarrow.Table) -> list[Travelling]:
    """The rows of a table."""
    return [Travelling(**row) for row in table.to_pylist()]
