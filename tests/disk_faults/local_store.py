"""A local store while its disk fails: python -m tests.disk_faults.local_store FOLDER DEPTH, `disk_faults.c` preloaded.

Prints what `tests.disk_faults.faults.try_all` does.
"""

import contextlib
import sys
import time
from contextlib import closing
from pathlib import Path

from memory_service.errors import KnowledgeBaseNotFound, StoreFull, StoreUnavailable
from memory_service.stores.local.store import LocalStore
from tests.disk_faults.faults import Case, Faults, try_all
from tests.memory_service.stored import IDENTITY, document, keys_near, require_whole

RETRY_S = 0.02


def recovered(store: LocalStore, name: str) -> None:
    """Waits until the knowledge base can be used."""
    deadline = time.monotonic() + 30
    while store.knowledge_base(name).problem and time.monotonic() < deadline:
        assert not store.knowledge_base(name).damaged, store.knowledge_base(name).problem
        time.sleep(RETRY_S / 4)
    assert store.knowledge_base(name).problem == ""


def opening(folder: Path, faults: Faults, case: Case) -> None:
    """The store is opened while the disk fails: unavailable as a whole, or for one knowledge base, until it is well."""
    with faults.of(*case):
        try:
            store = LocalStore(folder, RETRY_S)
        except (StoreUnavailable, StoreFull):
            return
        assert not any(base.damaged for base in store.knowledge_bases()), store.knowledge_bases()
    with closing(store):
        recovered(store, "kb")
        require_whole(store, store.knowledge_base("kb"))


def using(folder: Path, faults: Faults, case: Case) -> None:
    """The disk fails while the store is used: each call says so; all goes on, and nothing acknowledged is lost."""
    there = {"a", "b"}
    unsure: set[str] = set()
    with closing(LocalStore(folder, RETRY_S)) as store:
        base = store.knowledge_base("kb")
        with faults.of(*case):
            for n in range(3):
                with contextlib.suppress(StoreUnavailable, StoreFull):
                    unsure.add(f"n{n}")
                    store.write(base, [document(f"n{n}", f"text {n}", metadata={"n": str(n)})])
                    there.add(f"n{n}")
                with contextlib.suppress(StoreUnavailable, StoreFull):
                    keys_near(store, base, "one")
                    store.keys(base, "", after_key=None, count=9)
                    store.statistics(base)
            with contextlib.suppress(StoreUnavailable, StoreFull):
                store.delete(base, ["b"])
                there.discard("b")
            unsure.add("b")
            made = False
            with contextlib.suppress(StoreUnavailable, StoreFull):
                made = bool(store.create("made", "", IDENTITY))
            if made:
                with contextlib.suppress(StoreUnavailable, StoreFull):
                    store.drop(store.knowledge_base("made"))
                    made = False
        store.write(base, [document("last", "last")])
        require_whole(store, base)
        found = set(store.keys(base, "", after_key=None, count=99))
        assert there - {"b"} <= found <= there | unsure | {"last"}, (there, found)
        with contextlib.suppress(KnowledgeBaseNotFound):
            store.drop(store.knowledge_base("made"))
        store.drop(store.create("made", "", IDENTITY))
    with closing(LocalStore(folder, RETRY_S)) as store:
        (base,) = store.knowledge_bases()
        require_whole(store, base)
        assert set(store.keys(base, "", after_key=None, count=99)) == found


def main(scratch: Path, depth: int) -> None:
    whole = scratch / "whole"
    with closing(LocalStore(whole)) as store:
        base = store.create("kb", "", IDENTITY)
        store.write(base, [document("a", "one", "two", metadata={"n": "1"}), document("b", "three")])
    try_all(whole, scratch / "faulty", depth, opening, using)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
