"""An embedder that is slow, or asked twice, costs no memory without a word."""

from collections.abc import Sequence

import numpy as np

from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.recaller import SLOW, Recaller
from edge_client.retrieval import OWN_SHARE, Query
from memory3.files.bundle import Bundle
from memory3.runtime.embedder import Embedder
from tests.edge_client.fake_service import FakeService, client_of

TURNS = [f"What is the code of {name}?" for name in ("Oslo", "Rome", "Lima", "Cairo")]


class SlowEmbedder(Embedder):
    """The bundle's own embedder, as on a device whose clock says `text_s` more after each text; records them."""

    def __init__(self, bundle: Bundle, text_s: float = 0.0) -> None:
        super().__init__(bundle.folder)
        self.text_s, self.now = text_s, 0.0
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.now += self.text_s * len(texts)
        self.embedded += texts
        return super().embed(texts)


def recaller_of(bundle: Bundle, service: FakeService, text_s: float, *, sends_text: bool = False) -> Recaller:
    embedder = SlowEmbedder(bundle, text_s)
    queries = QueryEmbedder(embedder, clock=lambda: embedder.now)
    recaller = Recaller(queries, client_of(bundle, service.address), bundle.memory_format, sends_text=sends_text)
    recaller.prepare()
    embedder.embedded.clear()
    return recaller


def test_no_text_is_embedded_twice_whatever_asks_for_it(tiny: Bundle) -> None:
    embedder = SlowEmbedder(tiny)
    queries = QueryEmbedder(embedder, kept=4)
    first = queries.vectors(["who?", Query("and when?", ["who?"]), "who?"])
    assert embedder.embedded == ["who?", "and when?", "who?\nand when?"]
    again = queries.vectors(["who?", Query("and when?", ["who?"])])
    assert len(embedder.embedded) == 3
    np.testing.assert_array_equal(again, first[:2])
    queries.vectors(["another", "who?", "a third"])  # one too many: what was used longest ago goes
    queries.vectors(["and when?"])
    assert embedder.embedded[3:] == ["another", "a third", "and when?"]


def test_the_vector_lies_between_the_question_alone_and_both(tiny: Bundle) -> None:
    embedder = tiny.embedder()
    alone, both = embedder.embed(["and when?", "who?\nand when?"])
    first, following = QueryEmbedder(embedder).vectors(["who?", Query("and when?", ["who?"])])
    expected = OWN_SHARE * alone + (1 - OWN_SHARE) * both
    np.testing.assert_allclose(following, expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(first, embedder.embed(["who?"])[0], atol=1e-5)


def test_the_last_queries_are_embedded_in_time_and_the_others_are_told(tiny: Bundle, service: FakeService) -> None:
    recaller = recaller_of(tiny, service, 20.0)
    found = recaller.recall(TURNS, deadline_s=100.0)
    assert [r.reason for r in found] == [SLOW, SLOW, "", ""]
    assert [len(r.memories) for r in found] == [0, 0, 5, 5]
    assert "takes 20 s to embed a text, so 2 of 4 queries" in found[0].error
    assert [r.reason for r in recaller.recall(TURNS, deadline_s=100.0)] == [""] * 4, "a retry embeds the others"


def test_where_it_may_the_service_embeds_what_would_take_too_long_here(tiny: Bundle, service: FakeService) -> None:
    recaller = recaller_of(tiny, service, 30.0, sends_text=True)
    turns = [*TURNS[:-1], Query(TURNS[-1], TURNS[:1])]
    found = recaller.recall(turns, deadline_s=100.0)
    assert [(r.by_text, len(r.memories), r.error) for r in found] == [(True, 5, "")] * 4
    assert list(service.requests[-1].query_texts) == [*TURNS[:-1], f"{TURNS[0]}\n{TURNS[-1]}"]
    (one,) = recaller.recall(TURNS[:1], deadline_s=100.0)
    assert (one.by_text, len(one.memories)) == (False, 5), "what fits is embedded here"


def test_one_text_that_takes_longer_than_the_deadline_is_recalled_all_the_same(
    tiny: Bundle, service: FakeService
) -> None:
    recaller = recaller_of(tiny, service, 40.0)
    assert recaller.deadline_s(TURNS[:1], 30.0) == 30.0 + 40.0 - 15.0
    (found,) = recaller.recall(TURNS[:1], deadline_s=55.0)
    assert (found.state, len(found.memories)) == ("fetched", 5)
    assert recaller.deadline_s(TURNS[:1], 30.0) == 30.0, "its vector is kept"
