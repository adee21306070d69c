"""Encodings: by mark, declaration, pattern and detection; what was assumed is said, and no character is lost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory3.formats import read_documents
from memory3.formats.encoding import decode

GERMAN = "Preis: 80 Euro\nStraße: Mühlweg 3\n"
JAPANESE = "通り: さくら通り 12\n電話: 03-1234\n"
CHINESE = "地址：北京市朝阳区\n电话：8812\n"
RUSSIAN = "Адрес: улица Мира 5\nТелефон: 88\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_says_the_encoding(encoding: str) -> None:
    read = decode((GERMAN + JAPANESE).encode(encoding))
    assert (read.text, read.note) == (GERMAN + JAPANESE, "")


@pytest.mark.parametrize(
    ("text", "encoding", "found"),
    [
        (GERMAN, "cp1252", "cp1252"),
        ("Prix: 5 €\nclé: été\n", "cp1252", "cp1252"),
        ("¿Qué? Calle Peña 5\n", "cp1252", "cp1252"),
        ("Název: Dům u řeky\n", "cp1250", "cp1250"),
        ("Ünvan: Çiçek sokağı, İstanbul\n", "cp1254", "cp1254"),
        (GERMAN, "utf-16-le", "utf-16-le"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "euc_jp", "euc_jp"),
        (CHINESE, "gb18030", "gb18030"),
        ("地址：台北市信義區\n電話：8812\n", "big5", "big5hkscs"),
        ("주소: 서울시 종로구\n", "euc_kr", "cp949"),
        (RUSSIAN, "cp1251", "cp1251"),
        ("Zażółć gęślą jaźń\nUlica: Wąska 4\n", "cp1250", "cp1250"),
        ("名前,部屋\n鈴木,12\n", "shift_jis", "cp932"),
        (JAPANESE, "iso2022_jp", "iso2022_jp"),
        ("Mühlweg 3, Größe\n", "cp437", "cp850"),
        ("Café Zürich, 5 €\n", "mac_roman", "mac_roman"),
        ("Straße: “Mühlweg”\n", "mac_roman", "mac_roman"),
    ],
)
def test_without_a_mark_it_is_detected_and_said(text: str, encoding: str, found: str) -> None:
    read = decode(text.encode(encoding))
    assert (read.text, read.encoding) == (text, found)
    assert found in read.note


def test_a_file_joined_of_two_encodings_keeps_both() -> None:
    read = decode("Grüße aus Köln\n".encode() + "Mühlweg\n".encode("cp1252"))
    assert read.text == "Grüße aus Köln\nMühlweg\n"
    assert "as cp1252" in read.note


@pytest.mark.parametrize(
    ("name", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "Mühlweg 3 – 80 €"),  # as browsers read it
        ("Shift_JIS", "cp932", "東京の天気"),
        ("gb2312", "gb18030", "地址：北京市"),
        ("windows-1251", "cp1251", "улица Мира"),
    ],
)
def test_pages_and_xml_are_read_as_they_declare(name: str, encoding: str, text: str, tmp_path: Path) -> None:
    page, data = tmp_path / "a.html", tmp_path / "a.xml"
    page.write_bytes(f'<html><head><meta charset="{name}"></head><body><p>{text}</p></body></html>'.encode(encoding))
    data.write_bytes(f'<?xml version="1.0" encoding="{name}"?><shop><name>{text}</name></shop>'.encode(encoding))
    (of_page,), (of_data,) = read_documents(page), read_documents(data)
    assert (of_page.text, of_page.notes) == (text, ())
    assert (of_data.text, of_data.notes) == (f"name: {text}", ())


def test_a_wrong_declaration_is_said(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_bytes('<meta charset="utf-8"><p>Mühlweg 3</p>'.encode("cp1252"))
    (document,) = read_documents(page)
    assert document.text == "Mühlweg 3"
    assert document.notes == ("declares utf-8, in which it is not valid; read as cp1252, which was detected",)


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("# Character encoding: latin1 explained\n\nÜber Zürich.\n", "latin1"),
        ('Add <meta charset="iso-8859-1"> to old pages, „fertig“.\n', "iso-8859-1"),
        ("# log, encoding: ascii\nGröße 5\n", "ascii"),
        ('<meta charset="windows-1251"><p>улица Мира</p>', "windows-1251"),
        ('<meta charset="gb2312"><p>地址：北京市</p>', "gb2312"),
    ],
)
def test_utf_8_counts_more_than_a_declaration_in_it(text: str, declared: str) -> None:
    read = decode(text.encode())
    assert (read.text, read.encoding) == (text, "utf-8")
    assert read.note == f"declares {declared}, but is valid UTF-8, and read as that"


def test_a_short_text_stays_as_declared_although_its_bytes_could_be_utf_8() -> None:
    page = '<meta charset="gb2312">隆'.encode("gb2312")
    assert page.decode("utf-8") != decode(page).text == page.decode("gb2312")


@given(st.binary(max_size=300))
def test_no_bytes_gain_a_replacement_character(raw: bytes) -> None:
    try:
        text = decode(raw).text
    except UnicodeDecodeError:
        return
    assert text.count("\ufffd") == 0 or "\ufffd".encode() in raw or b"\xfd\xff" in raw or b"\xff\xfd" in raw
