"""RTF for the converter, with what it drops as plain text: RTF specification 1.9.1.

It drops text boxes, comments, hidden text, the numbers of items and choices in forms, and has no word of pictures.
"""

from __future__ import annotations

import re

from memory3.formats.readers.markup import raised
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
_CHARACTER = re.compile(rb"\\(?:[\\~_]|(?:emspace|enspace|qmspace|page|column|sect)(?![a-z]) ?)")
_CHARACTERS = {
    b"\\\\": b"\\\\",
    b"\\_": rb"\u45?",
    b"\\page": b"\\line ",
    b"\\column": b"\\line ",
    b"\\sect": b"\\line ",
}
_SPACE = rb"\u160?"
_EMPHASIS = re.compile(rb"(?<!\\)\\(b|i|strike|v)1?(?![a-z\d-])")
_GROUP_END = re.compile(rb"(?<!\\)\}(?=[\r\n]*(?:[^\\{}\s]|\\['u]))")
"""Before text, where the converter has a space that is not there; it has none before another group."""
_RAISED = re.compile(rb"(\\(?:super|up[1-9]\d*)(?![a-z\d-])(?:\\[a-z]+-?\d*)*[ \r\n]+)([+-]?\d+)(?=[\\}])")


def rewritten(data: bytes) -> bytes:
    """A file in which what would be lost is plain text; text boxes and comments follow all other text."""
    data, apart, _ = _split(_without_binary(data))
    data = data.rstrip().removesuffix(b"}") + b"".join(rb"{\pard\plain\par " + text + b"}" for text in apart) + b"}"
    data = _FORM_FIELD.sub(lambda found: found[0] + b" " + _choice(found["settings"]), data)
    data = _NUMBER.sub(_number, data)
    data = _CHARACTER.sub(lambda found: _CHARACTERS.get(found[0].rstrip(b" "), _SPACE), data)
    data = _GROUP_END.sub(b"}{}", data)
    data = _RAISED.sub(lambda found: found[1] + encoded(raised(found[2].decode())), data)
    return _EMPHASIS.sub(rb"\\\g<1>0", data)


def notes(data: bytes) -> list[str]:
    """What is not read of a file."""
    data, _, pictures = _split(_without_binary(data))
    kinds = {"picture": pictures, "embedded file": len(_EMBEDDED.findall(data))}
    return [f"{counted(count, kind)} in it not read" for kind, count in kinds.items() if count]


def encoded(text: str) -> bytes:
    """Characters as commands, each with the one that older programs show."""
    return b"".join(rb"\uc1\u%d?" % (ord(sign) - 0x10000 * (ord(sign) > 0x7FFF)) for sign in text)


def _without_binary(data: bytes) -> bytes:
    """Without bytes that are no text of a file, of which any may be a brace."""
    kept, at = b"", 0
    for found in _BINARY.finditer(data):
        if found.start() >= at:
            kept += data[at : found.start()]
            at = found.end() + int(found[1])
    return kept + data[at:]


def _split(data: bytes) -> tuple[bytes, list[bytes], int]:
    """The text without groups that stand apart from it; those with text, labelled; and how many are pictures."""
    kept, apart, pictures = b"", list[bytes](), 0
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
    return (kept + data[at:], apart, pictures) if depth == 0 else (data, [], 0)


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
