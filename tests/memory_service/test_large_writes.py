"""A large document keeps small calls to its knowledge base waiting for one slice of its work, and is there whole."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from memory_service.stores.local import knowledge_base
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import KnowledgeBase
from tests.memory_service.stored import IDENTITY, document, keys_near, require_whole

SLICE, SLICES = 8, 10
LARGE = document("large", *(f"sentence {n}" for n in range(SLICE * SLICES)))
LONGER = document("large", *(f"other {n}" for n in range(SLICE * SLICES + 7)))
Between = Callable[[Callable[[int], None]], None]


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge_base, "_SLICE_REFERENCES", SLICE)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Calls a function with the number of each slice of a large write, when others may write."""

    def calls(function: Callable[[int], None]) -> None:
        numbers = iter(range(10_000))
        monkeypatch.setattr(knowledge_base, "_let_others_write", lambda: function(next(numbers)))

    return calls


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[LocalStore, KnowledgeBase]]:
    with closing(LocalStore(tmp_path / "store")) as store:
        base = store.create("kb", "", IDENTITY)
        store.write(base, [document("a", "one"), document("b", "two")])
        yield store, base


def reopened(tmp_path: Path, keys: list[str]) -> None:
    with closing(LocalStore(tmp_path / "store")) as store:
        (base,) = store.knowledge_bases()
        require_whole(store, base)
        assert store.keys(base, "", after_key=None, count=99) == keys


def test_small_calls_come_between_the_slices_of_a_large_document(
    opened: tuple[LocalStore, KnowledgeBase], between: Between, tmp_path: Path
) -> None:
    store, base = opened
    slices: list[int] = []

    def small(number: int) -> None:
        slices.append(number)
        store.write(base, [document("a", f"version {number}"), document(f"s{number}", f"small {number}")])
        store.delete(base, [f"s{number - 1}"])
        require_whole(store, base)
        assert "large" not in keys_near(store, base, "sentence 0"), "not before all of it is there"

    between(small)
    store.write(base, [LARGE])
    assert len(slices) == SLICES
    expected = ["a", "b", "large", f"s{SLICES - 1}"]
    require_whole(store, base)
    assert store.keys(base, "", after_key=None, count=99) == expected
    assert keys_near(store, base, "sentence 30", 1) == ["large"]
    assert keys_near(store, base, f"version {SLICES - 1}", 1) == ["a"]
    store.close()
    reopened(tmp_path, expected)


def test_what_is_written_by_its_key_meanwhile_is_replaced(
    opened: tuple[LocalStore, KnowledgeBase], between: Between, tmp_path: Path
) -> None:
    store, base = opened
    store.write(base, [LARGE])

    def same_key(number: int) -> None:
        if number == 3:
            store.write(base, [document("large", "small meanwhile")])

    between(same_key)
    (written,) = store.write(base, [LONGER])
    assert (written.replaced, written.reference_count) == (True, len(LONGER.references))
    require_whole(store, base)
    assert keys_near(store, base, "other 5", 1) == ["large"]
    assert store.statistics(base).references == 2 + len(LONGER.references)

    def equal(number: int) -> None:
        if number == 3:
            store.write(base, [document("c", "three")])

    between(equal)
    large, small = store.write(base, [LARGE, document("c", "three")])
    assert (large.replaced, small.unchanged) == (True, True)
    require_whole(store, base)
    store.close()
    reopened(tmp_path, ["a", "b", "c", "large"])


def test_an_index_that_is_built_again_meanwhile_gets_the_large_document(
    opened: tuple[LocalStore, KnowledgeBase], between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, base = opened
    own, catch_up = store._open[base.number], knowledge_base.LocalKnowledgeBase._caught_up

    def rebuild(number: int) -> None:
        if number == 4:
            store.write(base, [document("c", "three")])
            own._rebuild()
            store.write(base, [document("d", "four")])

    between(rebuild)
    store.write(base, [LARGE])
    require_whole(store, base)
    assert keys_near(store, base, "sentence 30", 1) == ["large"]

    def late(*arguments: object) -> object:
        """The large document is committed after the builder went by its rows."""
        monkeypatch.setattr(knowledge_base.LocalKnowledgeBase, "_caught_up", catch_up)
        between(lambda _: None)
        store.write(base, [LONGER])
        return catch_up(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(knowledge_base.LocalKnowledgeBase, "_caught_up", late)
    own._rebuild()
    require_whole(store, base)
    assert keys_near(store, base, "other 30", 1) == ["large"]
    store.close()
    reopened(tmp_path, ["a", "b", "c", "d", "large"])


def test_a_large_document_that_is_broken_off_leaves_nothing(
    opened: tuple[LocalStore, KnowledgeBase], between: Between, tmp_path: Path
) -> None:
    store, base = opened

    def fail(number: int) -> None:
        store.write(base, [document(f"s{number}", f"small {number}")])
        if number == 5:
            raise KeyboardInterrupt

    between(fail)
    with pytest.raises(KeyboardInterrupt):
        store.write(base, [LARGE])
    require_whole(store, base)
    between(lambda _: None)
    store.write(base, [LONGER])
    store.delete(base, ["s3"])
    require_whole(store, base)
    store.close()
    reopened(tmp_path, ["a", "b", "large", "s0", "s1", "s2", "s4", "s5"])


def test_a_crash_while_a_large_document_is_written_leaves_what_was_acknowledged(
    opened: tuple[LocalStore, KnowledgeBase], between: Between, tmp_path: Path
) -> None:
    store, base = opened
    copies: list[Path] = []

    def crash(number: int) -> None:
        store.write(base, [document(f"s{number}", f"small {number}")])
        if number == 5:
            copies.append(tmp_path / "crashed")
            shutil.copytree(store.path, copies[0])

    between(crash)
    store.write(base, [LARGE])
    with closing(LocalStore(copies[0])) as crashed:
        (again,) = crashed.knowledge_bases()
        require_whole(crashed, again)
        assert crashed.keys(again, "", after_key=None, count=99) == ["a", "b", *(f"s{n}" for n in range(6))]
        between(lambda _: None)
        crashed.write(again, [LARGE])
        require_whole(crashed, again)
