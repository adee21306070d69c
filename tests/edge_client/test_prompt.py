"""What a chunk of a prompt asks with: what was said, a line a turn, and nothing of the template."""

from __future__ import annotations

from edge_client.prompt import Prompt, query_text
from tests.edge_client.tiny_bundle import tiny_loaded


def test_turns_of_a_conversation_do_not_run_into_each_other() -> None:
    tokenizer = tiny_loaded().tokenizer
    turns = ["first words", "more of them"]
    ids: list[int] = []
    content: list[bool] = []
    for turn in turns:
        said = tokenizer.encode(turn)
        ids += [tokenizer.eos_id, *said, tokenizer.eos_id]
        content += [False, *[True] * len(said), False]
    prompt = Prompt(ids, content)
    assert query_text(prompt, tokenizer, 0, len(ids), 64) == "first words\nmore of them"
    assert query_text(prompt, tokenizer, 0, 1, 64) is None
    last = tokenizer.encode(turns[1])
    assert query_text(prompt, tokenizer, 0, len(ids), len(last)) == turns[1]
