"""Mails, mailboxes and web archives: their headers, texts and attachments."""

import re
from email.message import EmailMessage
from pathlib import Path

import pytest

from memory3.errors import MissingFile
from memory3.formats import count_documents, read_documents
from memory3.formats.readers.markup import html as html_reader
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


@pytest.mark.parametrize("suffix", [".mhtml", ".mht"])
def test_a_web_archive_has_its_page_and_frames_and_counts_its_pictures(tmp_path: Path, suffix: str) -> None:
    page = EmailMessage()
    page["From"], page["Subject"] = "<Saved by Blink>", "Opening hours"
    page["Snapshot-Content-Location"] = "https://a.test/hours"
    page.make_related()
    html = "<title>Opening hours</title><nav>Home</nav><main><p>Höhe: 80 cm<img src=cid:1></main>"
    page.add_related(html, subtype="html", charset="iso-8859-1", cte="quoted-printable")
    page.add_related(b"x", "image", "png", cid="1")
    page.add_related("<p>Gate: 7", subtype="html")
    (tmp_path / f"a{suffix}").write_bytes(page.as_bytes())
    document = read(tmp_path / f"a{suffix}")
    assert (document.title, document.text) == ("Opening hours", "Höhe: 80 cm\n\nGate: 7")
    assert document.metadata == {"url": "https://a.test/hours"}
    assert document.notes == ("1 picture in it not read",)
    (tmp_path / "no.mht").write_text("No page.")
    (none,) = read_documents(tmp_path / "no.mht")
    assert none.unreadable == "it is no web archive: it has no page"


def test_flowed_lines_and_wrapped_quotes_are_paragraphs(tmp_path: Path) -> None:
    flowed = b"The room costs 96 euros a night, including breakfast. The \noption runs out on 28 August.\n"
    flowed += b">> Is it \n>> free?\n> Yes.\nPrice: 96 euros\n-- \nCarla"
    wrapped = (
        b"> The room with the view of the lake costs 96 euros a night\n> including breakfast and the sauna. The option"
        b" runs out on 28\n> August.\nIs it\nfree?"
    )
    for kind, body, expected in (
        (
            b"format=flowed",
            flowed,
            "The room costs 96 euros a night, including breakfast. The option runs out on 28 August.\n"
            ">> Is it free?\n> Yes.\nPrice: 96 euros\n-- \nCarla",
        ),
        (b"format=flowed; delsp=yes", b"Donau \nfahrt", "Donaufahrt"),
        (
            b"charset=ascii",
            wrapped,
            "> The room with the view of the lake costs 96 euros a night including breakfast and the sauna. The option"
            " runs out on 28 August.\nIs it\nfree?",
        ),
    ):
        path = tmp_path / "a.eml"
        path.write_bytes(b"Subject: Room\nContent-Type: text/plain; " + kind + b"\n\n" + body)
        (document,) = read_documents(path)
        assert document.text == expected


PLAIN, HTML = ("text/plain", "Gate: 7"), ("text/html", "<p>Room: <b>14</b>")
FILE = ("text/plain; name=rent.txt\nContent-Disposition: attachment", "Rent: 900")
SIGNATURE = ("application/pgp-signature; name=signature.asc", "iQEz")
CALENDAR = ("text/calendar", "SUMMARY:Lunch")
ATTACHED = "Attachment rent.txt:\nRent: 900"


def multipart(kind: str, *parts: tuple[str, str]) -> tuple[str, str]:
    each = "".join(f"--{kind}\nContent-Type: {head}\n\n{body}\n" for head, body in parts)
    return f"multipart/{kind}; boundary={kind}", f"{each}--{kind}--\n"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (multipart("mixed", HTML, PLAIN), ["Room: 14", "Gate: 7"]),
        (multipart("mixed", PLAIN, FILE, HTML), ["Gate: 7", "Room: 14", ATTACHED]),
        (multipart("alternative", PLAIN, HTML), ["Gate: 7"]),
        (
            multipart("alternative", ("text/plain", " "), HTML, CALENDAR),
            ["Room: 14", "Attachment text/calendar:\nSUMMARY:Lunch"],
        ),
        (("text/enriched", "<color><param>red</param><Bold>Gate</Bold></color>: <<7>"), ["Gate: <7>"]),
        (multipart("alternative", PLAIN, multipart("mixed", HTML, FILE)), ["Gate: 7", ATTACHED]),
        (multipart("signed", multipart("mixed", PLAIN, FILE), SIGNATURE), ["Gate: 7", ATTACHED]),
        (multipart("related", multipart("alternative", PLAIN, HTML), FILE), ["Gate: 7", ATTACHED]),
        (
            multipart("report", PLAIN, ("message/delivery-status", "MTA: a\n\nStatus: 5.1.1")),
            ["Gate: 7", "Attachment message/delivery-status:\nMTA: a", "Status: 5.1.1"],
        ),
        (("multipart/mixed", "Gate: 7"), ["Attachment multipart/mixed:\nGate: 7"]),
        (FILE, [ATTACHED]),
        (("text/csv", "Gate,Room\n7,14"), ["Attachment text/csv:\nGate: 7\nRoom: 14"]),
    ],
)
def test_each_part_of_a_mail_is_text_or_an_attachment(
    tmp_path: Path, part: tuple[str, str], expected: list[str]
) -> None:
    (tmp_path / "a.eml").write_text(f"Subject: Room\nContent-Type: {part[0]}\n\n{part[1]}")
    document = read(tmp_path / "a.eml")
    assert re.split(r"\n\n+", document.text) == expected
    assert not document.notes


def test_a_plain_text_that_only_names_the_html_is_not_read_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = ("text/html", f"<p>{'The crate is at gate 7. ' * 4}")
    head, body = multipart("alternative", ("text/plain", "Please view this mail in HTML."), html)
    (tmp_path / "a.eml").write_text(f"Subject: Crate\nContent-Type: {head}\n\n{body}")
    assert read(tmp_path / "a.eml").text.startswith("The crate is at gate 7.")

    def missing(module: str) -> None:
        raise MissingFile(module)

    monkeypatch.setattr(html_reader, "imported", missing)
    assert read(tmp_path / "a.eml").text == "Please view this mail in HTML."
