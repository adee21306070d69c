"""Characters that Word writes as a code of a font of symbols, such as ≤ of Symbol: ECMA-376, part 1, 17.3.3.30."""

from __future__ import annotations

import re
from html import escape

SYMBOL = re.compile(r"<w:sym\b[^>]*/>")
_FONT, _CODE = re.compile(r'w:font="([^"]*)"'), re.compile(r'w:char="([0-9A-Fa-f]{1,4})"')
_PRIVATE = 0xF000
"""Where Word has the codes of such a font, which are one byte."""
_GREEK = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼",
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…│─↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑",
)
"""Of the font Symbol, from 0x20 and from 0xA0: PostScript Language Reference, E.11."""
_DINGBATS = "(☎ *✉ J☺ K😐 L☹ o☐ q❑ §▪ ¨☐ Ø➢ ß← à→ á↑ â↓ è➔ ð⇨ û✗ ü✓ ý☒ þ☑"
"""Of Wingdings, those that people use in texts, each after the character of its code."""
_FONTS = {
    "Symbol": {
        start + n: char for start, text in zip((0x20, 0xA0), _GREEK, strict=True) for n, char in enumerate(text)
    },
    "Wingdings": {ord(pair[0]): pair[1] for pair in _DINGBATS.split()},
}


def character(symbol: str) -> str:
    """The character of an element; empty if its font is not known."""
    font, code = _FONT.search(symbol), _CODE.search(symbol)
    value = int(code[1], 16) if code else 0
    if value > 0xFF and not _PRIVATE <= value <= 0xF0FF and value < 0xD800:
        return chr(value)
    return _FONTS.get(font[1] if font else "", {}).get(value & 0xFF, "")


def run(found: re.Match[str]) -> str:
    """The text of an element of the run that it is in; one that is not known stays."""
    text = character(found[0])
    return f"<w:t>{escape(text, quote=False)}</w:t>" if text else found[0]
