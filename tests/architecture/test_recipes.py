"""The recipes of CONTRIBUTING, followed with a toy: the rows that it names are enough."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory3 import formats
from memory3.errors import InvalidInput
from memory3.formats import FileDocument, Kind, find_sources, read_documents
from memory_model.defaults import ASSETS, PACKAGED, TINY
from memory_model.models import architectures, folder
from memory_model.models.folder import ModelFolder
from memory_service.stores import address, opening
from memory_service.stores.local.store import LocalStore
from testing.programs import ROOT
from tests.memory_service.stored import document, keys_near, opened, require_whole

RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("Add a store", ["_FOLDERS", "_SERVERS", "STORES", "test_store_conformance.py"]),
        ("Add an architecture", ["ARCHITECTURES", "memory_model/models/architectures.py", "nn/serving.py"]),
        ("Add a format", ["memory3/formats/", "formats/__init__.py"]),
        ("Change the default model", ["PACKAGED", "memory_model/defaults.py", "memory_model/recipes/"]),
    ],
)
def test_a_recipe_names_the_files_and_tables_that_the_toys_use(recipe: str, names: list[str]) -> None:
    section = RECIPES.partition(f"## {recipe}\n")[2].partition("\n## ")[0]
    assert [name for name in names if name not in section] == []


def test_a_store_is_a_class_a_scheme_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ToyStore(LocalStore):
        """A store of one's own."""

    with pytest.raises(InvalidInput, match="store address"):
        opening.open_store(f"toy://{tmp_path}/store")
    monkeypatch.setattr(address, "_FOLDERS", (*address._FOLDERS, "toy"))
    monkeypatch.setitem(opening.STORES, "toy", lambda where, _: ToyStore(where.path))
    with opened("toy", tmp_path) as made:
        assert isinstance(made.store, ToyStore)
        base = made.new_base()
        made.store.write(base, [document("d", "a reference")])
        assert keys_near(made.store, base, "a reference") == ["d"]
        require_whole(made.store, base)


def test_an_architecture_is_a_row_where_no_operation_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "model_type": "toy",
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 320,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
    }
    with pytest.raises(InvalidInput, match="architecture 'toy' is not supported"):
        architectures.config_of(config, "base")
    monkeypatch.setattr(architectures, "ARCHITECTURES", (*architectures.ARCHITECTURES, "toy"))
    assert architectures.config_of(config, "base") == architectures.config_of({**config, "model_type": "llama"}, "base")


def test_a_format_is_a_reader_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_toy(path: Path) -> Iterator[FileDocument]:
        yield FileDocument(str(path), str(path), text=path.read_text().rstrip("\0"))

    (tmp_path / "note.toy").write_bytes(b"A note.\0")
    with pytest.raises(InvalidInput, match="has no file in it"):
        find_sources([tmp_path])
    monkeypatch.setitem(formats._OF_SUFFIX, ".toy", Kind("toy", (".toy",), read_toy, "one"))
    (found,) = [found for source in find_sources([tmp_path]) for found in read_documents(source)]
    assert found.text == "A note."


def test_the_default_model_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = json.loads((ASSETS / TINY / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**packaged, "name": "another"}))
    monkeypatch.setattr(folder, "DEFAULT", tmp_path)
    assert ModelFolder.open().name == "another"
    code = (
        "*.py",
        "*.toml",
        "*.sh",
        "Makefile",
        "deploy/*",
        ":!tests",
        ":!testing",
        f":!memory_model/recipes/{PACKAGED}.sh",
    )
    command = ["git", "grep", "-l", "-e", f"[\"'/]{PACKAGED}", "--", *code]
    named = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert named == ["memory_model/defaults.py"]
