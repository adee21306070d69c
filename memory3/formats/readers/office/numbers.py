"""Numbers as people see them in Excel: 0.125 of the format `0.0%` is 12.5%. Formats: ECMA-376, part 1, 18.8.30 and 31.

The converter of `office` gives the stored number of a cell, but reads dates by their format; times of day are the first
of its days to it, 1899-12-31.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from xml.etree import ElementTree

from memory3.formats.readers.elements import attribute_of, tag_of

_STYLES = "xl/styles.xml"
_SHEET = re.compile(r"xl/worksheets/[^/]+\.xml")
_BUILT_IN = {1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%"}
_BUILT_IN |= dict.fromkeys((37, 38), "#,##0;(#,##0)") | dict.fromkeys((39, 40), "#,##0.00;(#,##0.00)")
_BUILT_IN |= {18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss"}
_BUILT_IN |= {45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0"}
_CELL = re.compile(
    r'<c\b(?P<head>[^>]*\bs="(?P<style>\d+)"[^>]*)>'
    r"(?:<f\b[^>]*/>|<f\b[^>]*>[^<]*</f>)?<v>(?P<value>[^<]*)</v></c>"
)
_KIND = re.compile(r'\st="(\w+)"')
_PART = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|_.|\*.|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[(?:Color ?\d+|[A-Z][a-z]+)\]'
    r"|(?P<digits>[0#?][0#?,]*(?:\.[0#?]*)?|\.[0#?]+)|(?P<sign>[$€£¥+():%' -])|(?P<other>.)"
)
_TIME_PART = re.compile(
    r"(?P<unit>\[(?P<total>h+|m+|s+)\]|h+|m+|s+)(?P<fraction>\.0+)?|(?P<half>AM/PM)"
    r'|"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|\[\$[^\]]*\]|(?P<sign>[:. ])|(?P<other>.)',
    re.IGNORECASE,
)
_UNITS_MS = {"h": 3_600_000, "m": 60_000, "s": 1000}
_MOST = Decimal(10) ** 15
"""Above it, Excel shows no digits either."""


def with_shown_numbers(data: bytes) -> bytes:
    """A file of Excel whose numbers are texts where their format says more than the number."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        formats = _formats(archive.read(_STYLES)) if _STYLES in archive.namelist() else {}
        if not formats:
            return data
        copy = io.BytesIO()
        with zipfile.ZipFile(copy, "w") as shown:
            for name in dict.fromkeys(archive.namelist()):
                part = archive.read(name)
                shown.writestr(name, _with_texts(part, formats) if _SHEET.fullmatch(name) else part)
    return copy.getvalue()


def _formats(styles: bytes) -> dict[str, str]:
    """The format of each style of cells that has one for numbers."""
    root = ElementTree.fromstring(styles)
    codes = dict(_BUILT_IN)
    codes |= {
        int(attribute_of(one, "numFmtId")): attribute_of(one, "formatCode")
        for one in root.iter()
        if tag_of(one) == "numFmt"
    }
    styled = next((part for part in root if tag_of(part) == "cellXfs"), ())
    found = ((str(n), codes.get(int(attribute_of(one, "numFmtId") or 0), "")) for n, one in enumerate(styled))
    return {style: code for style, code in found if shown_number("1", code) or shown_number("0.5", code)}


def _with_texts(sheet: bytes, formats: Mapping[str, str]) -> bytes:
    def text(found: re.Match[str]) -> str:
        kind = _KIND.search(found["head"])
        code = formats.get(found["style"]) if kind is None or kind[1] == "n" else None
        shown = shown_number(found["value"], code) if code else ""
        return f'<c{_KIND.sub("", found["head"])} t="str"><v>{escape(shown)}</v></c>' if shown else found[0]

    try:
        return _CELL.sub(text, sheet.decode()).encode()
    except UnicodeDecodeError:
        return sheet


def shown_number(stored: str, code: str) -> str:
    """A number in a format; empty where the format is no plain one of numbers or times, such as one of dates."""
    try:
        value = Decimal(stored)
    except ArithmeticError:
        return ""
    if not value.is_finite() or abs(value) >= _MOST:
        return ""
    sections = re.findall(r'(?:"[^"]*"|\\.|[^;"\\])+', code)
    number = 2 if value == 0 and len(sections) > 2 else 1 if value < 0 and len(sections) > 1 else 0
    if number >= len(sections):
        return ""
    if time := _time(value, sections[number]):
        return time
    before, digits, after, percent = "", "", "", 0
    for part in _PART.finditer(sections[number]):
        if part["other"] or (digits and part["digits"]):
            return ""
        sign = part["quoted"] or part["escaped"] or part["currency"] or part["sign"] or ""
        percent += part["sign"] == "%"
        before, after = (before, after + sign) if digits else (before + sign, after)
        digits = digits or part["digits"] or ""
    if not digits:
        return ""
    shown = _digits(abs(value).scaleb(2 * percent), digits)
    minus = "-" if value < 0 and number == 0 and shown.strip("0.,") else ""
    return " ".join(f"{minus}{before}{shown}{after}".split())


def _time(days: Decimal, section: str) -> str:
    """A time of day, or a duration in a format of hours beyond 24; empty in a format of dates or of other numbers."""
    parts = list(_TIME_PART.finditer(section))
    units = {part["unit"].strip("[")[0].lower() for part in parts if part["unit"]}
    if any(part["other"] for part in parts) or not units & {"h", "s"}:
        return ""
    if days < 0 or (days >= 1 and not any(part["total"] for part in parts)):
        return ""
    ms = int((days * 24 * _UNITS_MS["h"]).to_integral_value())
    hour, of_half = ms // _UNITS_MS["h"], any(part["half"] for part in parts)
    shown = ""
    for part in parts:
        if part["unit"]:
            unit = part["unit"].strip("[")[0].lower()
            number = ms // _UNITS_MS[unit] % (60 if unit != "h" else 12 if of_half else 24)
            number = ms // _UNITS_MS[unit] if part["total"] else number or 12 * (unit == "h" and of_half)
            shown += f"{number:0{min(2, len(part['unit'].strip('[]')))}}"
            shown += f".{ms % 1000:03}"[: len(part["fraction"] or "")]
        elif part["half"]:
            shown += "PM" if hour % 24 >= 12 else "AM"
        else:
            shown += part["quoted"] or part["escaped"] or part["sign"] or ""
    return " ".join(shown.split())


def _digits(value: Decimal, digits: str) -> str:
    whole, _, fraction = digits.partition(".")
    value = value.scaleb(-3 * (len(whole) - len(whole.rstrip(","))))
    rounded = value.quantize(Decimal(1).scaleb(-len(fraction)), ROUND_HALF_UP)
    least = whole.count("0")
    first, _, last = f"{rounded:{',' if ',' in whole.rstrip(',') else ''}f}".partition(".")
    first = "" if rounded < 1 and not least else first if "," in first else first.zfill(least)
    kept = fraction.count("0")
    last = last[:kept] + last[kept:].rstrip("0")
    return f"{first}.{last}" if last else first
