"""Messages of Outlook: the same document as of other mail, and what is not read."""

import datetime
from email.message import EmailMessage
from pathlib import Path

import compressed_rtf

from memory3.formats import read_documents
from tests.memory3.formats import outlook_files as outlook
from tests.memory3.formats.reading import read

SENT = datetime.datetime(2026, 3, 12, 8, 30, tzinfo=datetime.timezone.utc)
HEAD = {outlook.SUBJECT: "Größe der Kiste", outlook.SENDER: "Otto Prem", outlook.SENDER_ADDRESS: "o@prem.example"}
IDA = {outlook.NAME: "Ida", outlook.ADDRESS: "ida@firm.example", outlook.KIND: 1}
BOSS = {outlook.NAME: "Boss", outlook.ADDRESS: "/O=FIRM/CN=BOSS", outlook.KIND: 2}


def test_a_message_of_outlook_is_the_document_that_the_same_mail_is(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = (
        "Größe der Kiste",
        "Otto Prem <o@prem.example>",
        "Ida <ida@firm.example>",
    )
    mail["Cc"], mail["Date"] = "Boss", SENT
    mail.set_content("The lathe arrives on 12 March.\nGate: 7\n")
    mail.add_attachment(b"Weight: 310 kg\n", maintype="text", subtype="plain", filename="spec.txt")
    mail.add_attachment(b"\0\1", maintype="application", subtype="octet-stream", filename="cad.bin")
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    body = {**HEAD, outlook.SENT: SENT, outlook.BODY: "The lathe arrives on 12 March.\r\nGate: 7\r\n"}
    files = [
        {outlook.LONG_NAME: "spec.txt", outlook.DATA: b"Weight: 310 kg\n"},
        {outlook.LONG_NAME: "cad.bin", outlook.DATA: b"\0\1"},
    ]
    message = read(outlook.write(tmp_path / "a.msg", outlook.message(body, [IDA, BOSS], files)))
    other = read(tmp_path / "a.eml")
    assert message.title == "Größe der Kiste"
    assert (message.title, message.text, message.metadata) == (other.title, other.text, other.metadata)
    assert message.notes == other.notes == ("attachment cad.bin was not read",)


def test_headers_of_the_message_as_it_was_sent_count_most(tmp_path: Path) -> None:
    sent = "From: =?utf-8?q?J=C3=BCrgen?= <j@x.example>\r\nDate: Thu, 12 Mar 2026 09:30:00 +0100\r\n"
    file = outlook.write(
        tmp_path / "a.msg", outlook.message({**HEAD, outlook.SENT: SENT, outlook.TRANSPORT: sent}, [IDA])
    )
    lines = read(file).text.split("\n")
    assert lines[:2] == ["From: Jürgen <j@x.example>", "To: Ida <ida@firm.example>"]
    assert lines[2] == "Date: Thu, 12 Mar 2026 09:30:00 +0100"


def test_strings_in_a_code_page_keep_their_letters(tmp_path: Path) -> None:
    for number, code_page, text in (
        (1251, "cp1251", "Ящик: 80 см"),
        (950, "cp950", "格式測試"),
        (0, "cp1252", "Größe"),
    ):
        found = {outlook.SUBJECT: text, outlook.BODY: text, outlook.CODE_PAGE: number}
        message = read(outlook.write(tmp_path / "a.msg", outlook.message(found, code_page=code_page)))
        assert (message.title, message.text) == (text, text)
        assert len(message.notes) == (not number)
    half = outlook.write(tmp_path / "b.msg", outlook.message({outlook.SUBJECT: "Kiste", outlook.BODY: "Gate: 7\ud83d"}))
    assert read(half).notes == ("letters that are no UTF-16 are replaced",)


def test_a_message_without_plain_text_has_the_words_of_its_html_or_rtf(tmp_path: Path) -> None:
    table = "<table><tr><th>Kiste</th><th>Höhe</th></tr><tr><td>K1</td><td>80 cm</td></tr></table>".encode()
    page = read(outlook.write(tmp_path / "a.msg", outlook.message({**HEAD, outlook.HTML: table})))
    assert page.text.split("\n")[-1] == "Kiste: K1; Höhe: 80 cm"
    rtf = rb"{\rtf1\ansi Gate: 7\par}"
    packed = compressed_rtf.compress(rtf)
    assert read(outlook.write(tmp_path / "b.msg", outlook.message({**HEAD, outlook.RTF: packed}))).text.endswith(
        "\nGate: 7"
    )
    cut = read(outlook.write(tmp_path / "c.msg", outlook.message({**HEAD, outlook.RTF: packed[:-3]})))
    assert cut.notes == ("the text was not read: CRC is invalid! The file is corrupt!",)


def test_all_of_an_html_mail_is_its_text_as_it_has_no_menus(tmp_path: Path) -> None:
    html = "<header>Code 8812</header><main>Hello</main><aside>Gate 7</aside><footer>Open 9-17</footer>"
    (tmp_path / "a.eml").write_text(f"From: a@b.test\nContent-Type: text/html\n\n{html}\n")
    outlook.write(tmp_path / "a.msg", outlook.message({**HEAD, outlook.HTML: html.encode()}))
    for name in ("a.eml", "a.msg"):
        assert read(tmp_path / name).text.split("\n")[-4:] == ["Code 8812", "Hello", "Gate 7", "Open 9-17"]


def test_messages_within_messages_are_read_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    inner = outlook.message({outlook.SUBJECT: "The crate", outlook.BODY: "Gate: 9"}, [IDA], head=24)
    link = {outlook.LONG_NAME: "plan.txt", outlook.LINK: "S:/plan.txt"}
    appointment = {**HEAD, outlook.CLASS: "IPM.Appointment", outlook.BODY: "x" * 5000}
    found = read(
        outlook.write(tmp_path / "a.msg", outlook.message(appointment, [], [{outlook.NAME: "crate", **inner}, link]))
    )
    assert found.text.split("\n\n")[1:] == [
        "x" * 5000,
        "Attachment crate:\nThe crate\nTo: Ida <ida@firm.example>",
        "Gate: 9",
    ]
    assert found.notes == (
        "an item IPM.Appointment of Outlook: only its subject, text and attachments are read",
        "attachment plan.txt was not read: the message only has its place",
    )


def test_a_signed_message_has_the_attachments_that_were_signed(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail.set_content("Gate: 7\n")
    mail.add_attachment(b"Weight: 310 kg\n", maintype="text", subtype="plain", filename="spec.txt")
    signed = {outlook.DATA: mail.as_bytes(), outlook.MIME: "multipart/signed", outlook.LONG_NAME: "smime.p7m"}
    found = read(outlook.write(tmp_path / "a.msg", outlook.message(HEAD, [], [signed])))
    assert found.text.split("\n\n")[1:] == ["Gate: 7", "Attachment spec.txt:\nWeight: 310 kg"]
    assert not found.notes


def test_what_is_not_read_of_an_attachment_is_reported_with_its_name(tmp_path: Path) -> None:
    plan = rb"{\rtf1\ansi Gate: 7{\pict 00}\par}"
    mail = EmailMessage()
    mail.set_content("See the plan.\n")
    mail.add_attachment(plan, maintype="application", subtype="rtf", filename="plan.rtf")
    (tmp_path / "a.eml").write_bytes(b"Subject: Plan\n" + mail.as_bytes())
    attached = {outlook.DATA: plan, outlook.LONG_NAME: "plan.rtf"}
    outlook.write(tmp_path / "a.msg", outlook.message({**HEAD, outlook.BODY: "See the plan."}, [], [attached]))
    for name in ("a.eml", "a.msg"):
        assert read(tmp_path / name).notes == ("attachment plan.rtf: 1 picture in it not read",)


def test_a_broken_message_fails_and_text_with_its_suffix_is_text(tmp_path: Path) -> None:
    whole = outlook.write(tmp_path / "a.msg", outlook.message({**HEAD, outlook.BODY: "x" * 5000})).read_bytes()
    for cut in (whole[:300], whole[:-3000], whole[:8] + bytes(3000)):
        (tmp_path / "a.msg").write_bytes(cut)
        (document,) = read_documents(tmp_path / "a.msg")
        assert "no readable MSG file" in document.unreadable
    (tmp_path / "b.msg").write_text("float64 height\n")
    assert read(tmp_path / "b.msg").text == "float64 height\n"
