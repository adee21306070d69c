"""The refusal of a model where nothing it read answers: its sentence, its bias, and how to recognise it.

Torch-free and standalone.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory3.errors import InvalidInput

if TYPE_CHECKING:
    from memory3.text.chat import ChatTemplate

SENTENCE = "I don't know."
"""What tuning teaches as the answer to a question that nothing read answers."""
PUNCTUATION = str.maketrans("", "", string.punctuation + "’‘“”")
_REFUSAL = re.compile(
    r"((im |i am )?(very |so )?(sorry|afraid) (but |that )?)?"
    r"(i (really )?(do not|dont|cannot|cant|am unable to|am not able to) (know|say|tell|answer)\b"
    r"|(you|we) (do not|dont) know$"  # a model that repeats the person of the question: `How do I …?`
    r"|im (unable|not able) to (say|tell|answer)\b"
    r"|i (do not|dont) have (any |enough |that |this |the )?information\b"
    r"|there is no information($| (about|on|in|given|available)\b)"
    r"|(i am|im) not sure\b"
    r"|(it|that|this|the answer) (is not|isnt) (known|mentioned|stated|given|specified)\b"
    r"|(unknown|not (known|mentioned|stated|given|specified))$)"
)
"""Of an answer's words, without punctuation."""
_ALL_THE_SAME = re.compile(r"\b(but|however)\b")


def is_refusal(answer: str, sentence: str) -> bool:
    """Whether an answer begins with a refusal in one of a few usual wordings, and does not answer all the same.

    sentence: with which the model refuses, in any language.
    """
    words, own = _plain(answer), _plain(sentence)
    if begun := _REFUSAL.match(words) or re.match(rf"{re.escape(own)}(?!\w)", words):
        return _ALL_THE_SAME.search(words, begun.end()) is None
    return False


def _plain(text: str) -> str:
    return " ".join(text.lower().translate(PUNCTUATION).split())


@dataclass(frozen=True)
class Refusal:
    """How readily a model refuses. Raises InvalidInput.

    bias: logits added to the first token of `sentence` at an answer's first token, where memories are read. More
    refuses more of what nothing answers, and more of what something does; `memory-model calibrate` chooses it.
    bias_alone: the same where a single memory is read; None: as bias.
    """

    sentence: str = SENTENCE
    bias: float = 0.0
    bias_alone: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if not (isinstance(self.sentence, str) and self.sentence.strip()):
            raise InvalidInput(f"the sentence of a refusal must be a text, not {self.sentence!r}")
        for bias in (self.bias, 0 if self.bias_alone is None else self.bias_alone):
            if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= 100:
                raise InvalidInput(f"the bias of a refusal must be a number from -100 to 100, not {bias!r}")

    def bias_for(self, memories: int) -> float:
        """The bias of an answer that reads so many memories; 0 without any."""
        alone = self.bias if self.bias_alone is None else self.bias_alone
        return 0.0 if memories == 0 else alone if memories == 1 else self.bias

    def first_token(self, chat: ChatTemplate) -> int:
        """The token that begins the sentence in the assistant's turn."""
        return chat.encode_answer(self.sentence)[0]
