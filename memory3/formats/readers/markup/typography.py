"""How text shows what markup and office files mark: the ends of headings, numbers of items, raised digits."""

from __future__ import annotations

import re

BREAK = "\x1e"
"""Between lines of the text, until those of the source are gone; white space to `words`."""
_RAISED = str.maketrans("0123456789+-\u2212", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")
_ROMAN = {1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX"}
_ROMAN |= {5: "V", 4: "IV", 1: "I"}


def words(text: str) -> str:
    """The text with single spaces, without soft hyphens."""
    return " ".join(text.replace("\u00ad", "").split())


def sentence(heading: str) -> str:
    """A heading as a sentence, so that it does not run into the text below it."""
    return heading if not heading or heading[-1] in ".!?:。！？" else f"{heading}."


def numeral(number: int, system: str) -> str:
    """The number of an item in the system that HTML calls 1, a, A, i or I; after z, letters are repeated."""
    if number > 0 and system in ("a", "A"):
        letter = chr(ord(system) + (number - 1) % 26)
        return letter * ((number - 1) // 26 + 1)
    if 0 < number < 4000 and system in ("i", "I"):
        text = ""
        for value, sign in _ROMAN.items():
            text += sign * (number // value)
            number %= value
        return text.lower() if system == "i" else text
    return str(number)


def raised(text: str) -> str:
    """Text above the line: the digits of 10³ are none of the number before them, those of other text stay."""
    return text.translate(_RAISED) if re.fullmatch(r"\s*[+\u2212-]?[0-9]+\s*", text) else text
