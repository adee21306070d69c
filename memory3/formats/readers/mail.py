"""Mail: EML files and mailboxes, with headers, text and the attachments that can be read."""

from __future__ import annotations

import email
import email.policy
import mailbox
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode
from memory3.formats.readers.markup import html_text, words

_HEADERS = ("From", "To", "Cc", "Date")


def read_mail(source: Path) -> Iterator[FileDocument]:
    """The subject is the title; sender, receivers and date are lines and metadata; attachments follow the text."""
    yield _document(source, source.read_bytes(), str(source))


def read_mailbox(source: Path) -> Iterator[FileDocument]:
    """A document for each mail of a file of the kind mbox; one that cannot be read fails alone."""
    box = mailbox.mbox(source, create=False)
    try:
        if not box.keys():
            yield FileDocument.failed(source, "it is no mailbox: no line begins with `From `")
        for number, key in enumerate(box.keys(), 1):
            yield _document(source, box.get_bytes(key), f"{source}#mail={number}", f"mail {number}")
    finally:
        box.close()


def count_mails(source: Path) -> int:
    """Mails of a mailbox, about."""
    with source.open("rb") as file:
        return sum(line.startswith(b"From ") for line in file)


def _document(source: Path, raw: bytes, key: str, position: str = "") -> FileDocument:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    headers = {name: words(str(message[name])) for name in _HEADERS if message[name]}
    lines = [f"{name}: {value}" for name, value in headers.items()]
    notes: list[str] = []
    body = message.get_body(("plain", "html"))
    text = ""
    if body is not None and isinstance(body, EmailMessage):
        text, note = _text_of(body)
        notes.append(note)
    for part in message.iter_attachments():
        name = part.get_filename() or part.get_content_type()
        assert isinstance(part, EmailMessage)
        attached, note = _attachment(part, name)
        notes.append(note)
        if attached:
            text += f"\n\nAttachment {name}:\n{attached}"
    title = words(str(message["Subject"] or "")) or title_of(source)
    metadata = {name.lower(): value for name, value in headers.items() if len(value.encode()) < 1000}
    whole = "\n\n".join(part for part in ("\n".join(lines), text.strip()) if part)
    if not headers and not message["Subject"]:
        return FileDocument.failed(source, "it is no mail: it has no header", position)
    return FileDocument(str(source), key, title, whole, metadata, position).noted(*notes)


def _text_of(part: EmailMessage) -> tuple[str, str]:
    """The text of a part, and what was assumed."""
    raw = part.get_payload(decode=True)
    read = decode(raw if isinstance(raw, bytes) else b"", str(part.get_content_charset() or ""))
    if part.get_content_type() == "text/html":
        return html_text(read.text)[1], read.note
    return read.text.replace("\r\n", "\n"), read.note


def _attachment(part: EmailMessage, name: str) -> tuple[str, str]:
    """The text of an attachment, as the reader of its kind has it, and a note where it is not read."""
    from memory3.formats import read_documents, reads

    if part.get_content_type() == "message/rfc822":
        content = part.get_content()
        raw, name = content.as_bytes() if isinstance(content, EmailMessage) else b"", "message.eml"
    else:
        payload = part.get_payload(decode=True)
        raw = payload if isinstance(payload, bytes) else b""
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"attachment{PurePath(name).suffix.lower()}"
        file.write_bytes(raw)
        if not reads(file):
            return "", f"attachment {name} was not read"
        found = list(read_documents(file))
    notes = [document.unreadable for document in found if document.unreadable]
    texts = [f"{d.title}\n{d.text}" if d.title not in ("", "attachment") else d.text for d in found if not d.unreadable]
    return "\n".join(texts).strip(), f"attachment {name} was not read: {notes[0]}" if notes else ""
