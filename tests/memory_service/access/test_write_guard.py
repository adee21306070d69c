"""What a tenant has stored, counted against its quota before each write."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_service.access.quotas import Quota, WriteGuard
from memory_service.errors import QuotaExceeded
from memory_service.stores.opening import open_store
from memory_service.stores.store import KnowledgeBase, Store
from tests.memory_service import stored

LIMIT = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(open_store(f"file://{tmp_path}")) as opened:
        yield opened


def guard_of(store: Store, now: list[float]) -> WriteGuard:
    return WriteGuard(store, lambda _: Quota(references=LIMIT), clock=lambda: now[0])


def write(guard: WriteGuard, store: Store, base: KnowledgeBase, key: str, count: int, version: int = 0) -> None:
    new = stored.document(key, *(f"{key} {version} {n}" for n in range(count)))
    with guard.writing(base, [new]) as admission:
        store.write(base, admission.documents)
    for error in admission.refused.values():
        raise error


def test_what_is_replaced_and_deleted_makes_room_again(store: Store) -> None:
    base, other = (store.create(f"acme/{name}", "", stored.IDENTITY) for name in "ab")
    guard = guard_of(store, [0.0])
    write(guard, store, base, "x", 8)
    with pytest.raises(QuotaExceeded):
        write(guard, store, other, "y", LIMIT - 7)
    write(guard, store, base, "x", 5, version=1)
    write(guard, store, other, "y", LIMIT - 5)
    store.delete(base, ["x"])
    guard.forget(base)
    write(guard, store, other, "z", 5)


def test_what_another_pod_writes_counts_within_a_minute(store: Store) -> None:
    now = [0.0]
    base = store.create("acme/a", "", stored.IDENTITY)
    here, there = guard_of(store, now), guard_of(store, now)
    write(here, store, base, "x", 2)
    write(there, store, base, "y", LIMIT - 3)
    now[0] += 61
    with pytest.raises(QuotaExceeded, match=f"{LIMIT - 1} references are stored"):
        write(here, store, base, "z", 2)
    write(here, store, base, "z", 1)
