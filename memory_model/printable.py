"""Other people's text on a terminal: what a model, a document or a key says moves no cursor and hides no line."""

from __future__ import annotations

from typing import TextIO

_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_PICTURES |= {0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}


def printable(text: str) -> str:
    """The text with pictures for control characters; tabs and ends of lines stay."""
    return text.translate(_PICTURES)


def shown_on(stream: TextIO, text: str) -> str:
    """`printable` where the stream is a terminal; a program that reads it gets the text as it is."""
    return printable(text) if stream.isatty() else text
