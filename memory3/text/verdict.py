"""The verdict of an answer: whether it was read from memories, is the model's own, or is a refusal and why.

Torch-free and standalone. Two signals tell a grounded answer from the model's own: the share of attention that its
tokens paid to memories, and the share of its words that stand in what was read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from memory3.errors import InvalidInput


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

    share: of attention to memories, a mean over the answer's tokens; known where attention was recorded. It depends on
    the model's memory heads: None where it was not measured, and then attention does not count. words: share of the
    answer's words, without those of the question, that what was read holds.
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


_WORD = re.compile(r"\w+")
_ALONE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
"""Scripts in which every character is a word."""


def words_found(answer: str, question: str, texts: Sequence[str]) -> float | None:
    """The share of the answer's words that the texts hold; None where the question has all of them.

    Words of the question are no evidence: an answer that repeats it has read nothing yet.
    """
    asked = set(_words(question))
    own = [word for word in _words(answer) if word not in asked]
    if not own:
        return None
    known = {word for text in texts for word in _words(text)}
    return sum(word in known for word in own) / len(own)


def _words(text: str) -> list[str]:
    return [part for word in _WORD.findall(text.casefold()) for part in (word if _ALONE.match(word) else [word])]
