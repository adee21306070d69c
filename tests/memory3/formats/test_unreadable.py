"""Files that cannot be read: each fails alone, and says what it is and what to do."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory3 import formats
from memory3.formats import FileDocument, Kind, read_documents
from tests.memory3.formats import office_files
from tests.memory3.formats.office_files import TABLE


def test_a_broken_file_fails_and_says_what_it_is_not(tmp_path: Path) -> None:
    for name in ("a.docx", "a.xlsx", "a.pptx", "a.odt", "a.epub"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 cut")
        (document,) = read_documents(tmp_path / name)
        assert document.unreadable
    (tmp_path / "empty.docx").write_bytes(b"")
    (document,) = read_documents(tmp_path / "empty.docx")
    assert document.unreadable


def test_a_file_that_the_converter_panics_at_fails_alone(tmp_path: Path) -> None:
    (document,) = read_documents(office_files.write_xlsb(tmp_path / "a.xlsb", TABLE, sheet="rId9"))
    assert "no readable XLSB file" in document.unreadable


def test_a_file_that_unpacks_to_too_much_is_refused_and_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory3.formats.document.LARGEST_UNPACKED_BYTES", 4 << 20)
    for file in (
        office_files.write_docx(tmp_path / "a.docx", "Text."),
        office_files.write_odt(tmp_path / "a.odt", "T", "P", [("a",)]),
        office_files.write_epub(tmp_path / "a.epub", "T", "<p>Text.</p>"),
    ):
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/more.xml", b" " * (5 << 20))
        (document,) = read_documents(file)
        assert "unpacks to 5 MiB, at most 4 are read" in document.unreadable


def test_whatever_a_reader_raises_only_its_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Path) -> Iterator[FileDocument]:
        yield FileDocument(str(source), str(source), "a", "first")
        raise ZeroDivisionError("by a damaged table")

    kind = Kind("test", (".odd",), broken, "one")
    monkeypatch.setattr(formats, "kind_of", lambda source: kind)
    first, second = read_documents(tmp_path / "a.odd")
    assert first.text == "first"
    assert second.unreadable.startswith("it is no readable test: ")
    assert second.unreadable.endswith(" (ZeroDivisionError: by a damaged table)")


BROKEN = (
    ".docx",
    ".xlsx",
    ".pptx",
    ".odt",
    ".odp",
    ".doc",
    ".xls",
    ".ppt",
    ".epub",
    ".pdf",
    ".msg",
    ".parquet",
    ".fb2",
    ".ipynb",
)
COMPOUND = bytes.fromhex("d0cf11e0a1b11ae1")


@pytest.mark.parametrize("suffix", BROKEN)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x93\x01 damaged", "it is damaged, or of another kind: copy it again, or save it anew with the program"),
        (
            COMPOUND + "EncryptedPackage".encode("utf-16-le") + bytes(600),
            "it is encrypted: store it without a password",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_what_to_do_before_what_its_reader_said(
    tmp_path: Path, suffix: str, content: bytes, says: str
) -> None:
    (tmp_path / f"a{suffix}").write_bytes(content)
    (document,) = read_documents(tmp_path / f"a{suffix}")
    what, _, advice = document.unreadable.partition(": ")
    assert (what.startswith("it is no readable"), advice[: len(says)]) == (True, says)
    assert advice.endswith(")"), "the words of the reader"


def test_an_encrypted_opendocument_file_and_a_web_page_under_a_wrong_name_say_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.odt", "w") as archive:
        archive.writestr("content.xml", b"\x93\x01")
        archive.writestr("META-INF/manifest.xml", "<manifest:encryption-data/>")
    (tmp_path / "a.pdf").write_text("<!DOCTYPE html><title>Sign in</title>")
    said = [next(iter(read_documents(tmp_path / name))).unreadable for name in ("a.odt", "a.pdf")]
    assert "it is encrypted" in said[0]
    assert "it is a web page" in said[1]
