"""Nothing is dropped silently: a report has what was read, what was skipped and why, and what was assumed."""

import os
from pathlib import Path

import pytest

from memory3 import formats
from memory3.formats import KINDS, Report, find_sources, libraries, read_documents
from memory3.formats.report import LEFT
from testing.programs import ROOT


def test_every_file_of_a_folder_is_read_or_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nstove: Harvia\n---\nText.\n")
    (tmp_path / "b.csv").write_text("name;room\nIda;4\nBo;5\n")
    (tmp_path / "old.txt").write_bytes("Straße: 5".encode("cp1252"))
    (tmp_path / "blank.txt").write_text("  \n")
    (tmp_path / "empty.md").touch()
    (tmp_path / "photo.raw").write_bytes(b"\0\1\2\3")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".env").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    report = Report()
    documents = [one for source in find_sources([tmp_path], report) for one in read_documents(source, report=report)]
    assert len(documents) == 5
    assert report.lines() == [
        "read: 1 CSV (2 documents), 1 Markdown, 1 text",
        f"skipped 2 hidden: {tmp_path}/.git, {tmp_path}/sub/.env",
        f"skipped 1 empty: {tmp_path}/empty.md",
        f"skipped 2 no regular file: {tmp_path}/gone (a broken link), {tmp_path}/pipe",
        f"skipped 1 of an unsupported kind: {tmp_path}/photo.raw",
        f"skipped 1 unreadable: {tmp_path}/blank.txt (it has no text)",
        f"{tmp_path}/a.md: front matter became metadata and text: stove",
        f"{tmp_path}/b.csv: cells are separated by ';'",
        f"{tmp_path}/old.txt: read as cp1252, which was detected",
    ]


def test_a_long_list_of_names_is_cut_and_counted() -> None:
    report = Report()
    for number in range(40):
        report.skip(f"f{number}", "hidden")
    assert report.lines() == [f"skipped 40 hidden: {', '.join(f'f{n}' for n in range(12))} and 28 more"]


def test_a_file_that_is_too_large_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("12345")
    (tmp_path / "b.txt").write_text("1")
    monkeypatch.setattr(formats, "LARGEST_BYTES", 4)
    report = Report()
    assert find_sources([tmp_path], report) == [tmp_path / "b.txt"]
    assert [skipped.reason for skipped in report.skipped] == ["too large"]


def test_a_missing_library_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(libraries.importlib, "import_module", missing)
    for suffix, package in ((".pdf", "pypdf"), (".docx", "kreuzberg"), (".html", "selectolax"), (".png", "PIL")):
        (tmp_path / f"a{suffix}").write_bytes(b"x")
        (document,) = read_documents(tmp_path / f"a{suffix}")
        assert package.lower() in document.unreadable.lower()
        assert "pip install" in document.unreadable


def supported_formats() -> str:
    """The table of the guide, of the readers' own."""
    rows = ["| kind | suffixes | documents | needs |", "|---|---|---|---|"]
    for kind in KINDS:
        few = " ".join(f"`{suffix}`" for suffix in kind.suffixes[:12])
        more = " and others" if len(kind.suffixes) > 12 else ""
        rows.append(f"| {kind.name} | {few}{more} | {kind.documents} | {f'`{kind.extra}`' if kind.extra else ''} |")
    return "\n".join(rows)


def test_the_guide_has_the_table_of_the_readers() -> None:
    assert supported_formats() in (ROOT / "docs" / "ingestion-guide.md").read_text()


def test_what_programs_leave_beside_a_file_is_read_only_if_it_is_named(tmp_path: Path) -> None:
    left = ["note.md~", "note.md.bak", "#note.md#", "plan.TMP", "list.csv.crdownload", "~$plan.docx"]
    for name in ("note.md", *left):
        (tmp_path / name).write_text("The stove is green.\n")
    (tmp_path / "talks.old").mkdir()
    (tmp_path / "talks.old" / "first.md").write_text("The boat is red.\n")
    report = Report()
    found = find_sources([tmp_path], report)
    assert [source.name for source in found] == ["note.md", "first.md"]
    assert {(one.name, one.reason) for one in report.skipped} == {(str(tmp_path / name), LEFT) for name in left}
    assert find_sources([tmp_path / "note.md~"]) == [tmp_path / "note.md~"]
