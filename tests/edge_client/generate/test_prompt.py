"""What a chunk of a prompt asks with: what was said last and what before, nothing of the template."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_client.generate.prompt import OWN_SHARE, Prompt, Query, query_text, query_vectors
from memory_model.embedder import Embedder
from memory_model.export.embedder import export_embedder
from tests.edge_client.tiny_bundle import tiny_bert, tiny_loaded

TOKENIZER = tiny_loaded().tokenizer


def conversation(turns: Sequence[str]) -> Prompt:
    ids: list[int] = []
    content: list[bool] = []
    for turn in turns:
        said = TOKENIZER.encode(turn)
        ids += [TOKENIZER.eos_id, *said, TOKENIZER.eos_id]
        content += [False, *[True] * len(said), False]
    return Prompt(ids, content)


def asked(turns: Sequence[str], limit: int = 64) -> tuple[str, str] | None:
    prompt = conversation(turns)
    query = query_text(prompt, TOKENIZER, 0, len(prompt.ids), limit)
    return query and (str(query), query.before)


def test_a_question_knows_the_one_before_it_and_not_the_answer_between() -> None:
    assert asked(["who?"]) == ("who?", "")
    assert asked(["who?", "he"]) == ("he", "who?")
    assert asked(["who?", "he", "and when?"]) == ("and when?", "who?")
    assert asked(["what?", "it", "who?", "he", "and when?"]) == ("and when?", "who?")


def test_the_vector_lies_between_the_question_alone_and_both(tmp_path: Path) -> None:
    export_embedder(tiny_bert(tmp_path / "bert"), tmp_path / "embedder")
    embedder = Embedder(tmp_path / "embedder")
    alone, both = embedder.embed(["and when?", "who?\nand when?"])
    first, following = query_vectors(embedder, ["who?", Query("and when?", "who?")])
    expected = OWN_SHARE * alone + (1 - OWN_SHARE) * both
    np.testing.assert_allclose(following, expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(first, embedder.embed(["who?"])[0], atol=1e-5)
