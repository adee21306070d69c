"""Writes the store that the archives beside this file hold: `python -m … KIND FOLDER`, see README.md."""

from __future__ import annotations

import sys

from memory_service.stores import open_store
from tests.memory_service.stored import IDENTITY, document

LAST = document("a", "four", title="A title", metadata={"language": "en"})
"""What became of document a."""


def main(kind: str, folder: str) -> None:
    """A knowledge base with a replaced and a deleted document, and an empty one."""
    store = open_store(f"{kind}://{folder}")
    base = store.create("words", "kept from the first release", IDENTITY)
    store.write(base, [document("a", "one", "two"), document("b", "three")])
    store.write(base, [LAST])
    store.write(base, [document("c", "five")])
    store.delete(base, ["c"])
    store.create("empty", "", IDENTITY)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
