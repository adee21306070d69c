"""RTF for the converter, with what it drops as plain text: RTF specification 1.9.1.

It drops text boxes, comments, hidden text, the numbers of items and choices in forms, and has no word of pictures.
"""

from __future__ import annotations

import codecs
import contextlib
import re

from memory3.formats.readers.markup.typography import raised
from memory3.printable import counted

_BINARY = re.compile(rb"(?<!\\)\\bin(\d+) ?")
_EMBEDDED = re.compile(rb"\{\\\*\\objdata(?![a-z])")
_EDGE = re.compile(rb"\\[^a-z]|[{}]")
_APART = re.compile(
    rb"\{(?:\\\*)?\s*\\(shptxt|dptxbxtext|annotation|pict|shprslt|nonshppict|listpicture|xe|tcn?)(?![a-z])"
)
_LABELS = {b"shptxt": b"Text box: ", b"dptxbxtext": b"Text box: ", b"annotation": b"Comment: "}
"""Of groups that stand apart from the text. Those without are pictures, entries of an index, or have a group again."""
_NO_TEXT = rb"\s|(?!\\(?:u-?\d|par(?![a-z])))\\[a-z]+-?\d*|\{\\\*[^{}]*\}"
_BEFORE_TEXT = re.compile(rb"\A(?:" + _NO_TEXT + rb")*")
_NUMBER = re.compile(rb"\{\\(?:listtext|pntext)(?![a-z])((?:\\[^{}]|[^{}\\])*)\}((?:\}|" + _NO_TEXT + rb")*)")
"""With the commands that begin its paragraph anew, which the converter would take for another paragraph."""
_COMMAND = re.compile(rb"\\'[0-9a-f]{2}|\\u-?\d+ ?\??|\\[a-z]+-?\d* ?|[\r\n]")
_FORM_FIELD = re.compile(
    rb"\{\\\*\\formfield\s*\{(?P<settings>(?:[^{}]|\{[^{}]*\})*)\}\s*\}"
    rb"(?:[\s}]|\{\\\*\\datafield[^{}]*\})*\{\\fldrslt(?![a-z])"
)
_SETTING, _ENTRY = re.compile(rb"\\(fftype|ffres|ffdefres)(\d+)"), re.compile(rb"\{\\\*\\ffl ?([^{}]*)\}")
_CHECK_BOX, _DROP_DOWN, _UNCHANGED = b"1", b"2", b"25"
_FONT = re.compile(rb"\{\\f(\d+)(?:\\[a-z]+-?\d*|\s)*?\\fcharset(\d+)")
_DEFAULT_FONT = re.compile(rb"\\deff(\d+)")
_FONT_TOKEN = re.compile(
    rb"[{}]|\\plain(?![a-z])|\\f(?P<font>\d+)|\\uc(?P<older>\d+)"
    rb"|(?P<unicode>\\u-?\d+ ?)?(?P<bytes>(?:\\'[0-9a-fA-F]{2})+)|\\[^a-z']"
)
_ENCODINGS = {77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gbk", 136: "cp950", 161: "cp1253"}
_ENCODINGS |= {162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251"}
_ENCODINGS |= {222: "cp874", 238: "cp1250"}
"""Of fonts, by their character set."""
_CODE_PAGE = re.compile(rb"\\ansicpg(\d+)")
_CHARACTER_SET = re.compile(rb"\s*\{\\rtf\d*\s*\\(mac|pca|pc)(?![a-z])")
_SETS = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}
_PAGES = {b"10000": "mac_roman", b"65001": "utf-8"}
_READ_RIGHT = ("cp125", "utf-8")
"""How the names of encodings begin that the converter knows."""
_IN_TITLE = re.compile(
    r"(?P<bytes>(?:\\'[0-9a-fA-F]{2})+)|\\u(?P<unicode>-?\d+) ?(?:\\'[0-9a-fA-F]{2}|\?)?"
    r"|\\[a-z]+-?\d* ?|\\(?P<sign>[^a-z])|[{}]"
)
_CHARACTER = re.compile(rb"\\(?:[\\~_]|(?:emspace|enspace|qmspace|page|column|sect)(?![a-z]) ?)")
_CHARACTERS = {
    b"\\\\": b"\\\\",
    b"\\_": rb"\u45?",
    b"\\page": b"\\line ",
    b"\\column": b"\\line ",
    b"\\sect": b"\\line ",
}
_SPACE = rb"\u160?"
_EMPHASIS = re.compile(rb"(?<!\\)\\(b|i|ul|strike|v)1?(?![a-z\d-])")
_GROUP_END = re.compile(rb"(?<!\\)\}(?=[\r\n]*(?:[^\\{}\s]|\\['u]))")
"""Before text, where the converter has a space that is not there; it has none before another group."""
_RAISED = re.compile(rb"(\\(?:super|up[1-9]\d*)(?![a-z\d-])(?:\\[a-z]+-?\d*)*[ \r\n]+)([+-]?\d+)(?=[\\}])")


def rewritten(data: bytes) -> bytes:
    """A file in which what would be lost is plain text; text boxes and comments follow all other text."""
    data, apart, _ = _split(_without_binary(data))
    data = data.rstrip().removesuffix(b"}") + b"".join(rb"{\pard\plain\par " + text + b"}" for text in apart) + b"}"
    data = _FORM_FIELD.sub(lambda found: found[0] + b" " + _choice(found["settings"]), data)
    data = _NUMBER.sub(_number, data)
    data = _decoded(data)
    data = _CHARACTER.sub(lambda found: _CHARACTERS.get(found[0].rstrip(b" "), _SPACE), data)
    data = _GROUP_END.sub(b"}{}", data)
    data = _RAISED.sub(lambda found: found[1] + encoded(raised(found[2].decode())), data)
    return _EMPHASIS.sub(rb"\\\g<1>0", data)


def notes(data: bytes) -> list[str]:
    """What is not read of a file."""
    data, _, pictures = _split(_without_binary(data))
    kinds = {"picture": pictures, "embedded file": len(_EMBEDDED.findall(data))}
    return [f"{counted(count, kind)} in it not read" for kind, count in kinds.items() if count]


def title_text(title: str, data: bytes) -> str:
    """A title as text, of which the converter has the commands. data: of the file."""

    def character(found: re.Match[str]) -> str:
        if found["bytes"]:
            return bytes.fromhex(found["bytes"].replace("\\'", "")).decode(encoding, "replace")
        return chr(int(found["unicode"]) % 0x10000) if found["unicode"] else found["sign"] or ""

    encoding = _encoding(data)
    return _IN_TITLE.sub(character, title)


def _encoding(data: bytes) -> str:
    """The encoding of a file, which fonts without a character set have."""
    if page := _CODE_PAGE.search(data):
        name = _PAGES.get(page[1], f"cp{page[1].decode()}")
    else:
        name = _SETS[found[1]] if (found := _CHARACTER_SET.match(data)) else "cp1252"
    try:
        return codecs.lookup(name).name
    except LookupError:  # an unknown code page
        return "cp1252"


def encoded(text: str) -> bytes:
    """Characters as commands, each with the one that older programs show."""
    return b"".join(rb"\uc1\u%d?" % (ord(sign) - 0x10000 * (ord(sign) > 0x7FFF)) for sign in text)


def _without_binary(data: bytes) -> bytes:
    """Without bytes that are no text of a file, of which any may be a brace."""
    kept, at = bytearray(), 0
    for found in _BINARY.finditer(data):
        if found.start() >= at:
            kept += data[at : found.start()]
            at = found.end() + int(found[1])
    return bytes(kept + data[at:])


def _split(data: bytes) -> tuple[bytes, list[bytes], int]:
    """The text without groups that stand apart from it; those with text, labelled; and how many are pictures."""
    kept, apart, pictures = bytearray(), list[bytes](), 0
    at = depth = 0
    begun: tuple[int, re.Match[bytes]] | None = None
    for edge in _EDGE.finditer(data):
        if edge[0] == b"{":
            depth += 1
            if begun is None and (kind := _APART.match(data, edge.start())):
                begun = depth, kind
                kept += data[at : edge.start()] + b"{}"  # also ends a command before it
        elif edge[0] == b"}":
            if begun and begun[0] == depth:
                at, kind, begun = edge.end(), begun[1], None
                pictures += kind[1] == b"pict"
                if label := _LABELS.get(kind[1]):
                    text, inner, more = _split(data[kind.end() : edge.start()])
                    apart += [_BEFORE_TEXT.sub(lambda found: found[0] + b"{" + label + b"}", text, count=1), *inner]
                    pictures += more
            depth -= 1
    return (bytes(kept + data[at:]), apart, pictures) if depth == 0 else (data, [], 0)


def _decoded(data: bytes) -> bytes:
    """A file in which bytes in an encoding that the converter does not know, or not for their font, are Unicode."""
    encodings = {font: _ENCODINGS.get(int(charset), "") for font, charset in _FONT.findall(data)}
    own = "" if (name := _encoding(data)).startswith(_READ_RIGHT) else name
    if not own and not any(encodings.values()):
        return data
    default = encodings.get(first[1], own) if (first := _DEFAULT_FONT.search(data)) else own
    states = [(default, 1)]  # of each open group: the encoding, and the bytes that follow a \\u for older programs
    kept, at = bytearray(), 0
    for found in _FONT_TOKEN.finditer(data):
        encoding, older = states[-1]
        if found[0] == b"{":
            states.append(states[-1])
        elif found[0] == b"}":
            states = states[:-1] or [(default, 1)]
        elif found[0] == b"\\plain":
            states[-1] = default, older
        elif found["font"]:
            states[-1] = encodings.get(found["font"], own), older
        elif found["older"]:
            states[-1] = encoding, int(found["older"])
        elif encoding and (start := found.start("bytes") + (4 * older if found["unicode"] else 0)) < found.end("bytes"):
            with contextlib.suppress(UnicodeError):
                text = bytes.fromhex(data[start : found.end("bytes")].replace(b"\\'", b"").decode()).decode(encoding)
                kept += data[at:start] + rb"{" + encoded(text) + rb"}"
                at = found.end("bytes")
    return bytes(kept + data[at:])


def _number(found: re.Match[bytes]) -> bytes:
    """The number of an item as text; a letter alone is a sign of a font, such as the ring of Courier New."""
    text = _COMMAND.sub(b"", found[1]).strip()
    shown = text + b" " if len(text) > 1 or text.isdigit() else b""
    return b"{}" + found[2] + b"{" + shown + b"}"


def _choice(settings: bytes) -> bytes:
    """What the program shows for a check box or a drop-down list."""
    values = dict(_SETTING.findall(settings))
    chosen = values.get(b"ffres", _UNCHANGED)
    chosen = values.get(b"ffdefres", b"0") if chosen == _UNCHANGED else chosen
    if values.get(b"fftype") == _CHECK_BOX:
        return encoded("☒" if int(chosen) else "☐")
    entries = dict(enumerate(_ENTRY.findall(settings)))
    return entries.get(int(chosen), b"") if values.get(b"fftype") == _DROP_DOWN else b""
