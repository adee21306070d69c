"""What an embedder does with any text, and which folders it refuses. Parity: export/test_embedder.py."""

import json
import math
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory3.codec.codec import ExactCodec
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, IdentityMismatch, InvalidInput, MissingFile
from memory3.files.bundle import MANIFEST, REQUIRED, Bundle, Manifest, staging_folder, write_bundle
from memory3.runtime.embedder import Embedder
from memory3.text.tokenizer import SpecialTokens
from memory3.text.words import QueryWords, lexical_scores, query_words, ranked, text_words
from memory_model.export.bundle import export_bundle
from memory_model.export.embedder import export_embedder
from tests.edge_client.tiny_bundle import edit_manifest, tiny_bert, tiny_bundle, tiny_config, tiny_loaded

TEXTS = ["The capital of Norway is Oslo.", "x", "", "a longer text, " * 3, "Grüße 🎉", "Oslo"]


def test_minilm_ranks_the_right_sentence_first(tmp_path: Path) -> None:
    export_embedder("minilm", tmp_path)
    embedder = Embedder(tmp_path)
    asked, *texts = ("Which city is the capital of Norway?", "Oslo is Norway's capital.", "Iron melts at 1538 °C.")
    question, *references = embedder.embed([asked, *texts])
    assert embedder.dim == 384
    assert np.argmax(references @ question) == 0


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    folder = tmp_path_factory.mktemp("tiny")
    export_embedder(tiny_bert(folder / "bert"), folder / "out")
    return Embedder(folder / "out")


def test_a_text_has_the_same_vector_in_any_company(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS)
    alone = np.concatenate([embedder.embed([t]) for t in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert embedder.embed([]).shape == (0, 16)


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_text_has_a_finite_vector_of_unit_length(embedder: Embedder, texts: list[str]) -> None:
    vectors = embedder.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(len(texts)), atol=1e-5)


def test_lone_surrogates_and_huge_texts_are_embedded(embedder: Embedder) -> None:
    assert np.isfinite(embedder.embed(["\ud800 x", "word " * 1_000_000])).all()


@pytest.mark.parametrize("texts", ["a text", [1], [None], [b"bytes"]])
def test_what_is_no_list_of_texts_is_refused(embedder: Embedder, texts: object) -> None:
    with pytest.raises(InvalidInput):
        embedder.embed(texts)  # type: ignore[arg-type]


def test_missing_and_damaged_files_are_named(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="memory-model export"):
        Embedder(tmp_path / "nowhere")
    for name in ("embedder.onnx", "embedder_tokenizer.json", "embedder.json"):
        folder = Path(shutil.copytree(embedder.folder, tmp_path / name))
        (folder / name).write_bytes((folder / name).read_bytes()[:50])
        with pytest.raises(CorruptFile, match=name):
            Embedder(folder)
        (folder / name).unlink()
        with pytest.raises(MissingFile, match=name):
            Embedder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedder_id": "00" * 32}, "of another embedder"),
        ({"dim": 8}, "vectors of 8 as in embedder.json"),
        ({"pooling": "max"}, "pooling must be"),
        ({"normalize": True}, "export the embedder again"),
    ],
)
def test_another_config_is_refused(embedder: Embedder, tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = Path(shutil.copytree(embedder.folder, tmp_path / "copy"))
    config = json.loads((folder / "embedder.json").read_text())
    (folder / "embedder.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CorruptFile, match=message):
        Embedder(folder)


# A bundle is whole or it is refused, and the refusal names the file.

SPECIAL = SpecialTokens(256, 257, 257)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def folder(made: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "bundle"))


def test_an_exported_bundle_opens_and_gives_what_it_says(made: Bundle) -> None:
    opened = Bundle.open(made.folder)
    assert opened.manifest == made.manifest
    assert opened.config == tiny_config()
    assert opened.identity == opened.memory_format.identity
    assert opened.embedder().embedder_id == opened.manifest.embedder_id
    assert opened.embedder().embed(["a"]).shape == (1, 16)
    assert opened.tokenizer.decode(opened.tokenizer.encode("Grüße")) == "Grüße"
    assert set(REQUIRED) <= set(opened.manifest.files)
    assert opened.manifest.licence == "Apache-2.0"


@pytest.mark.parametrize("name", [*REQUIRED, "decoder.onnx.data"])
def test_a_changed_short_or_missing_file_is_named(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for damaged in (bytes(changed), whole[:-1]):
        (folder / name).write_bytes(damaged)
        with pytest.raises(CorruptFile, match=name):
            Bundle.open(folder)
    (folder / name).unlink()
    with pytest.raises(CorruptFile, match=f"{name} is missing"):
        Bundle.open(folder)


def test_no_bundle_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="memory-model export"):
        Bundle.open(tmp_path)


def test_a_name_outside_the_folder_is_refused(folder: Path) -> None:
    files = json.loads((folder / MANIFEST).read_text())["files"]
    for name in ("../tokenizer.json", "/etc/hostname", "sub/file", MANIFEST):
        edit_manifest(folder, files={**files, name: files["tokenizer.json"]})
        with pytest.raises(CorruptFile, match="no plain file name"):
            Bundle.open(folder)


def test_a_manifest_that_lists_too_little_or_contradicts_itself_is_refused(folder: Path) -> None:
    files = json.loads((folder / MANIFEST).read_text())["files"]
    edit_manifest(folder, files={k: v for k, v in files.items() if k != "codec.npz"})
    with pytest.raises(CorruptFile, match=r"does not list codec\.npz"):
        Bundle.open(folder)
    edit_manifest(folder, files=files, format_version=99)
    with pytest.raises(CorruptFile, match="version 99"):
        Bundle.open(folder)


@given(
    st.one_of(
        st.text(max_size=40),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda x: st.lists(x) | st.dictionaries(st.text(max_size=8), x),
        ).map(json.dumps),
    )
)
@settings(max_examples=150, deadline=None)
def test_garbage_is_no_manifest(text: str) -> None:
    with pytest.raises(CorruptFile):
        Manifest.from_json(text)


@pytest.mark.parametrize("name", ["codec", "embedder", "memory format"])
def test_an_id_of_another_bundle_is_refused_by_name_before_weights_are_read(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr("memory3.files.bundle.file_sha256", lambda path: read.append(path) or file_sha256(path))
    edit_manifest(folder, **{f"{name.replace(' ', '_')}_id": "00" * 32})
    with pytest.raises(IdentityMismatch, match=f" {name} .*: (copy or )?export"):
        Bundle.open(folder)
    assert {path.name for path in read} <= {"embedder.json", "codec.npz"}


def test_an_older_bundle_is_replaced_and_nothing_is_left(made: Bundle, tmp_path: Path) -> None:
    codec = tmp_path / "codec.npz"
    ExactCodec(tiny_config().head_dim).save(codec)
    out = tmp_path / "place" / "bundle"
    for seed in (1, 2):
        bert = made.folder.parent / "bert"
        export_bundle(tiny_loaded(seed), out, "float32", codec=codec, embedder=bert, quiet=True)
        assert Bundle.open(out).manifest.model_id == f"{seed:02x}" * 32
    assert [p.name for p in out.parent.iterdir()] == ["bundle"]


def test_an_export_that_fails_leaves_the_old_bundle_and_no_traces(made: Bundle, tmp_path: Path) -> None:
    out = Path(shutil.copytree(made.folder, tmp_path / "bundle"))
    with pytest.raises(MissingFile):
        export_bundle(tiny_loaded(3), out, "float32", codec=tmp_path / "no.npz", quiet=True)
    assert Bundle.open(out).manifest == made.manifest
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path, made: Bundle) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "diary.txt").write_text("keep")
    staging = staging_folder(out)
    for path in made.folder.iterdir():
        shutil.copyfile(path, staging / path.name)
    (staging / MANIFEST).unlink()
    with pytest.raises(InvalidInput, match="not a bundle"):
        write_bundle(out, staging, made.manifest)
    (staging / "decoder.onnx").unlink()
    with pytest.raises(InvalidInput, match=r"needs decoder\.onnx"):
        write_bundle(out, staging, made.manifest)
    assert (out / "diary.txt").read_text() == "keep"


# Words beside vectors: rare shared words decide between near candidates, and nothing else does.


def test_a_word_is_its_lower_case_stem() -> None:
    words = [b"popula", b"popula", b"and", b"popula", b"wide"]
    assert text_words("Populations, POPULATION and population-wide").tolist() == [*map(zlib.crc32, words)]
    assert query_words("b a b") == sorted({zlib.crc32(b"a"), zlib.crc32(b"b")})


@given(st.text(st.characters(max_codepoint=127)))
def test_a_text_of_ascii_has_the_words_that_it_has_before_another_letter(text: str) -> None:
    assert [*text_words(text), zlib.crc32("é".encode())] == text_words(f"{text} É").tolist()


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert set(query_words("東京の人口")) & set(query_words("人口は東京"))
    question, note = query_words("รหัสผ่านอินเทอร์เน็ต"), query_words("ชื่อเครือข่าย รหัสผ่านคือmango2876")
    assert len(set(question) & set(note)) == len("รหัสผ่าน") - 2
    assert {zlib.crc32(b"mango2"), zlib.crc32("คือ".encode())} <= set(note)
    assert query_words("น้") == [zlib.crc32("น้".encode())]


@pytest.mark.parametrize(
    ("written", "elsewhere"),
    [("المخبز", "مخبز"), ("للشبكة", "الشبكه"), ("وَالكِتَابُ", "كتاب"), ("إياد", "اياد"), ("جـــديد", "جديد")],
)
def test_an_arabic_word_is_itself_with_article_vowels_and_other_forms_of_its_letters(
    written: str, elsewhere: str
) -> None:
    assert query_words(written) == query_words(elsewhere)
    assert len(query_words("والد لدى")) == 2


def test_a_document_that_the_query_names_comes_first_and_what_lies_far_below_is_left_out() -> None:
    texts = ["Togo\nAirports: 8", "Benin\nAirports: 6", "Benin\nRailways: 438 km"]
    counts, titles = [text_words(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]
    asked = query_words("How many airports does Benin have?")
    cosines = [0.7, 0.65, 0.6]
    for drop, order in ((None, [1, 2, 0]), (0.1, [1, 2]), (0.0, [1])):
        assert [place for place, _ in ranked(asked, cosines, counts, titles, drop)] == order
    assert ranked([], [], [], [], drop=0.1) == []


def test_a_text_that_speaks_of_the_named_title_is_read_beside_the_document_of_that_title() -> None:
    texts = [
        "Bero\nname: Bero; room: 12; phone: 5513",
        "Printers\nBERO has the address 10.0.0.7 and prints in colour",
        "Printers\nVolta has the address 10.0.0.9 and prints in black",
    ]
    counts, titles = [text_words(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]

    def found(question: str, earlier: tuple[str, ...] = (), best: float = 0.6) -> list[int]:
        words = QueryWords(query_words(question), map(query_words, earlier))
        return [n for n, _ in ranked(words, [best, 0.58, 0.58], counts, titles, 0.12)]

    assert found("What is the address of Bero?") == [0, 1], "the other printer is left out"
    assert found("What is the address of Bero?", best=0.9) == [0, 1], "the titled row has no address"
    assert found("What is the phone of Bero?", best=0.9) == [0], "the titled row has the words"
    assert found("And its address?", ("Which room has Bero?",)) == [0, 1]
    assert found("What is the address of Volta?")[0] == 2, "a name that is no title counts as a word"


def test_the_newest_turn_that_names_a_document_tells_which_one_a_follow_up_is_about() -> None:
    titles = ["Volta 3", "Renko Zed", "Opal City"]
    texts = [f"{title}\nOil change: 60\nWindscreen replacement: 410" for title in titles]
    turns = ["And a tyre change?", "How much is an oil change for the Volta 3?", "What does the Renko Zed cost?"]

    def found(question: str, earlier: list[str], drop: float | None = 0.12) -> list[int]:
        words = QueryWords(query_words(question), map(query_words, earlier))
        counts = [text_words(text) for text in texts]
        return [n for n, _ in ranked(words, [0.65, 0.66, 0.66], counts, [query_words(t) for t in titles], drop)]

    assert found("What about a windscreen replacement?", []) == [1, 2, 0]
    assert found("What about a windscreen replacement?", turns, None) == [0, 1, 2]
    assert found("What about a windscreen replacement?", turns) == [0], "the others are left out"
    assert found("And a windscreen for the Opal City?", turns) == [2], "what is named now counts alone"
    assert found("And the 3?", ["How is the Volta?"])[0] == 0, "a name may be in two turns"


def _by_definition(words: list[int], candidates: list[list[int]]) -> list[float]:
    """BM25 as the textbook has it, a candidate and a word at a time."""
    mean = max(1.0, sum(map(len, candidates)) / len(candidates))
    scores = []
    for candidate in candidates:
        score = 0.0
        for word in set(words):
            holding = sum(word in other for other in candidates)
            rarity = math.log1p((len(candidates) - holding + 0.5) / (holding + 0.5))
            count = candidate.count(word)
            score += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(candidate) / mean))
        scores.append(score)
    return scores


_WORDS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)), max_size=12)


@given(_WORDS, st.lists(_WORDS, min_size=1, max_size=6))
def test_all_candidates_at_once_score_as_one_at_a_time(words: list[int], candidates: list[list[int]]) -> None:
    together = lexical_scores(words, [np.array(c, np.uint32) for c in candidates])
    assert together == pytest.approx(_by_definition(words, candidates))
