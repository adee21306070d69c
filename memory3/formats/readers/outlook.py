"""Outlook's messages (.msg): what the properties in a compound file say (MS-OXMSG 2)."""

from __future__ import annotations

import datetime
import email.message
import email.parser
import email.policy
import email.utils
import io
import re
import struct
from dataclasses import dataclass
from enum import IntEnum

from memory3.formats.encoding import decode
from memory3.formats.libraries import imported


class _P(IntEnum):
    """Numbers of properties (MS-OXPROPS 2)."""

    MESSAGE_CLASS = 0x001A
    SUBJECT = 0x0037
    SUBMITTED = 0x0039
    SENT_FOR_NAME = 0x0042
    SENT_FOR_ADDRESS = 0x0065
    CONVERSATION_TOPIC = 0x0070
    TRANSPORT_HEADERS = 0x007D
    RECIPIENT_TYPE = 0x0C15
    SENDER_NAME = 0x0C1A
    SENDER_ADDRESS = 0x0C1F
    DISPLAY_BCC = 0x0E02
    DISPLAY_CC = 0x0E03
    DISPLAY_TO = 0x0E04
    DELIVERED = 0x0E06
    NORMALIZED_SUBJECT = 0x0E1D
    BODY = 0x1000
    RTF = 0x1009
    HTML = 0x1013
    DISPLAY_NAME = 0x3001
    ADDRESS = 0x3003
    CREATED = 0x3007
    DATA = 0x3701
    FILE_NAME = 0x3704
    LONG_FILE_NAME = 0x3707
    PATH = 0x3708
    LONG_PATH = 0x370D
    MIME_TAG = 0x370E
    SMTP_ADDRESS = 0x39FE
    INTERNET_CODE_PAGE = 0x3FDE
    MESSAGE_CODE_PAGE = 0x3FFD
    SENDER_SMTP = 0x5D01
    SENT_FOR_SMTP = 0x5D02


_TABLE, _STREAM = "__properties_version1.0", "__substg1.0_"
_INTEGER, _TIME = 0x03, 0x40
_HEADERS = ("From", "To", "Cc", "Bcc", "Date", "Subject")
_RECEIVERS = {1: "To", 2: "Cc", 3: "Bcc"}
_SHOWN = {"To": _P.DISPLAY_TO, "Cc": _P.DISPLAY_CC, "Bcc": _P.DISPLAY_BCC}
_MAIL = re.compile(r"(IPM\.(Note|Post|StickyNote)|REPORT)\b|\Z", re.IGNORECASE)
_EPOCH = datetime.datetime(1601, 1, 1, tzinfo=datetime.timezone.utc)
_CODE_PAGES = {20127: "ascii", 20866: "koi8-r", 21866: "koi8-u", 51932: "euc-jp", 51949: "euc-kr", 54936: "gb18030"}
_CODE_PAGES |= {28590 + part: f"iso-8859-{part}" for part in range(1, 16)}


@dataclass
class Attachment:
    """A file in a message, or another message. kind: its MIME type, if it has one."""

    name: str
    content: bytes | Message
    kind: str = ""


@dataclass
class Message:
    """headers: those of `_HEADERS` that it has. html, rtf: only without the one before. notes: assumed, or left out."""

    headers: dict[str, str]
    plain: str
    html: str
    rtf: bytes
    attachments: list[Attachment]
    notes: list[str]


def message_of(data: bytes) -> Message:
    """The message of a file. Raises ValueError."""
    olefile = imported("olefile")
    try:
        with olefile.OleFileIO(io.BytesIO(data), raise_defects=olefile.DEFECT_INCORRECT) as file:
            streams = {"/".join(path).lower(): file.openstream(path).read() for path in file.listdir()}
    except (OSError, ArithmeticError, LookupError, TypeError, struct.error) as error:
        raise ValueError(f"a broken compound file: {error}") from error
    if _TABLE not in streams:
        raise ValueError("a compound file, but no message")
    root = _Properties(streams, "", 32)
    if not root.code_page:
        read = decode(b"\n".join(raw for path, raw in streams.items() if path.endswith("001e") and not raw.isascii()))
        root.code_page, root.notes = read.encoding, [read.note]
    return _message(root)


class _Properties:
    """The properties of a folder, by number. head: bytes before their table. code_page: if they name none."""

    def __init__(self, streams: dict[str, bytes], folder: str, head: int, code_page: str = "") -> None:
        self.streams, self.folder = streams, folder
        table = streams.get(folder + _TABLE, b"")[head:]
        rows = struct.iter_unpack("<HHI8s", table[: len(table) // 16 * 16])
        self.fixed = {(number, kind): raw for kind, number, _, raw in rows}
        self.code_page = _codec(self.integer(_P.MESSAGE_CODE_PAGE)) or code_page
        self.notes: list[str] = []

    def folders(self, name: str) -> list[_Properties]:
        """Those in this one whose names begin so."""
        start = self.folder + name
        found = {
            self.folder + path[len(self.folder) :].split("/")[0] for path in self.streams if path.startswith(start)
        }
        return [_Properties(self.streams, f"{folder}/", 8, self.code_page) for folder in sorted(found)]

    def integer(self, number: int) -> int:
        return int.from_bytes(self.fixed.get((number, _INTEGER), b"")[:4], "little")

    def time(self, *numbers: int) -> str:
        """The first of several times that there is, as mail has it."""
        times = (int.from_bytes(self.fixed.get((number, _TIME), b""), "little") for number in numbers)
        ticks = next((ticks for ticks in times if 0 < ticks < 1 << 61), 0)
        return email.utils.format_datetime(_EPOCH + datetime.timedelta(microseconds=ticks // 10)) if ticks else ""

    def binary(self, number: int) -> bytes:
        return self.streams.get(f"{self.folder}{_STREAM}{number:04x}0102", b"")

    def string(self, *numbers: int) -> str:
        """The first of several strings that is not empty."""
        for number in numbers:
            for kind, encoding in (("001f", "utf-16-le"), ("001e", "utf-8")):
                raw = self.streams.get(f"{self.folder}{_STREAM}{number:04x}{kind}", b"")
                if text := self._decoded(raw, encoding).strip("\0"):
                    return text
        return ""

    def _decoded(self, raw: bytes, encoding: str) -> str:
        try:
            return raw.decode(encoding)  # what has the form of UTF-8 is nothing else, whatever the code page
        except UnicodeDecodeError:
            if encoding == "utf-8":
                return self.read(raw.strip(b"\0"), self.code_page)
            self.notes.append("letters that are no UTF-16 are replaced")
            return raw.decode(encoding, "replace")

    def read(self, raw: bytes, encoding: str) -> str:
        read = decode(raw, encoding)
        self.notes.append(read.note)
        return read.text


def _codec(code_page: int) -> str:
    return _CODE_PAGES.get(code_page, f"cp{code_page}") if code_page else ""


def _message(found: _Properties) -> Message:
    headers = _headers(found)
    sent = email.parser.HeaderParser(policy=email.policy.default).parsestr(found.string(_P.TRANSPORT_HEADERS))
    headers |= {name: value for name in _HEADERS if name != "Subject" and (value := _value(sent, name))}
    plain, html, rtf = found.string(_P.BODY), "", b""
    if not plain.strip():
        html = found.read(found.binary(_P.HTML), _codec(found.integer(_P.INTERNET_CODE_PAGE))) or found.string(_P.HTML)
    if not plain.strip() and not html.strip() and (packed := found.binary(_P.RTF)):
        try:
            rtf = imported("compressed_rtf").decompress(packed)
        except Exception as error:  # the library's own are of no other class
            found.notes.append(f"the text was not read: {error}")
    if not _MAIL.match(kind := found.string(_P.MESSAGE_CLASS)):
        found.notes.append(f"an item {kind} of Outlook: only its subject, text and attachments are read")
    attachments = []
    for one in found.folders("__attach_version1.0"):
        try:
            attachments.append(_attachment(one))
        except ValueError as error:
            found.notes.append(str(error))
        found.notes += one.notes
    headers = {name: headers[name] for name in _HEADERS if headers.get(name)}
    return Message(headers, plain, html, rtf, attachments, [*filter(None, dict.fromkeys(found.notes))])


def _headers(found: _Properties) -> dict[str, str]:
    """As the properties have them."""
    receivers: dict[str, list[str]] = {}
    for one in found.folders("__recip_version1.0"):
        address = _address(one.string(_P.DISPLAY_NAME), one.string(_P.SMTP_ADDRESS, _P.ADDRESS))
        receivers.setdefault(_RECEIVERS.get(one.integer(_P.RECIPIENT_TYPE) & 0xF, "To"), []).append(address)
        found.notes += one.notes
    return {
        "From": _address(
            found.string(_P.SENDER_NAME, _P.SENT_FOR_NAME),
            found.string(_P.SENDER_SMTP, _P.SENT_FOR_SMTP, _P.SENDER_ADDRESS, _P.SENT_FOR_ADDRESS),
        ),
        **{
            name: ", ".join(dict.fromkeys(filter(None, receivers.get(name, [])))) or found.string(number)
            for name, number in _SHOWN.items()
        },
        "Date": found.time(_P.SUBMITTED, _P.DELIVERED, _P.CREATED),
        "Subject": found.string(_P.SUBJECT, _P.CONVERSATION_TOPIC, _P.NORMALIZED_SUBJECT),
    }


def _address(name: str, address: str) -> str:
    """A name and an address; one of the directory of a firm, /O=FIRM/CN=..., says nothing to people."""
    if "@" not in address or address.startswith("/"):
        return name or address
    return f"{name} <{address}>" if name and name.strip("'\"") != address else address


def _value(sent: email.message.Message, name: str) -> str:
    """A header as it was sent; empty where it cannot be parsed."""
    try:
        return str(sent[name] or "")
    except (ValueError, IndexError, AttributeError, TypeError):  # of the parser, for what is no address
        return ""


def _attachment(found: _Properties) -> Attachment:
    name = found.string(_P.LONG_FILE_NAME, _P.FILE_NAME, _P.DISPLAY_NAME).strip()
    inner = f"{found.folder}{_STREAM}{_P.DATA:04x}000d/"
    if inner + _TABLE in found.streams:
        return Attachment(name or "message", _message(_Properties(found.streams, inner, 24, found.code_page)))
    if any(path.startswith(inner) for path in found.streams):
        raise ValueError(f"attachment {name or 'without a name'} was not read: it is embedded by another program")
    if not found.binary(_P.DATA) and (place := found.string(_P.LONG_PATH, _P.PATH)):
        raise ValueError(f"attachment {name or place} was not read: the message only has its place")
    return Attachment(name or "without a name", found.binary(_P.DATA), found.string(_P.MIME_TAG).lower())
