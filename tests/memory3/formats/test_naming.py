"""What an error says of documents that were not found by their name."""

import pytest

from memory3.formats.naming import MOST_NAMED, Named, unknown_document

MANY = [Named("mine", f"/notes/{n:02}.md", f"Note {n}", f"/notes/{n:02}.md") for n in range(MOST_NAMED)]
LEASE = Named("mine", "/notes/lease.txt", "Rent of the shop", "/notes/lease.txt")


@pytest.mark.parametrize("name", ["lese.txt", "Lease", "rent of shop", "/other/folder/lease.md"])
def test_of_many_documents_the_error_lists_first_what_is_called_most_alike(name: str) -> None:
    message = str(unknown_document([*MANY, LEASE], name))
    assert f"there is no document {name!r} on this device; there are: /notes/lease.txt, /notes/" in message
    assert message.endswith(" and 1 more")


def test_a_few_documents_are_listed_in_their_order_and_no_more_are_counted() -> None:
    assert str(unknown_document([*MANY[:2], LEASE], "lese")).endswith(
        "there are: /notes/00.md, /notes/01.md, /notes/lease.txt"
    )
    assert str(unknown_document([], "lese")).endswith("there are: none")
