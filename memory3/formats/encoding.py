"""The encoding of a text file: its byte order mark, its declaration, UTF-8, or what detection finds."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from charset_normalizer import from_bytes

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, which is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_XML = re.compile(rb"\A\s*<\?xml[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)", re.IGNORECASE)
_HTML = re.compile(rb"<meta[^>]*?\bcharset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_PYTHON = re.compile(rb"\A(?:#![^\n]*\n)?#.*?coding[:=][ \t]*([-\w.]+)")
_HEAD = 4096
"""Bytes in which a declaration may be."""
_SAMPLE = 1 << 20
"""Bytes that detection reads."""
_WIDER = {
    # What pages and programs call these encodings holds more characters than the standard of that name.
    "ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "latin-1": "cp1252",
    "latin1": "cp1252",
    "iso-8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "cp936": "gb18030",
    "shift_jis": "cp932",
    "sjis": "cp932",
    "x-sjis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "big5": "big5hkscs",
    "tis-620": "cp874",
    "x-mac-roman": "mac_roman",
    "unicode": "utf-16",
}
_EAST_ASIAN = ("cp932", "gb18030", "euc_jp", "big5hkscs")
_JAPANESE_ESCAPES = (b"\x1b$B", b"\x1b$@")
_HANGUL_WORDS = re.compile(r"(?<!\S)[가-힣]{1,8}[\d.,:?!]*(?!\S)")
"""Korean has spaces between its words; Chinese, whose bytes may be the same, has none."""


@dataclass(frozen=True)
class DecodedText:
    """A text and the encoding it was read in. note: what was assumed, for people; empty where nothing was."""

    text: str
    encoding: str
    note: str = ""


def decode(raw: bytes, declared: str = "") -> DecodedText:
    """The text of a file. declared: an encoding that something outside of the bytes names, such as a mail's header.

    A byte order mark counts most, then a declaration in which the bytes are valid, then UTF-8, then what
    charset-normalizer detects. UTF-8 counts more than a declaration within the bytes. Raises UnicodeDecodeError where
    none fits; the text never has a replacement character that the bytes do not have.
    """
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return DecodedText(raw.decode(encoding).removeprefix("\ufeff"), encoding.removesuffix("-sig"))
    note = ""
    name = declared or declaration(raw)
    if name:
        try:
            read = DecodedText(raw.decode(encoding := known(name)), encoding)
            if declared or not _utf_8_instead(raw, encoding):
                return read
            return DecodedText(raw.decode("utf-8"), "utf-8", f"declares {name}, but is valid UTF-8, and read as that")
        except (LookupError, UnicodeError):
            note = f"declares {name}, in which it is not valid; "
    if wide := _without_mark(raw):
        return DecodedText(raw.decode(wide), wide, f"{note}read as {wide}, by its pattern of zero bytes")
    if any(escape in raw[:_SAMPLE] for escape in _JAPANESE_ESCAPES) and _fits(raw, "iso2022_jp"):
        return DecodedText(raw.decode("iso2022_jp"), "iso2022_jp", f"{note}read as iso2022_jp, by its escape sequences")
    try:
        return DecodedText(raw.decode("utf-8"), "utf-8", f"{note}read as utf-8" if note else "")
    except UnicodeDecodeError as error:
        if mixed := _mostly_utf_8(raw):
            return DecodedText(mixed, "utf-8", f"{note}read as utf-8, single bytes that are none as cp1252")
        encoding = detected(raw)
        if not encoding:
            raise error
    return DecodedText(raw.decode(encoding), encoding, f"{note}read as {encoding}, which was detected")


def declaration(raw: bytes) -> str:
    """The encoding that an XML declaration, an HTML `meta` element or a line of Python names; empty without."""
    for pattern, limit in ((_XML, 200), (_PYTHON, 200), (_HTML, _HEAD)):
        if found := pattern.search(raw[:limit]):
            name = found.group(1).decode("ascii", "ignore").lower()
            # These bytes were read as ASCII, so a declaration of wide characters is wrong: HTML requires UTF-8.
            return "utf-8" if name.startswith(("utf-16", "utf-32", "ucs")) else name
    return ""


def _utf_8_instead(raw: bytes, declared: str) -> bool:
    """Whether a file is UTF-8 that only quotes a declaration or has a wrong one; other text hardly ever is valid UTF-8.

    Two bytes of an East Asian character may be two of UTF-8, so only those of three count.
    """
    if declared.startswith("utf-8"):
        return False
    try:
        highest = max(raw.decode("utf-8"), default="")
    except UnicodeDecodeError:
        return False
    single_byte = len(bytes(range(0x80, 0x100)).decode(declared, "replace")) == 0x80
    return highest > ("\x7f" if single_byte else "\u07ff")


def known(name: str) -> str:
    """Python's codec for the name of an encoding; raises LookupError."""
    name = name.strip().lower()
    return codecs.lookup(_WIDER.get(name.replace("_", "-"), _WIDER.get(name, name))).name


def detected(raw: bytes) -> str:
    """The encoding that fits best of those without a mark or a declaration; empty if none does."""
    sample = raw[:_SAMPLE]
    if _mostly_ascii(sample) and (latin := _latin(raw)):
        return latin
    if east := _east_asian(sample):
        return east if _fits(raw, east) else ""
    found = from_bytes(sample, cp_isolation=list(_SINGLE_BYTE)).best()
    name = known(found.encoding) if found is not None else ""
    return next((encoding for encoding in (name, "cp1252") if encoding and _fits(raw, encoding)), "")


_SINGLE_BYTE = (*(f"cp125{n}" for n in range(9)), "koi8_r", "cp874")
_ALPHABETS = {
    "cp1252": (
        "äöüß",
        "àâæçéèêëîïôœùûüÿ",
        "áéíñóúü",
        "áâãàçéêíóôõúü",
        "àèéìíîòóùú",
        "æøåäöéü",
        "áéëïíóöüè",
        "áéíóúýðþæö",
    ),
    "cp1250": ("áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ąćęłńóśźż", "čćđšž", "ăâîşţ"),
    "cp1254": ("çğıöşüâîûi\u0307",),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž"),
    "cp850": ("äöüß", "àâæçéèêëîïôùûü", "áéíñóúü", "áâãàçéêíóôõúü", "àèéìíîòóùú", "æøåäöéü"),
    "mac_roman": ("äöüß", "àâæçéèêëîïôœùûüÿ", "áéíñóúü", "áâãàçéêíóôõúü", "àèéìíîòóùú", "æøåäöéü"),
}
"""Letters of the languages that are written in Latin letters, one string a language, by encoding; likeliest first."""
_RARE = ("cp850", "mac_roman")
"""Of DOS and old Macs: only if every character is a letter of one language or a usual sign."""
_USUAL_SIGNS = set("§°«»–—‘’“”„…€£¿¡ºª\xa0")


def _latin(raw: bytes) -> str:
    """The first encoding in which all letters are those of one language and no sign is within a word."""
    for encoding, alphabets in _ALPHABETS.items():
        if not _fits(raw, encoding):
            continue
        text = raw.decode(encoding)
        letters = {char for char in text.lower() if char > "\x7f" and (char.isalpha() or char == "\u0307")} - {
            "º",
            "ª",
            "µ",
        }
        if encoding in _RARE:
            letters = {char for char in text.lower() if char > "\x7f"} - _USUAL_SIGNS
            if not letters:
                continue
        if not _AMID_LETTERS.search(text) and any(letters <= set(alphabet) for alphabet in alphabets):
            return encoding
    return ""


_AMID_LETTERS = re.compile(r"[^\W\d_][¹³¿¾¼¯¢£¥±²´¶»«®]|[¿³¹¾¼¯¢£¥²´¶®](?<!¿)[^\W\d_]")
"""Signs in the middle of words, where another encoding has letters."""


def _mostly_ascii(sample: bytes) -> bool:
    """As in western languages, which have a letter with an accent now and then."""
    return sum(byte > 127 for byte in sample) < 0.35 * len(sample)


def _mostly_utf_8(raw: bytes) -> str:
    """UTF-8 that has fewer bytes of another encoding than characters beyond ASCII, as joined logs do; else empty."""
    text = raw.decode("utf-8", "surrogateescape")
    strange = [char for char in text if "\udc80" <= char <= "\udcff"]
    if 2 * len(strange) > sum(char > "\x7f" for char in text):
        return ""
    try:
        return re.sub("[\udc80-\udcff]", lambda found: bytes([ord(found[0]) - 0xDC00]).decode("cp1252"), text)
    except UnicodeDecodeError:
        return ""


def _fits(raw: bytes, encoding: str) -> bool:
    try:
        text = raw.decode(encoding)
    except (UnicodeError, LookupError):
        return False
    return not any("\x80" <= char <= "\x9f" for char in text)


def _east_asian(sample: bytes) -> str:
    """The East Asian encoding whose text has hardly anything but the most frequent characters of its language."""
    best, best_share = "", 0.85
    if (korean := _decoded_start(sample, "euc_kr")) and len(_HANGUL_WORDS.findall(korean)) > len(korean.split()) // 3:
        return "cp949"
    for encoding in _EAST_ASIAN:
        text = _decoded_start(sample, encoding)
        wide = [char for char in text if char > "\x7f"]
        if len(wide) < 2:
            continue
        share = sum(_usual(char, encoding) for char in wide) / len(wide)
        if share > best_share:
            best, best_share = encoding, share
    return best


def _decoded_start(sample: bytes, encoding: str) -> str:
    """As text; empty where it is not valid, but for a character that the end of the sample cuts."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample, len(sample) < _SAMPLE)
    except UnicodeError:
        return ""


def _usual(char: str, encoding: str) -> bool:
    """Whether a character is frequent in the language of an encoding: kana and punctuation, level-one ideographs."""
    if char in "　、。・「」『』（）：；，！？…—“”《》【】":
        return True
    if encoding in ("cp932", "euc_jp"):
        if "\u3040" <= char <= "\u30ff":
            return True
        return _lead(char, "euc_jp", 0xB0, 0xCF)  # JIS level 1, in the order of readings
    if encoding == "gb18030":
        return _lead(char, "gb2312", 0xB0, 0xD7)  # GB 2312 level 1, in the order of pinyin
    return _lead(char, "big5", 0xA4, 0xC6)  # Big5 level 1


def _lead(char: str, encoding: str, first: int, last: int) -> bool:
    try:
        return first <= char.encode(encoding)[0] <= last
    except UnicodeError:
        return False


def _without_mark(raw: bytes) -> str:
    """UTF-16 or UTF-32 without a mark, of a text in which most characters are ASCII; empty if it is neither."""
    sample = raw[:_HEAD]
    if len(sample) < 4 or len(raw) % 2 or b"\0" not in sample:
        return ""
    zeros = [sum(byte == 0 for byte in sample[n::2]) / len(sample[n::2]) for n in (0, 1)]
    for encoding, (filled, empty) in (("utf-16-le", zeros), ("utf-16-be", zeros[::-1])):
        if empty > 0.6 and filled < 0.1:
            try:
                raw.decode(encoding)
            except UnicodeError:
                continue
            return encoding
    return ""


def looks_like_text(head: bytes) -> bool:
    """Whether the first bytes of a file are text in some encoding, and no binary format."""
    if any(head.startswith(mark) for mark, _ in _MARKS) or _without_mark(head[: len(head) // 2 * 2]):
        return True
    if b"\0" in head:
        return False
    control = sum(byte < 32 and byte not in (9, 10, 12, 13, 27) for byte in head)
    return control <= len(head) // 100
