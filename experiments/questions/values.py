"""Values of notes drawn anew: numbers, times, codes and names that a question asks for.

There are few notes, and a model that sees one often learns it by heart. Where its values change, copying alone helps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from experiments.questions.paragraphs import RowData

_VALUE = re.compile(r"(?<!\w)(?=[\w.:-]*\d)\w+(?:[.:-]\w+)*")  # a number, a time, a code
_NAME = re.compile(r"(?<=\bMr |\bMs |\bDr )\w+|(?<=\bMrs )\w+")
_SYLLABLES = "bran dor el fyn gal hu kos lin mar nes or pra quil ros sta tav ul vesk wi zan żół æl ñor øst şen"
_MONTHS = "January February March April May June July August September October November December"


def redrawn(rows: Sequence[RowData], rng: random.Random) -> list[RowData]:
    """Rows of one note with other numbers, codes and names in their answers, changed in the text too.

    Values that a question names stay. So does a note with an answer that is reckoned: it would no longer be true.
    """
    text = f"{rows[0]['title']}\n{rows[0]['knowledge']}"
    answers = [[row["right_answer"], *row["answers"]] for row in rows if row["answerable"]]
    absent = [[answer for answer in own if not re.search(_standing(answer), text)] for own in answers]
    reckoned = any(re.search(r"\d", own[0]) and own == gone for own, gone in zip(answers, absent, strict=True))
    kept = " ".join([row["question"] for row in rows] + [answer for gone in absent for answer in gone])
    values = {
        value for own in answers for answer in own for pattern in (_VALUE, _NAME) for value in pattern.findall(answer)
    }
    drawn = {v: _drawn(v, text, rng) for v in sorted(values) if not re.search(_standing(v), kept)}
    if reckoned or not drawn:
        return list(rows)
    found = re.compile("|".join(_standing(v) for v in sorted(drawn, key=len, reverse=True)))

    def changed(field: Any) -> Any:
        if isinstance(field, list):
            return [changed(each) for each in field]
        return found.sub(lambda match: drawn[match.group()], field) if isinstance(field, str) else field

    new = [{name: changed(field) for name, field in row.items()} for row in rows]
    for row in new:  # "3" beside "3.00" was not changed with it
        row["answers"] = [
            a for a in row["answers"] if not re.search(r"\d", a) or re.search(_standing(a), row["knowledge"])
        ]
    return new


def _standing(value: str) -> str:
    """Pattern of a value that is not part of a longer one."""
    return rf"(?<![\w.:-]){re.escape(value)}(?!\w|[.:-]\w)"


def _drawn(value: str, text: str, rng: random.Random) -> str:
    """Another value of the same form: a time stays a time, a day of a month a day, a code a code."""
    if not re.search(r"\d", value):
        return "".join(rng.sample(_SYLLABLES.split(), rng.randint(2, 3))).capitalize()
    if re.fullmatch(r"\d\d?:\d\d", value):
        return f"{rng.randint(6, 22)}:{rng.choice('012345')}{rng.choice('05')}"
    if re.search(rf"{_standing(value)} (?:{_MONTHS.replace(' ', '|')})", text):
        return str(rng.randint(1, 28))
    if re.fullmatch(r"(?:19|20)\d\d", value):
        return value[:2] + "".join(rng.choices("0123456789", k=2))
    code = re.search(r"[^\W\d]", value) and not re.fullmatch(r"\d+(?:st|nd|rd|th|am|pm|[a-z])", value)
    return "".join(_like(character, number, bool(code), rng) for number, character in enumerate(value))


def _like(character: str, place: int, code: bool, rng: random.Random) -> str:
    if character.isdigit():
        return rng.choice("0123456789" if place else "123456789")
    if code and character.isalpha():
        letter = rng.choice("abcdefghijklmnopqrstuvwxyz")
        return letter.upper() if character.isupper() else letter
    return character
