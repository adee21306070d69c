"""Prompt chunks and streamed text: the parts that need no decoder."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from edge_client.generate.prompt import cut, query_text
from edge_client.generate.repetition import Repetition
from edge_client.generate.sampling import StreamText
from memory3.text.chat import ChatTemplate, Prompt
from memory3.text.tokenizer import Tokenizer
from tests.edge_client.tiny_bundle import SPECIAL, TEMPLATE, byte_tokenizer, tiny_loaded

TOKENIZER = Tokenizer.from_json(byte_tokenizer())
CHAT = ChatTemplate(TEMPLATE, TOKENIZER)


def streamed(tokens: Sequence[int], *, turn: bool, stop: Sequence[str] = ()) -> list[str]:
    stream = StreamText(TOKENIZER, stop, turn=turn)
    return [*map(stream.push, tokens), stream.flush()]


def test_a_turn_begins_with_its_first_character_that_is_no_white_space() -> None:
    tokens = TOKENIZER.encode(" \n 186 euros ")
    assert "".join(streamed(tokens, turn=True)) == "186 euros "
    assert "".join(streamed(tokens, turn=True, stop=["\n"])) == "186 euros "
    assert "".join(streamed(tokens, turn=False)) == " \n 186 euros "
    assert "".join(streamed(TOKENIZER.encode("  \n"), turn=True)) == ""


def prompt_of(pattern: str) -> Prompt:
    """Upper case letters are content, lower case letters are scaffolding."""
    return Prompt(TOKENIZER.encode(pattern), [c.isupper() for c in pattern])


def test_chunks_lie_on_the_grid_and_ask_with_content_only() -> None:
    chunks = cut(prompt_of("abcABCDEfghiGHIJ"), TOKENIZER, 4)
    assert [(c.start, len(c.tokens)) for c in chunks] == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert [c.query for c in chunks] == ["A", "BCDE", None, "GHIJ"]


@given(st.text(alphabet="abAB", max_size=80), st.integers(1, 9), st.integers(0, 80))
def test_every_token_is_read_once_and_in_order(pattern: str, size: int, start: int) -> None:
    prompt = prompt_of(pattern)
    chunks = cut(prompt, TOKENIZER, size, start)
    assert [t for c in chunks for t in c.tokens] == prompt.ids[start:]
    for c in chunks:
        inside = prompt.content[c.start : c.start + len(c.tokens)]
        assert (c.query is None) == (not any(inside))
        assert c.query is None or len(c.query.replace("\n", "")) <= size  # a line a turn


def test_a_character_is_shown_when_it_is_whole() -> None:
    stream = StreamText(TOKENIZER)
    assert [stream.push(i) for i in TOKENIZER.encode("é🎉")] == ["", "é", "", "", "", "🎉"]


def test_an_answer_that_is_cut_inside_a_character_goes_on_with_its_bytes() -> None:
    ids = TOKENIZER.encode("ok 🎉 é")
    for end in range(len(ids) + 1):
        first = StreamText(TOKENIZER)
        begun = "".join(map(first.push, ids[:end])) + first.flush(cut=True)
        rest = StreamText(TOKENIZER, begun=ids[:end])
        assert "\ufffd" not in begun
        assert begun + "".join(map(rest.push, ids[end:])) + rest.flush() == "ok 🎉 é"


def test_an_answer_that_says_the_same_again_and_again_has_an_end() -> None:
    def length(tokens: Sequence[int]) -> int | None:
        repetition = Repetition()
        return next((n for n, token in enumerate(tokens, 1) if repetition.add(token)), None)

    sentence = [*range(100, 118)]
    assert length([1, 2, 3, *sentence * 20]) == 3 + 18 * 5 + 6  # four times, and 96 tokens
    assert length([7] * 200) == 96
    assert length([*range(60)] * 9) == 240
    table = [5, *[6, 7] * 12, 8]  # a ruled line
    assert length([*table, *sentence, *table, *range(300, 340), *table]) is None
    assert length([token for n in range(60) for token in (9, n + 10, 9, n + 500)]) is None
    for before in range(4000, 4130, 13):  # the buffer of tokens begins anew within
        assert length([*range(1000, 1000 + before), *sentence * 20]) == before + 18 * 5 + 6


def test_tokens_that_end_one_character_and_begin_the_next_show_whole_ones() -> None:
    text, spelled = "😀🎉🚀🌍🎈", ByteLevel(add_prefix_space=False, use_regex=False)
    letters = "".join(piece for piece, _ in spelled.pre_tokenize_str(text))  # one for each byte
    pieces = [letters[:3], *(letters[n : n + 4] for n in range(3, len(letters), 4))]
    backend = Backend.from_str(byte_tokenizer())
    backend.model = BPE({piece: n for n, piece in enumerate(pieces)}, [])
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    assert "".join(map(StreamText(Tokenizer(backend)).push, range(len(pieces)))) == text


@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
@settings(max_examples=300)
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    stream = StreamText(TOKENIZER, stops)
    shown = ""
    for token in TOKENIZER.encode(text):
        shown += stream.push(token)
        if stream.stopped:
            break
    shown += stream.flush()
    ends = [n for n in range(len(text)) if any(text.startswith(s, n) for s in stops)]
    # The stop string that is complete first wins, so the text may end a little before or at the first place.
    first_complete = min((n + len(s) for s in stops for n in [text.find(s)] if n >= 0), default=None)
    if first_complete is None:
        assert shown == text
        assert not ends
    else:
        seen = text[:first_complete]
        assert shown == seen[: min(seen.find(s) for s in stops if s in seen)]
        assert stream.stopped


WORDS = tiny_loaded().tokenizer


def conversation(turns: Sequence[str]) -> Prompt:
    ids: list[int] = []
    content: list[bool] = []
    for turn in turns:
        said = WORDS.encode(turn)
        ids += [WORDS.eos_id, *said, WORDS.eos_id]
        content += [False, *[True] * len(said), False]
    return Prompt(ids, content)


def asked(turns: Sequence[str], limit: int = 64) -> tuple[str, ...] | None:
    prompt = conversation(turns)
    query = query_text(prompt, WORDS, 0, len(prompt.ids), limit)
    return query and (str(query), *query.earlier)


def test_a_question_knows_those_before_it_and_not_the_answers_between() -> None:
    assert asked(["who?"]) == ("who?",)
    assert asked(["who?", "he"]) == ("he", "who?")
    assert asked(["who?", "he", "and when?"]) == ("and when?", "who?")
    assert asked(["what?", "it", "who?", "he", "and when?"]) == ("and when?", "who?", "what?")
    assert asked([*"abcdefghi"]) == ("i", "g", "e", "c")


def test_earlier_questions_get_the_tokens_that_the_last_one_leaves_the_newest_first() -> None:
    size = len(WORDS.encode("and when?")) + len(WORDS.encode("who?"))
    assert asked(["what?", "it", "who?", "he", "and when?"], size) == ("and when?", "who?")
    assert asked(["what?", "it", "who?", "he", "and when?"], size + 1) == ("and when?", "who?", "?")
    assert asked(["who?", "he", "and when?"], 2) == ("n?",)
