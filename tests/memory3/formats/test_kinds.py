"""Mail, structured data, notebooks and code, each with the right values."""

import json
import zipfile
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from memory3 import formats
from memory3.formats import FileDocument, Kind, count_documents, read_documents
from tests.memory3.formats.reading import read


def test_mail_has_its_headers_its_text_and_its_attachments(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = "Größe der Kiste", "Otto Prem <o@prem.example>", "ida@firm.example"
    mail.set_content("The lathe arrives on 12 March.\nGate: 7\n")
    mail.add_alternative("<p>html</p>", subtype="html")
    mail.add_attachment(b"Weight: 310 kg\n", maintype="text", subtype="plain", filename="spec.txt")
    mail.add_attachment(b"\0\1", maintype="application", subtype="octet-stream", filename="cad.bin")
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    document = read(tmp_path / "a.eml")
    assert document.title == "Größe der Kiste"
    assert document.metadata["from"] == "Otto Prem <o@prem.example>"
    for line in ("From: Otto Prem <o@prem.example>", "Gate: 7", "Weight: 310 kg"):
        assert line in document.text.split("\n")
    assert document.notes == ("attachment cad.bin was not read",)


def test_mail_in_html_and_another_encoding(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"] = "Kiste", "a@b.example"
    table = "<table><tr><th>Kiste</th><th>Höhe</th></tr><tr><td>K1</td><td>80 cm</td></tr></table>"
    mail.set_content(table, subtype="html", charset="iso-8859-1", cte="quoted-printable")
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    assert read(tmp_path / "a.eml").text.split("\n")[-1] == "Kiste: K1; Höhe: 80 cm"
    mail.set_content("<title>Kiste 4</title><h1>Kiste 4</h1><p>Höhe: 80 cm", subtype="html")
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    assert read(tmp_path / "a.eml").text.split("\n")[-2:] == ["Kiste 4.", "Höhe: 80 cm"]


def test_each_mail_of_a_mailbox_is_a_document(tmp_path: Path) -> None:
    mails = []
    for number in (1, 2):
        mail = EmailMessage()
        mail["Subject"], mail["From"] = f"Kiste {number}", "a@b.example"
        mail.set_content(f"Höhe: {number} cm\n")
        mails.append(b"From a@b.example Thu Jan  1 00:00:00 2026\n" + mail.as_bytes())
    file = tmp_path / "a.mbox"
    file.write_bytes(b"\n".join(mails))
    documents = list(read_documents(file))
    assert [(d.key, d.title, d.text.split("\n")[-1]) for d in documents] == [
        (f"{file}#mail={number}", f"Kiste {number}", f"Höhe: {number} cm") for number in (1, 2)
    ]
    assert count_documents(file) == 2
    file.write_text("No mail.")
    assert "no mailbox" in next(iter(read_documents(file))).unreadable


def test_a_mail_that_cannot_be_parsed_fails_alone(tmp_path: Path) -> None:
    begins = "From a@b Mon Jan 1 00:00:00 2026\nFrom: a@b.example\nSubject: no.\nTo: "
    mails = [f"{begins}{to}\n\nHöhe: 80 cm\n\n" for to in ("x@y.example", 'x@y.example, "', "x@y.example")]
    file = tmp_path / "a.mbox"
    file.write_text("".join(mails))
    documents = list(read_documents(file))
    assert [bool(document.unreadable) for document in documents] == [False, True, False]
    assert (documents[1].position, "no readable mail" in documents[1].unreadable) == ("mail 2", True)
    (tmp_path / "a.eml").write_text(mails[1].partition("\n")[2])
    assert "no readable mail" in next(iter(read_documents(tmp_path / "a.eml"))).unreadable


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


def test_aliases_that_multiply_are_not_expanded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    document = read(tmp_path / "a.yaml")
    assert document.text == "\n".join(lines)
    assert "aliases expand to more than" in document.notes[0]


def test_trees_have_a_line_for_each_value_with_its_path(tmp_path: Path) -> None:
    yaml = "db:\n  port: 5544\n  tls: no\nusers:\n  - name: ada\n    role: admin\ntags: [a, b]\n"
    files = {
        "a.yaml": (yaml, ["db.port: 5544", "db.tls: no", "users - name: ada; role: admin", "tags: a, b"]),
        "a.toml": ('[pump]\nflow = "40 l/min"\nday = 2026-03-01\n', ["pump.flow: 40 l/min", "pump.day: 2026-03-01"]),
        "a.json": (
            '{"site": {"code": "K7", "open": true}, "n": [1, 2]}',
            ["site.code: K7", "site.open: true", "n: 1, 2"],
        ),
        "a.xml": (
            '<shop><item id="7"><name>Tea</name><price>3.20</price></item><item id="8"><name>Rye</name></item></shop>',
            ["item - id: 7; name: Tea; price: 3.20", "item - id: 8; name: Rye"],
        ),
    }
    for name, (text, lines) in files.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name).text.split("\n") == lines


def test_names_without_a_value_and_all_values_of_a_name_are_kept(tmp_path: Path) -> None:
    files = {
        "a.yaml": (
            "flour:\n  white:\n  rye:\neggs: 12\nmilk:\nname: cake\nname: torte\ndo:\n- stir:\n- bake: 20\n  rest:\n",
            [
                "flour: white, rye",
                "eggs: 12",
                "name: cake, torte",
                "do - stir",
                "do - bake: 20; without a value: rest",
                "without a value: milk",
            ],
        ),
        "a.json": (
            '{"a": 1, "a": [2], "b": {"x": 1}, "b": {"x": 0, "y": null}, "c": [null], "d": false}',
            ["a: 1", "a: 2", "b - x: 1", "b - x: 0; without a value: y", "d: false", "without a value: c"],
        ),
        "a.xml": ("<a><milk/><eggs>12</eggs><eggs/></a>", ["eggs: 12", "without a value: milk"]),
        "a.md": ("---\ntitle: A\ntitle: B\ndraft:\n---\n", ["draft"]),
    }
    for name, (text, lines) in files.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name).text.split("\n") == lines
    assert read(tmp_path / "a.md").title == "A, B"


def test_trees_that_are_not_well_formed_are_their_text(tmp_path: Path) -> None:
    for name, text in (("a.yaml", "a: [1\nb: }"), ("a.toml", "a = ="), ("a.json", "{a}"), ("a.xml", "<a>1<b>")):
        (tmp_path / name).write_text(text)
        document = read(tmp_path / name)
        assert document.text == text
        assert document.notes[0].startswith("not well-formed, read as plain text: ")


def test_a_notebook_has_its_text_code_and_outputs(tmp_path: Path) -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "…"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Tide model\n", "Station: Bergen"]},
        {
            "cell_type": "code",
            "source": "print(amplitude)",
            "outputs": [{"output_type": "stream", "text": ["1.87 metres\n"]}, picture],
        },
        {"cell_type": "code", "source": "1 / 0", "outputs": [{"output_type": "error", "ename": "E", "evalue": "zero"}]},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    document = read(tmp_path / "a.ipynb")
    assert document.title == "Tide model"
    assert document.text.split("\n\n") == ["Station: Bergen", "print(amplitude)", "1.87 metres", "1 / 0", "E: zero"]
    assert document.notes == ("1 picture in outputs not read",)


def test_code_logs_and_files_without_a_suffix_are_text(tmp_path: Path) -> None:
    (tmp_path / "heater.py").write_text("LIMIT_C = 64\n")
    (tmp_path / "app.log").write_text("10:00 \x1b[31mERROR\x1b[0m pump P9 stalled\n")
    (tmp_path / "README").write_text("Key: below the mat\n")
    (tmp_path / "notes.unheard-of").write_text("Berth: 19\n")
    found = {path.name: read(path) for path in tmp_path.iterdir()}
    assert (found["heater.py"].title, found["heater.py"].text) == ("heater.py", "LIMIT_C = 64\n")
    assert found["app.log"].text == "10:00 ERROR pump P9 stalled\n"
    assert found["README"].text == "Key: below the mat\n"
    assert found["notes.unheard-of"].text == "Berth: 19\n"


def test_a_calendar_has_a_line_for_each_fact_of_its_events(tmp_path: Path) -> None:
    (tmp_path / "a.ics").write_text(
        "BEGIN:VCALENDAR\r\nX-WR-CALNAME:Family\r\nBEGIN:VTIMEZONE\r\nTZID:Europe/Oslo\r\nDTSTART:19701025T030000\r\n"
        "END:VTIMEZONE\r\nBEGIN:VEVENT\r\nUID:1@x\r\nDTSTART;TZID=Europe/Oslo:20310203T143000\r\n"
        "SUMMARY:Dentist\\, Dr. Okafor\r\nDESCRIPTION:Bring the card.\\nPark behind the hou\r\n se.\r\n"
        'ORGANIZER;CN="Berg, Ida":mailto:ida@x.org\r\nBEGIN:VALARM\r\nDESCRIPTION:Bell\r\nEND:VALARM\r\nEND:VEVENT\r\n'
        "BEGIN:VEVENT\r\nSUMMARY:Fair\r\nDTSTART;VALUE=DATE:20310301\r\nDTEND;VALUE=DATE:20310303\r\nEND:VEVENT\r\n"
        "END:VCALENDAR\r\n"
    )
    document = read(tmp_path / "a.ics")
    assert document.title == "Family"
    assert document.text.split("\n") == [
        "Event: Dentist, Dr. Okafor; Start: 2031-02-03 14:30 (Europe/Oslo)",
        "Event: Dentist, Dr. Okafor; Organizer: Berg, Ida <ida@x.org>",
        "Event: Dentist, Dr. Okafor; Description: Bring the card. Park behind the house.",
        "",
        "Event: Fair; Start: 2031-03-01",
        "Event: Fair; End: 2031-03-02",
    ]


def test_contacts_have_their_numbers_and_addresses_and_no_pictures(tmp_path: Path) -> None:
    encoded = ";CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:"
    (tmp_path / "a.vcf").write_text(
        f"BEGIN:VCARD\nVERSION:2.1\nN{encoded}M=C3=BCller;J=\n=C3=B8rg\nFN{encoded}J=C3=B8rg M=C3=BCller\n"
        "TEL;HOME;VOICE:555-1234\nitem1.EMAIL;type=INTERNET;type=WORK:j@x.org\nADR;TYPE=home:;;Quay 4;Kiruna;;981;\n"
        "BDAY:1980-05-06\nPHOTO;ENCODING=BASE64;JPEG:/9j/4AAQ\n ABAQEASAB\n\nEND:VCARD\n"
        "BEGIN:VCARD\nN:Berg;Ida;;;\nEND:VCARD\n"
    )
    document = read(tmp_path / "a.vcf")
    assert document.notes == ("1 picture in it not read",)
    assert document.text.split("\n") == [
        "Name: Jørg Müller; Phone (home): 555-1234",
        "Name: Jørg Müller; Email (work): j@x.org",
        "Name: Jørg Müller; Address (home): Quay 4, Kiruna, 981",
        "Name: Jørg Müller; Birthday: 1980-05-06",
        "",
        "Full name: Berg, Ida",
    ]
    (tmp_path / "b.ics").write_text("no calendar")
    assert read(tmp_path / "b.ics").text == "no calendar"
