"""Split a document's text into references: at most 128 tokens each, at sentence boundaries, title in front.

A reference is read without its neighbours, so each begins with its document's title, a heading goes with the text
below it, and a sentence is cut only when it alone is longer than a reference. It is found by one vector, so a section
begins a reference of its own unless little stands above it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from memory3.errors import InvalidInput
from memory3.text.paragraphs import CLOSING, END, END_UNSPACED, NUMBER, is_heading, is_question, is_run_in, unwrapped

_OPENING = "「『（《“‘"
"""Of a quotation, or an aside, in scripts without spaces."""
_SENTENCE_END = re.compile(
    rf"(?<=[{END}])[{CLOSING}]*\s+(?=[\"'(\[]*[^\sa-z])|\n+"
    rf"|(?<=[{END_UNSPACED}])(?:[{CLOSING}]+(?=[{_OPENING}])|(?![\s{END}{CLOSING}]))"
)
"""White space, or nothing behind a full stop of a script without it: a sentence goes on behind a quotation in it."""
_PAUSE = "，、；：﹑､"
"""Within sentences of scripts without spaces."""
_SPEAKER = re.compile(r"^(User|Assistant|System): ", re.MULTILINE)
"""What begins the part of each in a reference of turns."""
_PROBE_CHARACTERS = 64
"""For each token; nearly all tokens have fewer."""
_HEADINGS = 3
"""Lines above a text that go with it, such as those of a part, a chapter and a section; more are a list or verses."""
_SECTION_SHARE = 4
"""A reference is no longer added to at a heading once it has so much of the limit, a quarter, without its title."""


class Sentence(NamedTuple):
    """separator: before it, a line break, a space or nothing. heading: it belongs to the text that follows.

    run_in: a heading in the line of its text, which looks like any short sentence; it stays with the next sentence
    only where both fit.
    """

    text: str
    separator: str
    heading: bool = False
    run_in: bool = False


def sentences(text: str) -> Iterator[Sentence]:
    """Lines of wrapped paragraphs run on; a line break stays a line break, other white space becomes one space.

    A question is the heading of the line below it, and a line below a question is no heading. Within a line, a question
    is the heading of the next sentence, and so is a short first sentence: `4. Open day. It takes place on 9 May.`
    """
    asked = False
    lines = [line for line in unwrapped(text).split("\n") if line.strip()]
    for line, below in zip(lines, [*lines, ""][1:], strict=True):
        ranges, asks = list(sentence_ranges(line)), is_question(line)
        heading = bool(below) and (asks or (is_heading(" ".join(line.split()), below) and not asked))
        asked = asks
        for n, (start, end) in enumerate(ranges):
            body = " ".join(line[start:end].split())
            separator = "\n" if n == 0 else " " if start > ranges[n - 1][1] else ""
            run_in = n < len(ranges) - 1 and (is_question(body) or (n == 0 and is_run_in(body)))
            yield Sentence(body, separator, run_in or (len(ranges) == 1 and heading), run_in)


def sentence_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Characters [start, end) of each sentence of a reference, as it is written there."""
    start, begins_line = 0, True
    for match in [*_SENTENCE_END.finditer(text), None]:
        ends_line = match is None or "\n" in match.group()
        if match and begins_line and not ends_line and NUMBER.fullmatch(text[start : match.start()].strip()):
            continue  # the number of a heading or an item ends no sentence
        end = match.start() if match else len(text)
        end += len(match.group().rstrip()) if match else 0  # closing quotes
        if body := text[start:end].strip():
            first = start + text[start:end].index(body[0])
            yield first, first + len(body)
        start, begins_line = (match.end() if match else end), ends_line


def title_line(title: str) -> str:
    """What stands in front of each reference of a document: its title and a line break, or nothing."""
    return f"{' '.join(title.split())}\n" if title.strip() else ""


def fitting_title(title: str, count_tokens: Callable[[str], int], limit: int = 128) -> str:
    """The title, or of one that takes more than three quarters of a reference what fits into them, cut at a space.

    Titles are as long as people make them: a mail's subject, a web page's list of search words.
    """
    most = limit * 3 // 4

    def with_break(part: str) -> int:
        return count_tokens(f"{part}\n")

    whole = " ".join(title.split())
    return title if not whole or with_break(whole) <= most else _fit(whole, "", with_break, most)[0]


def split(text: str, title: str, count_tokens: Callable[[str], int], limit: int = 128, overlap: int = 0) -> list[str]:
    """References of `text`, each `title`, a line break and whole sentences, at most `limit` tokens.

    overlap: each reference but the first begins with the last whole sentences of the one before, as many as have at
    most so many tokens. Raises InvalidInput for a title that leaves too little room, unlike a `fitting_title`, or an
    overlap of more than half.
    """
    head = title_line(title)
    if head and count_tokens(head) > limit * 3 // 4:
        raise InvalidInput(f"the title has {count_tokens(head)} tokens, a reference only {limit}: give a shorter one")
    if not 0 <= overlap <= limit // 2:
        raise InvalidInput(f"an overlap of {overlap} tokens, expected 0 to {limit // 2}")
    references: list[str] = []
    current: list[Sentence] = []
    for sentence in sentences(text):
        candidate = [*current, sentence]
        headings = _headings_at_end(current)
        above = current[: len(current) - len(headings)]
        full = _begins_section(above, headings, sentence) and count_tokens(_joined(above)) >= limit // _SECTION_SHARE
        if not full and _fits(head + _joined(candidate), count_tokens, limit):
            current = candidate
            continue
        run_in = bool(headings) and headings[-1].run_in
        while run_in and headings and not _fits(head + _joined([*headings, sentence]), count_tokens, limit):
            headings = headings[1:]
        if whole := current[: len(current) - len(headings)]:
            references.append(head + _joined(whole))
        current = [*_tail(whole, count_tokens, overlap), *headings, sentence]
        while len(current) > len(headings) + 1 and not _fits(head + _joined(current), count_tokens, limit):
            current = current[1:]  # the sentence itself matters more than what is repeated
        if not _fits(head + _joined(current), count_tokens, limit):
            *pieces, rest = _fit(_joined(current), head, count_tokens, limit)
            references += [head + piece for piece in pieces]
            current = [Sentence(rest, "")]
    if current:
        references.append(head + _joined(current))
    return references


def turn_references(
    turns: Sequence[tuple[str, str]], count_tokens: Callable[[str], int], limit: int = 128
) -> list[str]:
    """References of (role, content), at most `limit` tokens each; a line has the form `User: My sister is Anna.`.

    A reference holds as many whole turns as fit. A longer turn is split at sentences, its speaker before each part.
    """

    def tokens_said(speaker: str, text: str) -> int:
        return count_tokens(speaker + text)

    references: list[str] = []
    for role, content in turns:
        speaker = f"{role.capitalize()}: "
        for part in split(content, "", partial(tokens_said, speaker), limit):
            together = f"{references[-1]}\n{speaker}{part}" if references else ""
            if together and count_tokens(together) <= limit:
                references[-1] = together
            else:
                references.append(speaker + part)
    return references


def said_by_people(reference: str) -> str:
    """What the user said in a reference of `turn_references`."""
    _, *parts = _SPEAKER.split(reference)
    return "\n".join(text for role, text in zip(parts[::2], parts[1::2], strict=True) if role == "User")


def _joined(parts: Sequence[Sentence]) -> str:
    """Sentences as text; the separator before the first one is left out."""
    return "".join(part.text if n == 0 else part.separator + part.text for n, part in enumerate(parts))


def _headings_at_end(parts: Sequence[Sentence]) -> Sequence[Sentence]:
    """The last sentences that are headings; one where there are more than a text has."""
    start = len(parts)
    while start > 0 and parts[start - 1].heading:
        start -= 1
    return parts[start:] if len(parts) - start <= _HEADINGS else parts[-1:]


def _begins_section(above: Sequence[Sentence], headings: Sequence[Sentence], text: Sentence) -> bool:
    """Whether these headings, between two texts, begin a section: neither lines of a list nor headings in a line do."""
    return bool(above and headings) and not (above[-1].heading or headings[0].run_in or text.heading)


def _tail(parts: Sequence[Sentence], count_tokens: Callable[[str], int], most: int) -> Sequence[Sentence]:
    """The last sentences that have at most `most` tokens together, but never all of them."""
    start = len(parts)
    while start > 1 and count_tokens(_joined(parts[start - 1 :])) <= most:
        start -= 1
    return parts[start:]


def _fits(text: str, count_tokens: Callable[[str], int], limit: int) -> bool:
    """Whether a text has at most so many tokens; of a long one only the beginning is counted where that is too much."""
    probe = text[: _PROBE_CHARACTERS * limit]
    return count_tokens(probe) <= limit and (len(probe) == len(text) or count_tokens(text) <= limit)


def _fit(sentence: str, head: str, count_tokens: Callable[[str], int], limit: int) -> list[str]:
    """A sentence, or one with its heading, in as few pieces as fit, cut at spaces and pauses, or inside a word."""
    pieces = []
    rest = sentence
    while not _fits(head + rest, count_tokens, limit):
        window = _PROBE_CHARACTERS * limit
        while window < len(rest) and count_tokens(head + rest[:window]) <= limit:
            window *= 2
        ends = range(1, min(window, len(rest)) + 1)
        longest = max(1, bisect_right(ends, limit, key=lambda end: count_tokens(head + rest[:end])))
        gap = max(rest.rfind(" ", 1, longest + 1), *(rest.rfind(sign, 0, longest) + 1 for sign in _PAUSE))
        cut = gap if gap > longest // 2 else longest
        pieces.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*pieces, rest] if rest else pieces
