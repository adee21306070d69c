"""Tokenizers of every kind are taken as they are: prompts are transformers', streamed answers keep their spaces."""

import json
from pathlib import Path

import pytest
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from edge_client.generate.sampling import StreamText
from memory3.config import parse_budget
from memory3.errors import InvalidInput
from memory3.text.chat import ChatTemplate, end_of_turn
from memory3.text.refusal import Refusal
from memory3.text.tokenizer import SpecialTokens, Tokenizer
from memory_model.data.batches import IGNORE, conversation_tokens
from memory_model.models.folder import ModelFolder
from memory_model.models.huggingface import HuggingFaceFolder
from tests.edge_client.tiny_bundle import TEMPLATE, byte_level
from tests.memory_model.models.published import LLAMA2, SPECIAL, add_tokenizer, published, sentence_piece

LLAMA = SpecialTokens(bos=1, eos=2, end_of_turn=2)


def with_a_word(backend: Backend) -> Backend:
    """The same with a token of a space and a word, as Llama 2 and Mistral have thousands."""
    data = json.loads(backend.to_str())
    data["model"]["vocab"]["▁I"] = len(data["model"]["vocab"])
    data["model"]["merges"] = [["▁", "I"]]
    return Backend.from_str(json.dumps(data))


KINDS = {
    "byte level": (byte_level(SPECIAL), TEMPLATE, None),
    "SentencePiece": (sentence_piece(), LLAMA2, LLAMA),
    "SentencePiece with a word": (with_a_word(sentence_piece()), LLAMA2, LLAMA),
    "unigram": (sentence_piece(unigram=True), LLAMA2, LLAMA),
}
CONVERSATION = [
    {"role": "user", "content": "Is Paris in France?"},
    {"role": "assistant", "content": "Yes, it is."},
    {"role": "user", "content": "And Berlin?"},
]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> tuple[Backend, str, Tokenizer]:
    backend, template, special = KINDS[request.param]
    return backend, template, Tokenizer.from_json(backend.to_str(), special)


def test_a_prompt_is_the_whole_rendered_text_encoded_by_transformers(kind: tuple[Backend, str, Tokenizer]) -> None:
    backend, template, tokenizer = kind
    bos, eos = (backend.id_to_token(i) for i in (tokenizer.bos_id, tokenizer.eos_id))
    theirs = tf.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)
    theirs.chat_template = template
    text = theirs.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    ours = ChatTemplate(template, tokenizer)
    assert ours.prompt(CONVERSATION).ids == theirs(text, add_special_tokens=False)["input_ids"]


def test_a_conversation_to_train_on_is_what_the_template_spells(kind: tuple[Backend, str, Tokenizer]) -> None:
    _, template, tokenizer = kind
    chat = ChatTemplate(template, tokenizer)
    turns = [("Is Paris in France?", "Yes, it is."), ("And Berlin?", "No.")]
    ids, labels = conversation_tokens(chat, turns)
    spelled = chat.prompt([*CONVERSATION, {"role": "assistant", "content": "No."}], False).ids
    assert ids[-1] == tokenizer.end_of_turn_id
    assert ids[:-1] == spelled[: len(ids) - 1]
    assert tokenizer.decode([i for i in labels if i != IGNORE]).replace(" ", "") == "Yes,itis.No."
    with pytest.raises(InvalidInput, match="wrote 0 of 4"):
        conversation_tokens(ChatTemplate("nothing", tokenizer), turns)


def test_what_a_model_generates_is_what_it_was_trained_to_and_what_the_next_turn_reads(
    kind: tuple[Backend, str, Tokenizer],
) -> None:
    _, template, tokenizer = kind
    chat = ChatTemplate(template, tokenizer)
    asked = chat.prompt(CONVERSATION[:1]).ids
    ids, labels = conversation_tokens(chat, [("Is Paris in France?", "I don't know.")])
    generated = chat.encode_answer("I don't know.")
    assert ids[: len(asked)] == asked
    assert set(labels[: len(asked)]) == {IGNORE}
    assert labels[len(asked) :][: len(generated)] == generated
    assert Refusal().first_token(chat) == generated[0]
    said = [CONVERSATION[0], {"role": "assistant", "content": "I don't know."}, CONVERSATION[2]]
    whole = [*asked, *generated]
    assert chat.prompt(said).ids[: len(whole)] == whole
    assert chat.prompt(said, generated={1: generated}).ids == chat.prompt(said).ids


@given(st.text("ab \n,é日", max_size=30) | st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_streams_as_it_decodes(text: str) -> None:
    for backend, _, special in KINDS.values():
        tokenizer = Tokenizer.from_json(backend.to_str(), special)
        stream, ids = StreamText(tokenizer), tokenizer.encode(text)
        assert "".join([stream.push(i) for i in ids]) + stream.flush() == tokenizer.decode(ids)


@given(st.lists(st.sampled_from(["a", " b", "é", " ", "<unk>"]), max_size=8))
def test_a_special_token_within_an_answer_costs_no_space(words: list[str]) -> None:
    tokenizer = Tokenizer.from_json(sentence_piece().to_str(), LLAMA)
    spelled = [[0] if word == "<unk>" else tokenizer.encode_next(word) for word in words]
    stream, ids = StreamText(tokenizer), [i for word in spelled for i in word]
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == tokenizer.decode(ids)


def test_a_file_that_was_saved_while_texts_were_cut_and_padded_does_neither(tmp_path: Path) -> None:
    saved = byte_level(SPECIAL)
    saved.enable_truncation(8)
    saved.enable_padding(pad_id=5)
    (tmp_path / "tokenizer.json").write_text(saved.to_str(), encoding="utf-8")
    plain, texts = byte_level(SPECIAL), ["a", "a text of more tokens than eight"]
    expected = [plain.encode(text).ids for text in texts]
    for tokenizer in (Tokenizer.from_json(saved.to_str()), Tokenizer.from_file(tmp_path / "tokenizer.json")):
        assert tokenizer.encode_batch(texts) == expected
        assert [tokenizer.encode_next(text, literal=True) for text in texts] == expected


def test_special_tokens_are_what_the_folder_names(tmp_path: Path) -> None:
    published(tmp_path, "qwen2")
    add_tokenizer(tmp_path, bos_token=None, eos_token={"content": "<|im_end|>"})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [258, 256, -1, 1000, "x"]}')
    tokens = HuggingFaceFolder(tmp_path).special_tokens
    assert tokens == SpecialTokens(bos=256, eos=258, end_of_turn=258, stop=(256, 258))
    add_tokenizer(tmp_path, sentence_piece(), LLAMA2, bos_token="<s>", eos_token="</s>")
    (tmp_path / "generation_config.json").unlink()
    assert HuggingFaceFolder(tmp_path).special_tokens == LLAMA


@pytest.mark.parametrize("own_template", [False, True])
def test_a_turn_ends_as_the_template_ends_it_and_not_as_a_text_ends(tmp_path: Path, own_template: bool) -> None:
    published(tmp_path / "base", "qwen2")
    base_template = "{{ messages[0].content }}<|endoftext|>" if own_template else TEMPLATE
    add_tokenizer(tmp_path / "base", template=base_template, eos_token="<|endoftext|>")
    (tmp_path / "base" / "generation_config.json").write_text('{"eos_token_id": 256}')
    folder = ModelFolder.create(
        tmp_path / "base",
        tmp_path / "model",
        memory=lambda config: parse_budget("all", config),
        chat_template=TEMPLATE if own_template else "",
    )
    special = folder.tokenizer.special
    assert special == SpecialTokens(bos=256, eos=256, end_of_turn=258, stop=(256, 258))
    assert 258 in folder.checkpoint.special_tokens.stop
    ids, labels = conversation_tokens(
        ChatTemplate(folder.chat_template, folder.tokenizer), [("Who?", "Bero"), ("?", "No")]
    )
    assert ids.count(256) == 0
    assert [token for token in labels if token != IGNORE].count(258) == 2


@pytest.mark.parametrize("template", ["nothing", "{% for m in messages %}{{ m.content + '\n' }}{% endfor %}"])
def test_a_template_that_ends_no_turn_leaves_the_end_of_a_text(template: str) -> None:
    assert end_of_turn(template, Tokenizer.from_json(byte_level(SPECIAL).to_str())) is None


def test_a_named_template_among_several_is_taken(tmp_path: Path) -> None:
    published(tmp_path, "qwen2")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]}'
    )
    assert HuggingFaceFolder(tmp_path).chat_template == "yes"
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert HuggingFaceFolder(tmp_path).chat_template == "beside"


def test_templates_may_use_what_transformers_offers_them() -> None:
    template = (
        "{{ strftime_now('%Y') | length }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ {'b': 'é', 'a': 1} | tojson }}"
        "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}"
        "{% if tools is not none or documents is not none %}these{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}]
    backend = byte_level(SPECIAL)
    chat = ChatTemplate(template, Tokenizer.from_json(backend.to_str()))
    ours = chat.tokenizer.decode(chat.prompt(messages).ids)
    theirs = tf.PreTrainedTokenizerFast(tokenizer_object=backend)
    theirs.chat_template = template
    assert ours == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours == '4hi{"b": "é", "a": 1}{"a":1,"b":"\\u00e9"}'
