"""GGUF files in the converter's layout give transformers' logits and tokens; what is damaged or unknown is refused."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from memory3.config import RopeScaling, parse_budget
from memory3.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile
from memory3.text.tokenizer import Tokenizer as LanguageTokenizer
from memory_model.models.folder import ModelFolder
from memory_model.models.gguf import GgufFile
from memory_model.models.gguf import tokenizer as rebuilding
from memory_model.models.gguf.shape import llama3_scaling
from memory_model.models.load import load_model, model_id_of
from tests.edge_client.tiny_bundle import byte_level
from tests.memory_model.models.gguf_files import HARD, transformers_own, write_gguf
from tests.memory_model.models.published import ARCHITECTURES, SPECIAL, TEXT, published, sentence_piece


def logits_of(path: Path, out: Path, ids: list[int]) -> np.ndarray:
    made = ModelFolder.create(path, out, memory=lambda config: parse_budget("all", config, 32))
    model = load_model(made).model
    with torch.inference_mode():
        return np.asarray(model.head(model.hidden(torch.tensor([ids]), torch.arange(len(ids))[None]))[0].numpy())


def theirs(model: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(model(input_ids=torch.tensor([ids])).logits[0].float().numpy())


IDS = byte_level(SPECIAL).encode(TEXT).ids


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases") / "Tiny"
    published(folder, "llama-3")
    return folder


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_gguf_of_every_architecture_has_transformers_logits(tmp_path: Path, name: str) -> None:
    model = published(tmp_path / "hf", name)
    ours = logits_of(write_gguf(tmp_path / "hf", tmp_path / "m.gguf"), tmp_path / "model", IDS)
    np.testing.assert_allclose(ours, theirs(model, IDS), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0}, 2.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, None),
    ],
)
def test_a_factor_without_a_type_scales_linearly_as_in_llama_cpp(
    tmp_path: Path, fields: dict[str, float | str], factor: float | None
) -> None:
    published(tmp_path / "hf", "llama-2")
    named = {f"llama.{key}": value for key, value in fields.items()}
    scaling = GgufFile(write_gguf(tmp_path / "hf", tmp_path / "m.gguf", fields=named)).config("x").rope_scaling
    assert scaling == (RopeScaling("linear", factor) if factor else None)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_quantised_matrices_stay_near_the_plain_ones(tmp_path: Path, kind: str) -> None:
    model = published(tmp_path / "hf", "llama-3")
    path = write_gguf(tmp_path / "hf", tmp_path / "m.gguf", kind=GGMLQuantizationType[kind])
    expected = theirs(model, IDS)
    assert abs(logits_of(path, tmp_path / "model", IDS) - expected).max() < 0.05 * abs(expected).max()


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_model_that_only_writes_reads_rows_of_the_embedding_when_they_are_used(
    base: Path, tmp_path: Path, kind: str
) -> None:
    path = write_gguf(base, tmp_path / "m.gguf", kind=GGMLQuantizationType[kind])
    folder = ModelFolder.create(path, tmp_path / "model", memory=lambda config: parse_budget("0.1:8,1.0:8", config))
    whole, part = load_model(folder), load_model(folder, writes_only=True)
    assert part.model.embed_tokens.weight.numel() == 0
    texts = ["Paris is a city.", "Rome"]
    for ours, theirs in zip(part.writer.write(texts), whole.writer.write(texts), strict=True):
        np.testing.assert_array_equal(ours.keys, theirs.keys)
        np.testing.assert_array_equal(ours.values, theirs.values)


def test_a_split_file_is_the_whole_one_whichever_part_is_named(base: Path, tmp_path: Path) -> None:
    whole = GgufFile(write_gguf(base, tmp_path / "whole.gguf"))
    first = write_gguf(base, tmp_path / "cut.gguf", parts=12)
    last = sorted(tmp_path.glob("cut-*.gguf"))[-1]
    for part in (first, last):
        cut = GgufFile(part)
        assert cut.name == "cut"
        assert len(cut.files) > 2
        one, other = whole.weights(), cut.weights()
        assert all(torch.equal(one.read(name), other.read(name)) for name in one.shapes)
    last.unlink()
    with pytest.raises(MissingFile, match=last.name):
        GgufFile(first)
    shutil.copyfile(first, tmp_path / "alone.gguf")
    with pytest.raises(MissingFile, match="keep all parts"):
        GgufFile(tmp_path / "alone.gguf")


def test_a_link_to_a_file_of_another_name_is_a_base(base: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    write_gguf(base, tmp_path / "m.gguf").rename(tmp_path / "blobs" / "0f3a")
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot" / "m.gguf"
    link.symlink_to("../blobs/0f3a")
    made = ModelFolder.create(link, tmp_path / "model", memory=lambda config: parse_budget("paper", config))
    assert made.base == "../snapshot/m.gguf"
    assert ModelFolder.open(made.path).checkpoint.name == "m"


def test_the_finer_copy_of_a_tied_table_is_taken(tmp_path: Path) -> None:
    published(tmp_path / "hf", "qwen2")
    coarse, fine = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
    both = GgufFile(write_gguf(tmp_path / "hf", tmp_path / "a.gguf", kind=coarse, output_kind=fine))
    plain = GgufFile(write_gguf(tmp_path / "hf", tmp_path / "b.gguf", kind=fine))
    assert both.config("x").tied_embeddings
    name = "embed_tokens.weight"
    assert torch.equal(both.weights().read(name), plain.weights().read(name))


def test_large_files_are_read_as_bfloat16(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GgufFile(write_gguf(base, tmp_path / "m.gguf"))
    wide = file.weights().read("norm.weight")
    monkeypatch.setattr("memory_model.models.tensor_files.FLOAT32_BYTES", 1000)
    narrow = file.weights().read("norm.weight")
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, wide.bfloat16())


@pytest.mark.parametrize(("factor", "low", "high", "original"), [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192)])
def test_llama_3_divisors_give_the_published_scaling(factor: float, low: float, high: float, original: int) -> None:
    plain = 1.0 / 500000.0 ** (np.arange(0, 128, 2) / 128)
    scaling = RopeScaling("llama3", factor, low, high, original)
    assert llama3_scaling(plain, plain / scaling.stretched(plain)) == scaling
    with pytest.raises(InvalidInput, match="rope_freqs"):
        llama3_scaling(plain, np.linspace(1, 7, 64) ** 2)


PATTERNS = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "tekken": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
"""As the tokenizer.json of Qwen2.5, Llama 3 and Mistral Nemo spell them."""


def trained(pre: str) -> Tokenizer:
    """A byte-level BPE with merges, whose texts are composed and cut as published models of this pre-tokenizer are."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in PATTERNS)
    before: list[pre_tokenizers.PreTokenizer] = []
    if pre in PATTERNS:
        before = [pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")]
    elif pre == "smollm":
        before = [pre_tokenizers.Digits(individual_digits=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, plain])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator([*HARD, TEXT] * 3, trainer)
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", *PATTERNS])
def test_a_byte_level_tokenizer_is_rebuilt(tmp_path: Path, pre: str) -> None:
    tokenizer = trained(pre)
    published(tmp_path / "hf", "llama-2", vocab_size=tokenizer.get_vocab_size())
    rebuilt = Tokenizer.from_str(
        GgufFile(write_gguf(tmp_path / "hf", tmp_path / "m.gguf", tokenizer=tokenizer, pre=pre)).tokenizer_json
    )
    for text in HARD:
        assert rebuilt.encode(text).ids == tokenizer.encode(text).ids, text
        assert rebuilt.decode(rebuilt.encode(text).ids) == tokenizer.decode(tokenizer.encode(text).ids)


@pytest.mark.parametrize(("name", "pre"), [("qwen2", "qwen2"), ("llama-2", "llama-bpe")])
def test_a_byte_level_tokenizer_is_transformers_own(tmp_path: Path, name: str, pre: str) -> None:
    tokenizer = trained(pre)
    published(tmp_path / "hf", name, vocab_size=tokenizer.get_vocab_size())
    path = write_gguf(tmp_path / "hf", tmp_path / "m.gguf", tokenizer=tokenizer, pre=pre)
    other = transformers_own(path)
    rebuilt = Tokenizer.from_str(GgufFile(path).tokenizer_json)
    for text in HARD:
        assert rebuilt.encode(text).ids == other(text, add_special_tokens=False)["input_ids"], text


@pytest.mark.parametrize(("pre", "same"), [("qwen2", True), ("deepseek-r1-qwen", True), ("llama-bpe", False)])
def test_an_accent_apart_is_a_letter_of_its_own_but_for_qwen(base: Path, tmp_path: Path, pre: str, same: bool) -> None:
    file = GgufFile(write_gguf(base, tmp_path / "m.gguf", pre=pre))
    tokenizer = LanguageTokenizer.from_json(file.tokenizer_json, file.special_tokens)
    apart, composed = "Cafe\u0301 Olm", "Caf\u00e9 Olm"
    assert (tokenizer.encode(apart) == tokenizer.encode(composed)) == same
    offsets = tokenizer.offsets(apart)
    assert apart[: offsets[-1][1]] == apart, "offsets count the characters of the text that was given"


def test_a_tokenizer_that_is_rebuilt_otherwise_makes_another_model(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(base, tmp_path / "m.gguf", pre="qwen2")
    made = ModelFolder.create(path, tmp_path / "model", memory=lambda config: parse_budget("paper", config))
    cutting = rebuilding._PRE_TOKENIZERS["qwen2"]
    ids = []
    for composed in (True, False):
        monkeypatch.setitem(rebuilding._PRE_TOKENIZERS, "qwen2", replace(cutting, composed=composed))
        folder = ModelFolder.open(made.path)
        ids.append(model_id_of(folder, folder.config(), folder.adapter))
    assert ids[0] != ids[1], "what was written before is refused"


def with_merges() -> Tokenizer:
    """SentencePiece with some longer pieces."""
    data = json.loads(sentence_piece().to_str())
    vocabulary = data["model"]["vocab"]
    for left, right in (("i", "s"), ("▁", "is"), ("q", "u"), ("e", "r"), ("▁", "a"), ("i", "n"), ("▁", "▁")):
        vocabulary.setdefault(left + right, len(vocabulary))
        data["model"]["merges"].append([left, right])
    return Tokenizer.from_str(json.dumps(data))


def test_a_sentence_piece_tokenizer_is_rebuilt_from_scores(tmp_path: Path) -> None:
    tokenizer = with_merges()
    published(tmp_path / "hf", "llama-2", vocab_size=tokenizer.get_vocab_size())
    file = GgufFile(write_gguf(tmp_path / "hf", tmp_path / "m.gguf", tokenizer=tokenizer))
    rebuilt = Tokenizer.from_str(file.tokenizer_json)
    for text in [*HARD, "<s>a b</s> c", "is  this   it"]:
        assert rebuilt.encode(text).ids == tokenizer.encode(text).ids, text
        assert rebuilt.decode(rebuilt.encode(text).ids) == tokenizer.decode(tokenizer.encode(text).ids)
    assert (file.special_tokens.bos, file.special_tokens.eos) == (1, 2)


def rename(old: bytes, new: bytes) -> Callable[[Path], None]:
    """Replace bytes of the same length."""

    def change(path: Path) -> None:
        assert len(old) == len(new)
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))

    return change


def cut_at(share: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return change


@pytest.mark.parametrize(
    ("harm", "kind", "named"),
    [
        (cut_at(0.9), CorruptFile, "truncated"),
        (cut_at(0.01), CorruptFile, "m.gguf"),
        (rename(b"GGUF", b"GGML"), CorruptFile, "not a GGUF file"),
        (rename(b"gpt-2", b"qwen9"), InvalidInput, "qwen9"),
        (rename(b"blk.2.attn_q", b"blk.9.attn_q"), CorruptFile, "layers.2.self_attn.q_proj"),
        (rename(b"rope_freqs.weight", b"rope_other.weight"), InvalidInput, "rope_other"),
        (rename(b"token_embd.weight", b"token_embx.weight"), CorruptFile, "token_embd"),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_is_written(
    base: Path, tmp_path: Path, harm: Callable[[Path], None], kind: type[Memory3Error], named: str
) -> None:
    path = write_gguf(base, tmp_path / "m.gguf")
    harm(path)
    with pytest.raises(kind, match=named):
        logits_of(path, tmp_path / "model", IDS)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"llama.expert_count": 8}, "mixture of 8 experts"),
        ({"general.type": "mmproj"}, "vision or audio"),
        ({"general.type": "adapter"}, "whole model"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.rope.dimension_count": 8}, "all rotated"),
    ],
)
def test_what_the_decoder_cannot_compute_is_refused_by_name(
    tmp_path: Path, fields: dict[str, float | str], named: str
) -> None:
    published(tmp_path / "hf", "llama-2")
    path = write_gguf(tmp_path / "hf", tmp_path / "m.gguf", fields=fields)
    with pytest.raises(InvalidInput, match=named):
        logits_of(path, tmp_path / "model", IDS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.head_count", "six"),
        ("llama.block_count", 1.5),
        ("llama.attention.layer_norm_rms_epsilon", "small"),
        ("llama.rope.scaling.factor", [None]),
        ("llama.feed_forward_length", []),
        ("tokenizer.ggml.tokens", 1),
        ("tokenizer.ggml.merges", [1, 2]),
        ("tokenizer.ggml.pre", [1]),
        ("tokenizer.ggml.token_type", -1),
        ("tokenizer.ggml.bos_token_id", "x"),
        ("tokenizer.ggml.eos_token_id", -1),
    ],
)
def test_metadata_of_another_kind_is_refused(base: Path, tmp_path: Path, key: str, value: Any) -> None:
    file = GgufFile(write_gguf(base, tmp_path / "m.gguf"))
    file._header.fields[key] = value
    with pytest.raises(CorruptFile, match=re.escape(str(file.path))):
        _ = file.config("x"), file.special_tokens


def test_a_vision_part_or_another_tokenizer_is_refused(base: Path, tmp_path: Path) -> None:
    seen = write_gguf(base, tmp_path / "v.gguf", extra={"v.patch_embd.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(InvalidInput, match="vision or audio"):
        GgufFile(seen).config("x")
    published(tmp_path / "small", "llama-2", vocab_size=100)
    with pytest.raises(InvalidInput, match="100 rows"):
        GgufFile(write_gguf(tmp_path / "small", tmp_path / "s.gguf")).config("x")
