"""`Drafter`: the tokens that probably follow in an answer, looked up in what it reads and in what was said before.

Answers copy names, numbers and phrases of their memories and of the prompt. Where the last tokens of an answer occur in
these texts, those that follow there are its draft. The decoder runs a draft in one step with the next token; it counts
as far as the very tokens are chosen (prompt lookup decoding; "Inference with Reference", Yang et al. 2023). So a
draft changes how long an answer takes, and what is chosen is up to the sampler alone (decision 0060).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST = 4
"""Tokens that are compared, at most: beyond these a longer match says no more."""
OCCURRENCES = 32
"""Of a token in a text, that are compared at most: a comma is everywhere."""
MOST = 7
"""Tokens of a draft: kernels take rows in pairs, and the token before the draft is one."""
COST = 0.2
"""Of a drafted token, as a share of a step's time; see `docs/benchmarks.md`."""
GAIN = 1.05
"""What a step must be expected to gain before anything is drafted: estimates are rough."""
PRIOR = {
    ("memory", True): (0.7, 0.8, 0.85, 0.9),
    ("memory", False): (0.25, 0.5, 0.5, 0.5),
    ("text", True): (0.25, 0.5, 0.6, 0.85),
    ("text", False): (0.15, 0.25, 0.3, 0.6),
}
"""How often the token after a match is the next one, as measured: by source, by whether the same token follows wherever
the match occurs, and by its length from 1 on."""
WEIGHT = 6.0
"""Matches that the prior counts as."""
FADING = 0.9
"""What an earlier match still counts after each further one."""
_BREAK = -1


class _Texts:
    """Token ids of texts in a row, and where each id stands. newest: whether late occurrences come first."""

    def __init__(self, *, newest: bool) -> None:
        self.ids: list[int] = []
        self._newest = newest
        self._indices: dict[int, list[int]] = {}

    def append(self, token: int) -> None:
        """The next token of the last text."""
        self._indices.setdefault(token, []).append(len(self.ids))
        self.ids.append(token)

    def extend(self, tokens: Iterable[int]) -> None:
        """A whole text."""
        for token in tokens:
            self.append(token)
        self.ids.append(_BREAK)

    def match(self, ending: Sequence[int]) -> tuple[int, int, bool]:
        """The most tokens at an ending that occur here, the index of what follows them, and whether it always does.

        The length is 0 where the last token does not occur.
        """
        found = self._indices.get(ending[-1], []) if ending else []
        length, index, always = 0, 0, True
        for end in found[: -OCCURRENCES - 1 : -1] if self._newest else found[:OCCURRENCES]:
            if end + 1 == len(self.ids) or self.ids[end + 1] == _BREAK:
                continue
            same = 1
            while same < min(LONGEST, len(ending), end + 1) and self.ids[end - same] == ending[-1 - same]:
                same += 1
            if same > length:
                length, index, always = same, end + 1, True
            elif same == length and self.ids[end + 1] != self.ids[index]:
                always = False
        return length, index, always


@dataclass
class _Match:
    """Where the answer's ending was found. index: of the token that follows there; always: wherever it occurs."""

    source: str
    length: int
    index: int
    always: bool


class Drafter:
    """Drafts for one answer; the same tokens and memories give the same drafts. prompt: its token ids."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._texts = {"memory": _Texts(newest=False), "text": _Texts(newest=True)}
        for token in prompt:
            self._texts["text"].append(token)
        self._rates = {s: [_Rate(p) for p in rates] for s, rates in PRIOR.items()}
        self._match: _Match | None = None

    def read(self, memories: Iterable[Sequence[int]]) -> None:
        """The token ids of the memories' texts that are read from now on, best first, instead of those before."""
        texts = self._texts["memory"] = _Texts(newest=False)
        for memory in memories:
            texts.extend(memory)
        self._match = self._find()

    def add(self, token: int) -> None:
        """The answer's next token, whoever drafted it."""
        match, self._match = self._match, None
        self._texts["text"].append(token)
        if match is not None:
            right = self._following(match, 1) == [token]
            self._rate(match, 0).add(right)
            if right and match.always and self._following(match, 2)[1:]:
                self._match = _Match(match.source, match.length + 1, match.index + 1, always=True)
        self._match = self._match or self._find()

    def draft(self, most: int) -> list[int]:
        """At most so many tokens that probably follow; as many as shorten the answer's time most, so often none."""
        if self._match is None or most < 1:
            return []
        tokens = self._following(self._match, min(most, MOST))
        best, chosen, likely, expected = GAIN, 0, 1.0, 1.0
        for count in range(1, len(tokens) + 1):
            likely *= self._rate(self._match, count - 1).value
            expected += likely
            if (gain := expected / (1 + COST * count)) > best:
                best, chosen = gain, count
        return tokens[:chosen]

    def _find(self) -> _Match | None:
        """The longest match of the answer's ending; of equal ones that in the memories."""
        ending = self._texts["text"].ids[-LONGEST:]
        found = [_Match(source, *texts.match(ending)) for source, texts in self._texts.items()]
        best = max(found, key=lambda m: m.length)
        return best if best.length else None

    def _following(self, match: _Match, count: int) -> list[int]:
        ids = self._texts[match.source].ids[match.index : match.index + count]
        return ids[: ids.index(_BREAK)] if _BREAK in ids else ids

    def _rate(self, match: _Match, ahead: int) -> _Rate:
        """Of the token so far ahead of the next one, if those between are right."""
        rates = self._rates[match.source, match.always]
        return rates[min(match.length + ahead, len(rates)) - 1]


class _Rate:
    """How often something came true, lately rather than long ago."""

    def __init__(self, prior: float) -> None:
        self._true, self._all = WEIGHT * prior, WEIGHT

    @property
    def value(self) -> float:
        """Between 0 and 1."""
        return self._true / self._all

    def add(self, came_true: bool) -> None:
        """One more."""
        self._true, self._all = FADING * self._true + came_true, FADING * self._all + 1
