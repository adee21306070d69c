"""The compiled search of FAISS's graph finds what FAISS finds, with the same scores, and never what is not there."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model.codec.native.graph import Graph, GraphLibrary, Places
from memory_model.errors import InvalidInput
from memory_service.stores.local import vector_index
from memory_service.stores.local.graph_search import GraphSearch
from memory_service.stores.local.living import Living
from memory_service.stores.local.vector_index import IndexRule, VectorIndex
from tests.memory_model.native_libraries import libraries

LIBRARIES = [GraphLibrary(library.path, library.level) for library in libraries()]
RULE = IndexRule(hnsw_from=1, rows_at_once=64)
each_level = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: f"level{library.level}")


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def clustered(
    rows: int, dimension: int, queries: int, *, falling: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors and queries beside them; falling: the first numbers of a vector are much larger than the last."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, dimension))
    scale = np.geomspace(10, 0.1, dimension) if falling else np.ones(dimension)
    vectors = (centres[rng.integers(0, 60, rows)] + rng.normal(size=(rows, dimension))) * scale
    near = vectors[rng.integers(0, rows, queries)] + 0.5 * scale * rng.normal(size=(queries, dimension))
    return unit(vectors), unit(near)


def index_of(vectors: np.ndarray, library: GraphLibrary | None, rule: IndexRule = RULE) -> VectorIndex:
    """An index that this library searches; None: FAISS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_index, "installed_graph", lambda: library)
        index = VectorIndex(vectors.shape[1], rule)
        index.grow(vectors)
    assert library is not None or index._graph is None
    return index


def same_graph(index: VectorIndex, library: GraphLibrary | None) -> VectorIndex:
    """Another index of the same graph."""
    other = VectorIndex(index.dimension, index.rule)
    other._index, other.kind = index._index, index.kind
    other._graph = GraphSearch.of(index._index, library)
    assert other._graph is not None
    return other


@each_level
@pytest.mark.parametrize(("dimension", "falling"), [(48, False), (50, False), (512, False), (512, True)])
def test_of_the_nearest_as_many_are_found_as_by_faiss_with_the_same_scores(
    library: GraphLibrary, dimension: int, falling: bool
) -> None:
    vectors, queries = clustered(1500, dimension, 200, falling=falling)
    theirs = index_of(vectors, None)
    ours = same_graph(theirs, library)
    exact = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    living = Living.of(len(vectors), [])
    hits = {}
    for name, index in (("ours", ours), ("theirs", theirs)):
        found = index.search(vectors, queries, 10, living)
        hits[name] = sum(
            len(set(wanted) & {row for row, _ in near})
            for wanted, near in zip(exact.tolist(), found, strict=True)
        )
        for query, near in zip(queries, found, strict=True):
            rows, scores = [row for row, _ in near], [score for _, score in near]
            np.testing.assert_allclose(scores, vectors[rows] @ query, atol=1e-6)
            assert near == sorted(near, key=lambda one: (-one[1], one[0]))
    assert hits["ours"] >= hits["theirs"] - 0.005 * exact.size


@each_level
def test_dead_rows_are_walked_through_and_not_returned(library: GraphLibrary) -> None:
    vectors, queries = clustered(1500, 64, 50)
    theirs = index_of(vectors, None)
    ours = same_graph(theirs, library)
    for dead in (
        [range(100, 1100)],
        [range(1495)],
        [range(1500)],
        [range(n, n + 1) for n in range(0, 1500, 2)],
    ):
        living = Living.of(len(vectors), dead)
        left = set(range(1500)) - {row for part in dead for row in part}
        found = ours.search(vectors, queries, 8, living)
        wanted = theirs.search(vectors, queries, 8, living)
        assert all({row for row, _ in near} <= left and len(near) == min(8, len(left)) for near in found)
        assert sum(
            [row for row, _ in one] == [row for row, _ in other]
            for one, other in zip(found, wanted, strict=True)
        ) >= 0.9 * len(queries)


small = st.tuples(
    st.integers(1, 70), st.integers(0, 40), st.sampled_from([1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 259]),
    st.integers(1, 90), st.integers(1, 3), st.integers(0, 2**32),
)  # fmt: skip


@given(small)
@settings(max_examples=40, deadline=None)
def test_small_graphs_with_a_tail_and_dead_rows_give_each_row_once_in_order(
    numbers: tuple[int, int, int, int, int, int],
) -> None:
    covered, tail, dimension, k, count, seed = numbers
    rng = np.random.default_rng(seed)
    vectors = unit(rng.integers(-2, 3, (covered + tail, dimension)) + 1e-3)  # many are equal
    queries = unit(rng.normal(size=(count, dimension)))
    dead = [range(row, row + 1) for row in np.flatnonzero(rng.random(len(vectors)) < rng.random()).tolist()]
    living = Living.of(len(vectors), dead)
    for library in LIBRARIES:
        index = index_of(vectors[:covered], library)
        for query, near in zip(queries, index.search(vectors, queries, k, living), strict=True):
            rows, scores = [row for row, _ in near], [score for _, score in near]
            assert len(set(rows)) == len(rows) == min(k, len(vectors) - len(dead))
            assert not {part.start for part in dead} & set(rows)
            np.testing.assert_allclose(scores, vectors[rows] @ query, atol=1e-6)
            assert near == sorted(near, key=lambda one: (-one[1], one[0]))


@each_level
def test_a_view_of_fewer_rows_than_the_graph_has_is_told_of_its_own_alone(library: GraphLibrary) -> None:
    vectors, queries = clustered(1500, 32, 20)
    index = index_of(vectors, library)
    for near in index.search(vectors[:700], queries, 5, Living.of(700, [])):
        assert len(near) == 5
        assert max(row for row, _ in near) < 700


@each_level
def test_rows_that_come_while_others_search_are_found_in_memory_that_moved(library: GraphLibrary) -> None:
    vectors, _ = clustered(3000, 16, 1)
    living, failed = Living.of(len(vectors), []), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_index, "installed_graph", lambda: library)
        index = VectorIndex(16, RULE)
        index.grow(vectors[:200])
        grown = threading.Event()

        def search(start: int) -> None:
            place = start
            while not grown.is_set():
                place = (place + 7) % 200
                ((row, score), *_) = index.search(vectors[:200], vectors[place : place + 1], 3, living)[0]
                if row != place and score < 0.9999:
                    failed.append((place, row, score))

        threads = [threading.Thread(target=search, args=(start,)) for start in (0, 3)]
        for thread in threads:
            thread.start()
        for end in range(400, 3001, 400):
            index.grow(vectors[:end])
        grown.set()
        for thread in threads:
            thread.join()
    assert failed == []
    ((row, score), *_) = index.search(vectors, vectors[2500:2501], 3, living)[0]
    assert (row, round(score, 5)) == (2500, 1)


@each_level
@pytest.mark.parametrize("mapped", [False, True])
def test_a_graph_that_was_saved_is_searched_after_loading(
    library: GraphLibrary, mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_index, "installed_graph", lambda: library)
    vectors, queries = clustered(600, 24, 10)
    living = Living.of(len(vectors), [])
    index = index_of(vectors, library)
    index.save(tmp_path)
    loaded = VectorIndex(24, RULE)
    assert loaded.load(tmp_path, len(vectors), mapped=mapped)
    assert loaded._graph is not None
    assert loaded.search(vectors, queries, 5, living) == index.search(vectors, queries, 5, living)
    more, _ = clustered(700, 24, 1)
    loaded.grow(np.concatenate([vectors, more[600:]]))
    assert loaded.covered == 700


def test_lists_are_left_to_faiss() -> None:
    vectors, queries = clustered(600, 16, 5)
    for library in LIBRARIES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vector_index, "installed_graph", lambda library=library: library)
            index = VectorIndex(16, IndexRule(hnsw_from=1, ivf_from=300))
            index.grow(vectors)
        assert index._graph is None
        assert all(len(near) == 5 for near in index.search(vectors, queries, 5, Living.of(600, [])))


@pytest.mark.parametrize(
    "wrong",
    [
        {"entry": 9},
        {"dimension": 0},
        {"covered": 2},
        {"k": 0},
        {"proposed": 100},
        {"marks_size": 0},
        {"most": 1},
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, int]) -> None:
    firsts = np.array([0, 2], np.int32)
    right = {"entry": 0, "dimension": 4, "covered": 1, "k": 2, "proposed": 4, "marks_size": 1, "most": 8}

    def search(
        library: GraphLibrary, *, entry: int, dimension: int, covered: int, k: int, proposed: int, marks_size: int,
        most: int,
    ) -> None:  # fmt: skip
        graph = Graph(1, dimension, entry, 0, None, None, None, firsts.ctypes.data)
        library.search(graph, Places(marks_size, 0, most), b"", 0, 0, covered, 1, None, 8, proposed, k, 0)

    for library in LIBRARIES:
        search(library, **right)
        with pytest.raises(InvalidInput):
            search(library, **(right | wrong))
    for library in LIBRARIES[-1:]:
        with pytest.raises(InvalidInput, match="processor"):
            GraphLibrary(library.path, 9)
