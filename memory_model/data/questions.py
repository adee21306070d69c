"""Questions with checkable answers, made by rule from prose.

The answer is a span of the passage or its title. Words are left out and titles described, because people do not ask
in the words of the text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from memory_model.references import sentences

_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE = re.compile(rf"\b(?:\d{{1,2}} )?(?:{_MONTH})(?: \d{{1,2}}(?:,|\b))?(?: \d{{4}})?\b")
_YEAR = re.compile(r"(?<![\d,.$£-])(?:1[0-9]{3}|20[0-3][0-9])s?\b(?![,.]?\d)")
_NUMBER = re.compile(
    r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?: (?:percent|per cent|%|million|billion|thousand|feet|metres|meters|miles|"
    r"kilometres|km|inches|pounds|dollars|years|days|hours|bytes|bits|MB|GB|kg|tons))?\b(?![\w-])"
)
_NAME = re.compile(
    r"(?:[A-Z][\w'’-]*[a-z]|[A-Z]{2,}[a-z\d]*|[A-Z]\.)"
    r"(?:\s(?:(?:of|the|de|van|von|du|la)\s)?(?:[A-Z][\w'’-]*[a-z]|[A-Z]{2,}|[A-Z]\.))*"
)
_IS_A = re.compile(
    r"^(?P<who>[A-Z][^,;:()]{2,60}?) (?P<verb>is|was|are|were) (?P<what>(?:an?|the|one of the) [^;:()]{4,90})"
)
# Capitalised at the head of a sentence or by habit, but no name.
_DULL = re.compile(
    r"The|This|That|These|Those|It|He|She|They|We|You|I|In|On|At|A|An|If|When|While|As|But|And|Or|For|To|"
    r"From|By|With|However|There|Here|Its|His|Her|Their|Also|See|Note|Most|Some|Many|All|No|Not|One|Such|"
    r"After|Before|Because|Since|What|Which|Who|How|Why|Where|Then|Thus|So|Though|Although|During|Each|"
    r"Every|Any|Both"
)
_BE = re.compile(r"^(?P<subject>[A-Z0-9][^,;:()]{2,80}?) (?P<be>is|was|are|were) ")
_PREPOSITIONS = frozenset("in at near from to by on of for with as until since".split())  # noqa: SIM905
_BREAK = re.compile(r"[;:(]| which | who | that |, (?:and|or|but|as|which|who) |\. ")
_WORDS = re.compile(r"\S+")
_GENITIVES = ("'s", "’s")


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the line or sentence that answers it."""

    question: str
    answer: str
    line: str


def refers_to(text: str, question: Question) -> bool:
    """Whether a text may answer the question: it holds the answering line, or the answer itself."""
    return question.line in text or question.answer.lower() in text.lower()


def prose_questions(title: str, text: str, rng: random.Random, most: int = 6) -> list[list[Question]]:
    """Up to `most` questions about a passage, each in one way; empty when nothing in it can be asked for."""
    found: list[Question] = []
    described = _description(text)
    for body, _ in sentences(text):
        if 30 <= len(body) <= 400:
            found += _cloze(title, body, described, rng)
            found += _is_a(title, body, rng)
            found += _subject(title, body, described, rng)
    found += _definition(title, text, rng)
    found += _quoted(title, text, rng)
    found = [q for q in found if q.answer.lower() not in q.question.lower()]
    rng.shuffle(found)
    return [[q] for q in found[:most]]


def _cloze(title: str, sentence: str, described: str, rng: random.Random) -> Iterator[Question]:
    taken: list[tuple[int, int]] = []
    for pattern, kind in ((_DATE, "date"), (_YEAR, "year"), (_NUMBER, "number"), (_NAME, "name")):
        for match in pattern.finditer(sentence):
            start, end = match.span()
            answer = match.group().strip(" ,")
            if any(start < b and a < end for a, b in taken) or not answer:
                continue
            if kind == "name" and (
                start == 0 or not _is_name(answer) or sentence[end : end + 2] in _GENITIVES
            ):
                continue
            if kind == "number" and len(answer) < 2:
                continue
            taken.append((start, end))
            if kind == "name" and answer.lower() == title.lower():
                continue
            asked = _inverted(sentence, start, start + len(answer), kind, rng) if rng.random() < 0.5 else ""
            asked = asked or _in_place(title, sentence, start, start + len(answer), kind, rng)
            yield Question(_renamed(asked, title, described, rng), answer, sentence)


def _is_name(text: str) -> bool:
    dull = _DULL.fullmatch(text) or text.endswith(_GENITIVES)
    return not dull and len(text) >= 3 and len(text.split()) <= 6


def _in_place(title: str, sentence: str, start: int, end: int, kind: str, rng: random.Random) -> str:
    before, after = sentence[:start], sentence[end:]
    word_before = before.split()[-1].lower() if before.split() else ""
    word_after = (after.split() or [""])[0]
    if kind == "date":
        wh = rng.choice(("what date", "which date", "when"))
    elif kind == "year":
        wh = rng.choice(("what year", "which year"))
    elif kind == "number":
        counted = word_after.isalpha() and word_after.endswith("s")
        wh = "how many" if counted else rng.choice(("what number", "how much"))
    elif word_before in ("in", "at", "near", "from", "to", "of"):
        wh = rng.choice(("which place", "what", "where", "what place"))
    elif word_before in ("by", "with", "and", "for"):
        wh = rng.choice(("whom", "who", "what", "which person"))
    else:
        wh = rng.choice(("what", "which", "who", "what"))
    if rng.random() < 0.5:  # only the clause around it, as people shorten
        before = _tail(before, rng.randint(5, 14))
        after = _head(after, rng.randint(0, 8))
    words = before.split()
    if words and words[0] in ("He", "She", "It", "They") and title:
        before = f"{title} {' '.join(words[1:])} "
    if rng.random() < 0.3:  # and people leave words out
        before, after = _thinned(before, rng), _thinned(after, rng)
    body = " ".join(f"{before} {wh} {after}".split()).rstrip(" .,;:")
    if title and title.lower() not in body.lower() and rng.random() < 0.6:
        body = rng.choice(("{t}: {b}", "About {t}: {b}", "{b}, speaking of {t}")).format(t=title, b=body)
    return body[0].upper() + body[1:] + "?"


def _inverted(sentence: str, start: int, end: int, kind: str, rng: random.Random) -> str:
    """The sentence as a question that begins with its question word; nothing where the rule does not apply."""
    match = _BE.match(sentence)
    if match is None or start < match.end("be"):
        return ""
    before = sentence[match.end("be") : start].split()
    after = _head(sentence[end:], rng.randint(0, 10))
    preposition = before.pop() if before and before[-1].lower() in _PREPOSITIONS else ""
    subject = match["subject"]
    if subject.split()[0] in ("The", "A", "An", "It", "He", "She", "They", "This", "In", "Its", "His", "Her"):
        subject = subject[0].lower() + subject[1:]
    if kind in ("date", "year"):
        wh = rng.choice(("When", "In what year" if kind == "year" else "On what date"))
    elif kind == "number":
        return ""
    elif preposition in ("in", "at", "near", "from", "to"):
        wh = rng.choice(("Where", f"{preposition.capitalize()} what place"))
    elif preposition == "by":
        wh = rng.choice(("By whom", "Who"))
    else:
        wh, before = rng.choice(("What", "Which", "Who")), [*before, preposition]
    body = " ".join([wh, match["be"], subject, *before, after])
    return " ".join(body.split()).rstrip(" .,;:") + "?"


def _subject(title: str, sentence: str, described: str, rng: random.Random) -> Iterator[Question]:
    """Who or what the sentence speaks of, by its description or without: the answer is the passage's title."""
    first, _, rest = sentence.partition(" ")
    if title and sentence.startswith(f"{title} "):
        first, rest = title, sentence[len(title) + 1 :]
    elif first not in ("He", "She", "It"):
        return
    if len(rest.split()) < 5 or title.lower() in rest.lower():
        return
    wh = "Who" if first in ("He", "She") else rng.choice(("What", "Which", "Who or what"))
    if rng.random() < 0.5:
        rest = _head(rest, rng.randint(6, 16))
    what = described.partition(" ")[2]
    if what and what not in sentence and rng.random() < 0.6:
        ways = (
            "Which {w} {r}?", "What {w} {r}?", "What is the name of the {w} that {r}?",
            "Who or what is the {w} that {r}?",
        )  # fmt: skip
        yield Question(rng.choice(ways).format(w=what, r=rest.rstrip(" .,;:")), title, sentence)
        return
    yield Question(f"{wh} {rest.rstrip(' .,;:')}?", title, sentence)


def _quoted(title: str, text: str, rng: random.Random) -> Iterator[Question]:
    """A sentence letter for letter, found by a name, a number or the phrase that it begins with."""
    bodies = [body for body, _ in sentences(text) if 40 <= len(body) <= 160]
    if not bodies or rng.random() < 0.5:
        return
    body = rng.choice(bodies)
    places = [
        m.group().strip(" ,") for p in (_YEAR, _NUMBER, _NAME) for m in p.finditer(body) if m.start() > 0
    ]
    marks = [mark for mark in places if len(mark) > 2 and not _DULL.fullmatch(mark) and text.count(mark) == 1]
    if marks and rng.random() < 0.6:
        ways = (
            "Quote the sentence about {m}.", "What exactly does the text say about {m}?", "Which sentence names {m}?",
        )  # fmt: skip
        yield Question(rng.choice(ways).format(m=rng.choice(marks)), body, body)
        return
    begins = _head(body, rng.randint(3, 6))
    ways = (
        'Complete the sentence: "{b}"', 'How does the sentence go on that begins "{b}"?', 'Quote: "{b} …"',
    )  # fmt: skip
    yield Question(rng.choice(ways).format(b=begins), body, body)


def _description(text: str) -> str:
    """What the first sentence calls its subject ("the Swedish engineer"), if it does."""
    match = _IS_A.match(next((body for body, _ in sentences(text)), ""))
    phrase = _phrase(match["what"], 6) if match else ""
    article, _, rest = phrase.partition(" ")
    return f"the {rest}" if article in ("a", "an") and rest else ""


def _renamed(question: str, title: str, described: str, rng: random.Random) -> str:
    """Now and then the title gives way to its description, so that two sentences are needed for the answer."""
    if not described or not title or title not in question or rng.random() < 0.6:
        return question
    renamed = question.replace(title, described, 1)
    return renamed[0].upper() + renamed[1:]


def _thinned(text: str, rng: random.Random) -> str:
    return " ".join(word for word in text.split() if rng.random() < 0.85)


def _tail(text: str, words: int) -> str:
    found = list(_WORDS.finditer(text))
    return text if len(found) <= words else text[found[-words].start() :]


def _head(text: str, words: int) -> str:
    found = list(_WORDS.finditer(text))
    return text if len(found) <= words else text[: found[words - 1].end()] if words else ""


def _is_a(title: str, sentence: str, rng: random.Random) -> Iterator[Question]:
    match = _IS_A.match(sentence)
    if match is None:
        return
    answer = _phrase(match["what"], 12)
    who = title if match["who"] in ("He", "She", "It", "They", "This") and title else match["who"]
    if answer:
        person = "Who" if match["who"] in ("He", "She") else "What"
        yield Question(f"{person} {match['verb']} {who}?", answer, sentence)


def _definition(title: str, text: str, rng: random.Random) -> Iterator[Question]:
    first = next((body for body, _ in sentences(text)), "")
    gloss = _phrase(first, 14)
    if not title or not len(gloss.split()) >= 3 or title.lower() in gloss.lower():
        return
    asks = ("What is {t}?", "What does {t} mean?", "What is meant by {t}?", "Define {t}.")
    yield Question(rng.choice(asks).format(t=title), gloss, first)
    if len(title) > 3:
        back = ("Which word means: {g}?", "What is the name for {g}?", "What do you call {g}?")
        yield Question(rng.choice(back).format(g=gloss[0].lower() + gloss[1:]), title, first)


def _phrase(text: str, words: int) -> str:
    """The text up to its first break, if that is short enough; else nothing."""
    phrase = _BREAK.split(text, maxsplit=1)[0].strip(" .,")
    return phrase if 1 <= len(phrase.split()) <= words else ""
