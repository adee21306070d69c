"""The verdict of an answer: whether it was read from memories, is the model's own, or is a refusal and why.

Torch-free and standalone. Two signals tell a grounded answer from the model's own: the share of attention that its
tokens paid to memories, and the share of its words that stand in what was read.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from memory3.errors import InvalidInput
from memory3.text.words import ALONE, MARKS, UNSPACED, trigrams


class Verdict(str, Enum):
    """What an answer rests on.

    grounded: it was read from memories, or from text in the conversation. from_the_model: nothing that was read gave
    it. not_in_what_was_read: a refusal after reading memories. nothing_found: a refusal without a memory to read.
    """

    grounded = "grounded"
    from_the_model = "from_the_model"
    not_in_what_was_read = "not_in_what_was_read"
    nothing_found = "nothing_found"


@dataclass(frozen=True)
class Grounding:
    """From which values on an answer counts as grounded; any one of the two is enough. Raises InvalidInput.

    share: of attention to five memories, a mean over the answer's tokens; known where attention was recorded. It
    depends on the model's memory heads: None where it was not measured, and then attention does not count. words: share
    of the answer's words, without those of the question, that what was read holds.
    """

    share: float | None = None
    words: float = 0.6

    def __post_init__(self) -> None:
        """Check the values."""
        for name, value in vars(self).items():
            if name == "share" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
                raise InvalidInput(f"{name} of a verdict must be a number from 0 to 1, not {value!r}")

    def share_of_a_decision(self, memories: int) -> float | None:
        """As `share`, of the one token that says yes or no, where so many memories are read.

        Memories that have nothing to do with the answer get attention too, the more the more there are: with their
        square root, as measured from one to five.
        """
        return None if self.share is None else self.share * math.sqrt(memories / _GIVEN)


_GIVEN = 5
"""Memories that are read where `share` is measured."""
_WORD = re.compile(
    rf"([{UNSPACED}]+)"
    rf"|([{ALONE}]|(?<!\d[.,:])\d+[.,:]\d+(?![.,:]?\d)|(?:[^\W_{ALONE}{UNSPACED}]+[{MARKS}]*)+|[€$£¥%°])"
)
"""As the search cuts words, but columns of tables are named with `_` between words, `price_eur`, and a decimal number
or a time is one word. A date and a version, of more numbers, are several."""
_PARTS = re.compile(r"(?<!\d)\d+(?:[.,:]\d+){2,}")
"""A date, a version, or a time with seconds: two parts next to each other may stand alone elsewhere."""
_GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3})+(?!\d)")
"""A number with separators of thousands, which another text writes otherwise or not at all."""
_MEASURE = re.compile(r"(\d+)([^\W\d_]+)")
"""A number and its unit in one word."""
_DATE = re.compile(r"(?<!\d)(?:\d{4}-(\d\d)-\d\d|\d{1,2}\.(\d{1,2})\.\d{4})(?!\d)")
"""With the number of its month, whose name an answer may use."""
_ABBREVIATED = re.compile(r"(?<![^\W_])(?:[^\W\d_]\.){2,}")
"""`a.m.` and `U.S.`, which others write without points."""
_ORDINAL = re.compile(r"\A(\d+)(?:st|nd|rd|th)\Z")


def _first_of_each(groups: str) -> dict[str, str]:
    """By each word of a group, the first one of it."""
    found = (group.split() for group in groups.split(";"))
    return {word: words[0] for words in found for word in words}


_MEASURES = _first_of_each(
    "second s sec; minute min; hour h hr; week wk; month mo; year yr; kilometre kilometer km; metre meter m;"
    " centimetre centimeter cm; millimetre millimeter mm; mile mi; foot feet ft; kilogram kg; gram g; litre liter l;"
    " millilitre milliliter ml; celsius c; fahrenheit f; am; pm"
)
"""Units, whose abbreviations count after a number."""
_SIGNS = _first_of_each("euro eur €; dollar usd $; pound gbp £; yen jpy ¥; percent %; degree °; day")
"""Units that are so wherever they stand."""
_CALENDAR = _first_of_each(
    "monday mon; tuesday tue tues; wednesday wed; thursday thu thurs; friday fri; saturday sat; sunday sun;"
    " january jan; february feb; march mar; april apr; june jun; july jul; august aug; september sep sept;"
    " october oct; november nov; december dec"
)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_NUMBERS = _first_of_each(
    "0 zero; 1 one; 2 two; 3 three; 4 four; 5 five; 6 six; 7 seven; 8 eight; 9 nine; 10 ten; 11 eleven; 12 twelve;"
    " 13 thirteen; 14 fourteen; 15 fifteen; 16 sixteen; 17 seventeen; 18 eighteen; 19 nineteen; 20 twenty; 30 thirty;"
    " 40 forty; 50 fifty; 60 sixty; 70 seventy; 80 eighty; 90 ninety"
)
_AGREEING = {"yes", "yeah", "no", "not", "nope", "ja", "doch", "nein", "nicht", "oui", "si", "non", "sí", "sim", "não"}
_AGREEING |= {"是", "对", "有", "否", "不", "没"}
"""Words that answer a question and stand in no text for it: where one is found, it says something else."""
_WHOLE = 4
"""Letters of a unit that is no abbreviation, at least."""
_ENDINGS = (
    (re.compile(r"(?<=...)ie[sd]$"), "y"),
    (re.compile(r"(?<=...)(?:(?<=[sxz])|(?<=[cs]h))es$"), ""),
    (re.compile(r"(?<=...)s$"), ""),
    (re.compile(r"(?<=....)ed$"), ""),
    (re.compile(r"(?<=...e)d$"), ""),
)
"""Of plurals and verbs, with what stands in their place without."""


@dataclass(frozen=True)
class _Word:
    """forms: by which it is found, its own and those of which it is another ending or an abbreviation."""

    forms: frozenset[str]
    unit: bool = False


def is_yes_or_no(answer: str) -> bool:
    """Whether an answer begins with a yes or no."""
    first = _WORD.search(answer)
    return first is not None and first[0].casefold() in _AGREEING


def words_found(answer: str, question: str, texts: Sequence[str]) -> float | None:
    """The share of the answer's words that the texts hold; None where it has no word that could be found.

    Words of the question are no evidence: an answer that repeats it has read nothing yet. Neither is a yes or no. Nor
    is a unit that the texts hold, unless the answer has nothing else: its number is. Units, currencies, months and days
    are found by their abbreviations too, numbers in words by their digits, and words with small letters by other
    endings; numbers and names must be the same.
    """
    asked = _forms(question) | _AGREEING
    own = [word for word in _words(_ungrouped(answer)) if word.forms.isdisjoint(asked)]
    if not own:
        return None
    known = forms_in(texts)
    missing = sum(word.forms.isdisjoint(known) for word in own)
    evidence = sum(not word.unit for word in own if not word.forms.isdisjoint(known)) + missing
    return 1 - missing / (evidence or len(own))


def forms_in(texts: Sequence[str]) -> frozenset[str]:
    """Every form by which a word of an answer is found in these texts."""
    return frozenset(form for text in texts for form in _forms(text) | _pairs(text) | _months(text))


def has_numbers(written: str, forms: frozenset[str]) -> bool:
    """Whether all numbers in a part of an answer, and one at least, are among the `forms_in` texts."""
    numbers = [word.forms for word in _words(_ungrouped(written)) if any(form[0].isdecimal() for form in word.forms)]
    return bool(numbers) and not any(number.isdisjoint(forms) for number in numbers)


def _forms(text: str) -> set[str]:
    both = {_ungrouped(text), _ungrouped(text, " ")}
    return {form for written in both for word in _words(written) for form in word.forms}


def _pairs(text: str) -> set[str]:
    parts = (re.split(r"\D", number) for number in _PARTS.findall(text))
    return {_number(f"{one}.{next_one}") for numbers in parts for one, next_one in pairwise(numbers)}


def _months(text: str) -> set[str]:
    numbers = {int(iso or other) for iso, other in _DATE.findall(text)}
    return {month for number, month in enumerate(_MONTHS, 1) if number in numbers}


def _ungrouped(text: str, between: str = "") -> str:
    return _GROUPED.sub(lambda number: re.sub(r"\D", between, number[0]), text)


def _number(written: str) -> str:
    """One form of `2,50` and `2.5`, of `05` and `5`, of `10:00` and `10`."""
    whole, *part = re.split(r"[.,:]", written)
    return ".".join(digits for digits in (whole.lstrip("0") or "0", *(p.rstrip("0") for p in part)) if digits)


def _words(text: str) -> Iterator[_Word]:
    before = ""
    text = _ABBREVIATED.sub(lambda letters: letters[0].replace(".", ""), text)
    for run, written in _WORD.findall(unicodedata.normalize("NFKC", text)):
        parts = trigrams(run) if run else [written]
        if (measure := _MEASURE.fullmatch(written)) and measure[2].casefold() in _MEASURES:
            parts = [measure[1], measure[2]]
        for part in parts:
            yield _word(part, measured=before[-1:].isdigit() or before == "°")
            before = _NUMBERS.get(part.casefold(), part)


def _word(written: str, *, measured: bool) -> _Word:
    """measured: after a number."""
    plain = written.casefold()
    plain = _NUMBERS.get(plain, _ORDINAL.sub(r"\1", plain))
    if plain[0].isdecimal() and plain[-1].isdecimal():
        return _Word(frozenset({_number(plain)}))
    forms = {plain}
    if not any(map(str.isdigit, plain)):
        endings = {plain, *(ending.sub(base, plain) for ending, base in _ENDINGS)}
        units = {_SIGNS[form] for form in endings & _SIGNS.keys()}
        units |= {_MEASURES[form] for form in endings & _MEASURES.keys() if measured or len(form) >= _WHOLE}
        if units:
            return _Word(frozenset(forms | units), unit=True)
        if written.istitle() and plain in _CALENDAR:
            forms.add(_CALENDAR[plain])
        elif written.islower():
            forms |= endings
    return _Word(frozenset(forms))
