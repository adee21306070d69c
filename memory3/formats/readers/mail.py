"""Mail: EML files, mailboxes and Outlook's messages, with the attachments that can be read; and saved web pages."""

from __future__ import annotations

import contextlib
import email
import email.policy
import itertools
import mailbox
import mimetypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from memory3.errors import MissingFile
from memory3.formats.document import COMPOUND, NO_TEXT, FileDocument, title_of
from memory3.formats.encoding import decode, looks_like_text
from memory3.formats.readers import outlook
from memory3.formats.readers.code import read_text
from memory3.formats.readers.markup.html import html_text
from memory3.formats.readers.markup.typography import words
from memory3.printable import counted
from memory3.text.paragraphs import unwrapped

_HEADERS = ("From", "To", "Cc", "Bcc", "Date")
_QUOTES = re.compile(r"(?:> ?)*")
_TEXTS = ("text/plain", "text/html", "text/x-amp-html", "text/watch-html", "text/enriched")
"""Kinds of parts that are what the mail says, the plainest first."""
_ENRICHED = re.compile(r"<<|<param>.*?</param>|</?[a-z0-9-]+>", re.IGNORECASE | re.DOTALL)
"""Marks of RFC 1896."""
_SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")
_FLOWED = re.compile(r"(?<!^--)( )\n(?!-- ?$)", re.MULTILINE)


def read_mail(source: Path) -> Iterator[FileDocument]:
    """The subject is the title; sender, receivers and date are lines and metadata; attachments follow the text."""
    yield _read(source, source.read_bytes(), str(source))


def read_outlook(source: Path) -> Iterator[FileDocument]:
    """A message of Outlook, as other mail; other files have its suffix as well, and are read if they are text."""
    data = source.read_bytes()
    if not data.startswith(COMPOUND) and looks_like_text(data[:8192]):
        yield from read_text(source)
        return
    try:
        mail = _outlook_mail(outlook.message_of(data))
    except (ValueError, RecursionError) as error:
        yield FileDocument.broken(source, "MSG file", error)
        return
    yield _document(source, mail, str(source))


def read_web_archive(source: Path) -> Iterator[FileDocument]:
    """A page that a browser saved as one file, and the frames in it."""
    message = _parsed(source.read_bytes())
    parts = [part for part in message.walk() if isinstance(part, EmailMessage) and not part.is_multipart()]
    pages = [part for part in parts if part.get_content_type() in ("text/html", "application/xhtml+xml")]
    if not pages:
        yield FileDocument.failed(source, "it is no web archive: it has no page")
        return
    texts, titles, notes = [], [], []
    for page in pages:
        read = decode(_content(page), str(page.get_content_charset() or ""))
        title, text = html_text(read.text)
        texts.append(text)
        titles.append(title)
        notes.append(read.note)
    title = next(filter(None, titles), "") or words(str(message["Subject"] or "")) or title_of(source)
    if pictures := sum(part.get_content_maintype() == "image" for part in parts):
        notes.append(f"{counted(pictures, 'picture')} in it not read")
    url = words(str(message["Snapshot-Content-Location"] or pages[0]["Content-Location"] or ""))
    metadata = {"url": url} if 0 < len(url.encode()) < 1000 else {}
    text = "\n\n".join(filter(None, texts))
    yield FileDocument(str(source), str(source), title, text, metadata).noted(*dict.fromkeys(notes))


def read_mailbox(source: Path) -> Iterator[FileDocument]:
    """A document for each mail of a file of the kind mbox; one that cannot be read fails alone."""
    box = mailbox.mbox(source, create=False)
    try:
        if not box.keys():
            yield FileDocument.failed(source, "it is no mailbox: no line begins with `From `")
        for number, key in enumerate(box.keys(), 1):
            yield _read(source, box.get_bytes(key), f"{source}#mail={number}", f"mail {number}")
    finally:
        box.close()


def count_mails(source: Path) -> int:
    """Mails of a mailbox, about."""
    with source.open("rb") as file:
        return sum(line.startswith(b"From ") for line in file)


@dataclass
class _Mail:
    """A mail as its document needs it. attached: names and texts of attachments that could be read."""

    headers: dict[str, str]
    subject: str
    text: str
    attached: list[tuple[str, str]]
    notes: list[str]

    def whole(self) -> str:
        """Headers, text and attachments."""
        lines = "\n".join(f"{name}: {value}" for name, value in self.headers.items())
        attached = (f"Attachment {name}:\n{text}" for name, text in self.attached if text)
        return "\n\n".join(part for part in (lines, self.text.strip(), *attached) if part)


def _read(source: Path, raw: bytes, key: str, position: str = "") -> FileDocument:
    try:
        mail = _internet_mail(raw)
    except Exception as error:  # Python's parser shows a malformed mail by any error; it must not end the others
        return FileDocument.broken(source, "mail", error, position)
    return _document(source, mail, key, position)


def _document(source: Path, mail: _Mail, key: str, position: str = "") -> FileDocument:
    if not mail.headers and not mail.subject:
        return FileDocument.failed(source, "it is no mail: it has no header", position)
    title = mail.subject or title_of(source)
    metadata = {name.lower(): value for name, value in mail.headers.items() if len(value.encode()) < 1000}
    return FileDocument(str(source), key, title, mail.whole(), metadata, position).noted(*mail.notes)


def _parsed(raw: bytes) -> EmailMessage:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


def _internet_mail(raw: bytes) -> _Mail:
    message = _parsed(raw)
    headers = {name: words(str(message[name])) for name in _HEADERS if message[name]}
    mail = _Mail(headers, words(str(message["Subject"] or "")), "", [], [])
    texts, attachments = _parts(message)
    read = [_text_of(text) for text in texts]
    mail.text = "\n\n".join(text.strip("\n") for text, _ in read)
    mail.notes += dict.fromkeys(note for _, note in read)
    for part in attachments:
        kind = part.get_content_type()
        name = part.get_filename() or kind
        suffix = ".eml" if kind == "message/rfc822" else mimetypes.guess_extension(kind) or ""
        _attach(mail, name, _content(part), f"part{suffix}" if name == kind or suffix == ".eml" else name)
    return mail


def _parts(part: EmailMessage) -> tuple[list[EmailMessage], list[EmailMessage]]:
    """The parts that are the text of a part, and its attachments.

    Of alternatives, the plainest is the text that is not far shorter than another, as one that only names the other.
    """
    kind, disposition = part.get_content_type(), part.get_content_disposition()
    if part.is_multipart() and part.get_content_maintype() == "multipart":
        found = [_parts(inner) for inner in part.iter_parts() if isinstance(inner, EmailMessage)]
        options = [texts for texts, _ in found if any(_content(text).strip() for text in texts)]
        if kind == "multipart/alternative" and options:
            sizes = list(map(_characters, options))
            whole = [texts for texts, size in zip(options, sizes, strict=True) if 2 * size >= max(sizes)]
            options = [min(whole, key=lambda texts: max(_TEXTS.index(text.get_content_type()) for text in texts))]
        return [text for texts in options for text in texts], [one for _, more in found for one in more]
    if kind in _SIGNATURES:
        return [], []
    named = disposition == "attachment" or (disposition == "inline" and part.get_filename())
    return ([part], []) if kind in _TEXTS and not named else ([], [part])


def _characters(texts: list[EmailMessage]) -> int:
    """How long a text is; 0 where the library that reads it is missing, as a mail can be read without."""
    with contextlib.suppress(MissingFile):
        return sum(len("".join(_text_of(text)[0].split())) for text in texts)
    return 0


def _outlook_mail(message: outlook.Message) -> _Mail:
    headers = {name: words(value) for name, value in message.headers.items()}
    mail = _Mail(headers, headers.pop("Subject", ""), _plain_text(message.plain), [], list(message.notes))
    if message.html:
        mail.text = html_text(message.html, whole=True)[1]
    elif message.rtf:
        mail.text, why, notes = _text_in(message.rtf, "body.rtf")
        mail.notes += [f"the text was not read: {why}" if why and why != NO_TEXT else "", *notes]
    for attachment in message.attachments:
        if isinstance(attachment.content, outlook.Message):
            inner = _outlook_mail(attachment.content)
            mail.attached.append((attachment.name, "\n".join(filter(None, (inner.subject, inner.whole())))))
            mail.notes += inner.notes
        elif attachment.kind == "multipart/signed":  # the whole mail again, with its attachments
            signed = _internet_mail(attachment.content)
            mail.text = mail.text if mail.text.strip() else signed.text
            mail.attached += signed.attached
            mail.notes += signed.notes
        else:
            _attach(mail, attachment.name, attachment.content, attachment.name)
    return mail


def _text_of(part: EmailMessage) -> tuple[str, str]:
    """The text of a part, and what was assumed."""
    read = decode(_content(part), str(part.get_content_charset() or ""))
    if part.get_content_type().endswith("html"):
        return html_text(read.text, whole=True)[1], read.note
    if part.get_content_type() == "text/enriched":
        return _ENRICHED.sub(lambda found: "<" if found[0] == "<<" else "", read.text), read.note
    flowed = str(part.get_param("format") or "").lower() == "flowed"
    return _plain_text(read.text, flowed, str(part.get_param("delsp") or "").lower() == "yes"), read.note


def _plain_text(text: str, flowed: bool = False, without_space: bool = False) -> str:
    """Plain text with the lines of a paragraph in one: where it says so (RFC 3676), and where it is quoted.

    flowed: a line that ends with a space goes on. without_space: that space is none of the text.
    """
    result: list[str] = []
    lines = text.replace("\r\n", "\n").split("\n")
    for depth, run in itertools.groupby(lines, key=lambda line: line[: _end_of_quotes(line)].count(">")):
        quoted = list(run)
        content = "\n".join(line[_end_of_quotes(line) :].removeprefix(" " if flowed else "") for line in quoted)
        joined = _FLOWED.sub("" if without_space else " ", content) if flowed else content
        joined = unwrapped(joined) if depth and not flowed else joined
        marks = f"{'>' * depth} " if depth else ""
        result += [f"{marks}{line}".rstrip() for line in joined.split("\n")] if joined != content else quoted
    return "\n".join(result)


def _end_of_quotes(line: str) -> int:
    found = _QUOTES.match(line)
    return found.end() if found else 0


def _content(part: EmailMessage) -> bytes:
    """The bytes of a part; of a message or a report within the mail, it whole."""
    if part.is_multipart():
        return b"\n".join(inner.as_bytes() for inner in part.iter_parts())
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _attach(mail: _Mail, name: str, content: bytes, file: str) -> None:
    """Adds the text of an attachment, or a note where it is not read. file: a name whose suffix tells its kind."""
    text, why, notes = _text_in(content, file)
    mail.notes += [f"attachment {name}: {note}" for note in notes]
    if why is None:
        mail.notes.append(f"attachment {name} was not read")
    else:
        mail.attached.append((name, text))
        mail.notes.append(f"attachment {name} was not read: {why}" if why else "")


def _text_in(content: bytes, file: str) -> tuple[str, str | None, list[str]]:
    """The text of a file as its reader has it, why not all is read (None: there is no reader), and further notes."""
    from memory3.formats import read_documents, reads

    with TemporaryDirectory() as folder:
        path = Path(folder) / f"attachment{PurePath(file).suffix.lower()}"
        path.write_bytes(content)
        if not reads(path):
            return "", None, []
        found = list(read_documents(path))
    texts = [f"{d.title}\n{d.text}" if d.title not in ("", "attachment") else d.text for d in found if not d.unreadable]
    why = next((document.unreadable for document in found if document.unreadable), "")
    return "\n".join(texts).strip(), why, list(dict.fromkeys(note for document in found for note in document.notes))
