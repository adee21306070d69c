"""Files that cannot be read: each fails alone, and says what it is and what to do."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory3 import formats
from memory3.formats import FileDocument, Kind, read_documents


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
