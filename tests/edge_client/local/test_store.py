"""The user's store: each model has its knowledge bases, an older store stays its model's, and nothing is lost."""

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edge_client.local.database import connected
from edge_client.local.folder import LocalKnowledgeBases
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.store import LocalStore
from edge_client.model import EdgeModel
from edge_client.settings import EdgeSettings, user_folder
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from tests.edge_client.cli.conftest import run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which nothing names."""
    monkeypatch.delenv("EDGE_CLIENT_LOCAL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return user_folder()


@pytest.fixture
def remember(tmp_path: Path) -> Callable[..., str]:
    def remembered(bundle: Bundle, name: str, text: str, *options: object) -> str:
        file = tmp_path / name
        file.write_text(text)
        result = run("remember", file, "--name", name, "--bundle", bundle.folder, *options)
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    return remembered


def read(bundle: Bundle) -> dict[str, str]:
    """Text of what a question reads, by document."""
    asked = run("ask", "Where?", "--bundle", bundle.folder, "--max-tokens", 1, "--offline", "--json")
    assert asked.exit_code == 0, asked.output
    chunks = json.loads(asked.stdout)["memories"]
    return {hit["document_key"]: hit["text"].partition("\n")[2] for chunk in chunks for hit in chunk["read"]}


def listed() -> list[str]:
    return [line.rpartition(" MB, ")[2] for line in run("remembered").stdout.splitlines()]


def test_each_model_has_its_own_and_switching_loses_nothing(
    tiny: Bundle, other: Bundle, store: Path, remember: Callable[..., str]
) -> None:
    remember(tiny, "a", "Of one.")
    remember(other, "b", "Of two.")
    for _ in range(2):
        assert (read(tiny), read(other)) == ({"a": "Of one."}, {"b": "Of two."})
    folders = sorted(path.name for path in store.iterdir())
    assert [(name.rpartition("-")[0], len(name)) for name in folders] == [("tiny", 17)] * 2
    assert {path.stat().st_mode & 0o777 for path in (store, *store.iterdir())} == {0o700}
    assert sorted(listed()) == [f"model {name}" for name in folders], "as the folders are called"
    shown = run("remembered", "--kb", "mine").stdout
    assert all(part in shown for part in (*(f"model {name}:" for name in folders), "1  a", "1  b"))
    checked = run("doctor", "--bundle", tiny.folder, "--service", "127.0.0.1:1").stdout
    own = LocalStore(store, by_model=True).folder_of(tiny.manifest).name
    (others,) = {*folders} - {own}
    assert f"on this device: mine: 1 document, model {own}, read by this bundle" in checked
    assert f"on this device: mine: 1 document, model {others}, not read by this bundle" in checked


def test_a_running_program_sees_the_models_first_knowledge_base(
    tiny: Bundle, other: Bundle, store: Path, remember: Callable[..., str]
) -> None:
    bases = LocalKnowledgeBases(LocalStore(store, by_model=True), tiny)
    assert bases.documents() == {}
    remember(other, "b", "Of two.")
    remember(tiny, "a", "Of one.")
    assert {name: [one.key for one in each] for name, each in bases.documents().items()} == {"mine": ["a"]}
    bases.close()


def test_an_older_store_is_found_and_stays_its_models(
    tiny: Bundle, other: Bundle, store: Path, remember: Callable[..., str]
) -> None:
    remember(tiny, "a", "Of one.", "--local", store)
    before = store / "mine.memories"
    assert before.is_file()
    assert read(tiny) == {"a": "Of one."}
    remember(tiny, "c", "More.")
    assert read(other) == {}
    remember(other, "b", "Of two.")
    assert (read(tiny), read(other)) == ({"a": "Of one.", "c": "More."}, {"b": "Of two."})
    assert [path for path in LocalStore(store, by_model=True).files() if path.parent == store] == [before]
    others = LocalStore(store, by_model=True).folder_of(other.manifest).name
    assert listed() == ["model id 000000000000", f"model {others}"]


def test_what_only_another_model_has_is_named_and_written_for_this_one_too(
    tiny: Bundle, other: Bundle, store: Path, remember: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    remember(tiny, "a", "Of one.")
    remember(tiny, "b", "Old.")
    assert read(other) == {}
    assert (
        f"'mine' of model {LocalStore(store, by_model=True).folder_of(tiny.manifest).name} is not read" in caplog.text
    )
    remember(other, "b", "New.")
    caplog.clear()
    assert "1 stored" in run("remember", "--anew", "--bundle", other.folder).stdout
    assert read(other) == {"a": "Of one.", "b": "New."}
    assert read(tiny) == {"a": "Of one.", "b": "Old."}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_is_written_for_another_model_keeps_the_note_of_a_file_that_broke_off(
    tiny: Bundle, other: Bundle, store: Path, remember: Callable[..., str]
) -> None:
    remember(tiny, "a", "Of one.")
    kept = LocalStore(store, by_model=True)
    with closing(LocalKnowledgeBase.any(kept.path("mine", tiny.manifest))) as base:
        base.begin("table.csv")
    assert "1 stored" in run("remember", "--anew", "--bundle", other.folder).stdout
    with closing(LocalKnowledgeBase.any(kept.path("mine", other.manifest))) as base:
        assert [(one.key, one.partial) for one in base.documents()] == [("a", False), ("table.csv", True)]
        base.finish("table.csv")
        assert [one.key for one in base.documents()] == ["a"]


def test_a_document_is_forgotten_in_the_knowledge_bases_of_all_models(
    tiny: Bundle, other: Bundle, store: Path, remember: Callable[..., str]
) -> None:
    for bundle in (tiny, other):
        remember(bundle, "a", "Secret.")
        remember(bundle, "b", "Text.")
    assert run("forget", "a").stdout == "forgot a\n"
    assert (read(tiny), read(other)) == ({"b": "Text."}, {"b": "Text."})
    assert run("forget", "a").exit_code == 1
    with EdgeModel.open(tiny.folder, offline=True) as model:
        assert model.forget("b")
        assert not model.forget("b")
    assert (read(tiny), read(other)) == ({}, {})
    assert run("forget", "--all", "--yes").exit_code == 0
    assert (LocalStore(store, by_model=True).files(), listed()) == ([], [])


def test_a_folder_that_was_named_is_of_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EdgeSettings(local=tmp_path).store == LocalStore(tmp_path)
    monkeypatch.setenv("EDGE_CLIENT_LOCAL", str(tmp_path))
    assert EdgeSettings().store == LocalStore(tmp_path)
    monkeypatch.delenv("EDGE_CLIENT_LOCAL")
    assert EdgeSettings().store == LocalStore(user_folder(), by_model=True)
    with pytest.raises(InvalidInput, match="cannot be called"):
        LocalStore(tmp_path).path("../x", None)


def test_a_damaged_knowledge_base_hides_no_other(
    tiny: Bundle, store: Path, remember: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    remember(tiny, "safe", "The safe is open.", "--kb", "one")
    remember(tiny, "key", "The key is below the mat.", "--kb", "two")
    (damaged,) = LocalStore(store, by_model=True).named("one")
    with closing(connected(damaged)) as file:
        file.execute("UPDATE refs SET text = text || '!'")
    assert read(tiny) == {"key": "The key is below the mat."}
    assert "is damaged" in caplog.text


def test_a_damaged_knowledge_base_is_read_once_it_is_replaced(
    tiny: Bundle, store: Path, remember: Callable[..., str]
) -> None:
    remember(tiny, "safe", "The safe is open.", "--kb", "one")
    (kept,) = LocalStore(store, by_model=True).named("one")
    with closing(LocalKnowledgeBase.any(kept)) as base:
        whole = base.content()
    copy = kept.with_name("copy.memories")
    with closing(LocalKnowledgeBases(LocalStore(store, by_model=True), tiny)) as bases:
        copy.write_bytes(b"damaged" * 1000)
        assert [*bases.documents()] == ["one"]
        copy.write_bytes(whole)  # the same inode
        assert sorted(bases.documents()) == ["copy", "one"]
