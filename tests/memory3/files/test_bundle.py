"""A bundle is whole or it is refused, and the refusal names the file."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory3.codec.codec import ExactCodec
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, IdentityMismatch, InvalidInput, MissingFile
from memory3.files.bundle import MANIFEST, REQUIRED, Bundle, Manifest, staging_folder, write_bundle
from memory_model.export.bundle import export_bundle
from tests.edge_client.tiny_bundle import edit_manifest, tiny_bundle, tiny_config, tiny_loaded


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
