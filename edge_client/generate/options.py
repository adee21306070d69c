"""How an answer is drawn and where it ends: the options of `generate` and `send`, as one checked value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from edge_client.generate.constraint import TokenConstraint
from memory_model.errors import InvalidInput

MOST_LOGPROBS = 20
"""Likeliest tokens that can be asked for, as in OpenAI's interface."""


class SamplingOptions(TypedDict, total=False):
    """The keyword arguments of `generate` and `send`, all optional; `Sampling` says what each means."""

    max_tokens: int
    stop: Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    logprobs: int | None
    constraint: TokenConstraint | None


@dataclass(frozen=True)
class Sampling:
    """Checked options. Raises InvalidInput that names the option, NaN and wrong types included.

    They work on the logits in this order.

    logit_bias: {token id: number added to its logit}, from -100 (never) to 100 (always).
    repetition_penalty: r > 1 makes tokens that were there unlikelier: a positive logit is divided by r, a
    negative one multiplied (Keskar et al. 2019). frequency_penalty, presence_penalty: -2 to 2; subtracted
    from a token's logit once for every time it was there, and once if it was there at all. All three look at
    every token of the whole prompt as the model reads it (earlier turns, system prompt and the template's
    scaffolding included; memories not) and of the answer so far.
    temperature: divides the logits; 0 takes the likeliest token and then what follows has no effect.
    top_k: keep the k likeliest tokens; 0 keeps all. top_p: of these, keep the fewest likeliest whose
    probabilities reach p of theirs. min_p: of these, keep those at least min_p times as likely as the
    likeliest. Of equally likely tokens the lower id counts as likelier.

    seed: makes drawing repeatable. logprobs: None for none, n for the chosen token's log-probability and
    those of the n likeliest. max_tokens: longest answer. stop: strings before which the answer ends.
    constraint: rules tokens out after bias and penalties; made for this one answer.
    """

    max_tokens: int = 256
    stop: Sequence[str] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    constraint: TokenConstraint | None = None

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        _whole("max_tokens", self.max_tokens, 1, None)
        _whole("top_k", self.top_k, 0, None)
        _number("temperature", self.temperature, 0, 100)
        _number("top_p", self.top_p, 0, 1, above=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, 100, above=True)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**128)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidInput(
                f"logit_bias must be a mapping of token ids to numbers, not {self.logit_bias!r}"
            )
        for token, bias in self.logit_bias.items():
            _whole("a token id of logit_bias", token, 0, None)
            _number(f"logit_bias of token {token}", bias, -100, 100)
        if isinstance(self.stop, str) or not isinstance(self.stop, Sequence):
            raise InvalidInput(f"stop must be a sequence of strings, not {self.stop!r}")
        if not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidInput("stop must hold non-empty strings")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Sampling:
        """From keyword arguments; raises InvalidInput for one that does not exist."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise InvalidInput(f"there is no option {', '.join(unknown)}: the options are {', '.join(known)}")
        return cls(**options)

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise InvalidInput for a biased token that the model does not have."""
        if self.logit_bias and (highest := max(self.logit_bias)) >= vocabulary:
            raise InvalidInput(f"logit_bias names token {highest}, the model's ids are 0 to {vocabulary - 1}")

    @property
    def penalises(self) -> bool:
        """Whether any penalty has an effect."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)


def _whole(name: str, value: object, least: int, most: int | None) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        limit = f"{least} to {most}" if most is not None else f"{least} or more"
        raise InvalidInput(f"{name} must be a whole number, {limit}, not {value!r}")


def _number(name: str, value: object, least: float, most: float, *, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a number, not {value!r}")
    if not least <= value <= most or (above and value == least):
        limit = f"above {least:g} and at most {most:g}" if above else f"{least:g} to {most:g}"
        raise InvalidInput(f"{name} must be {limit}, not {value!r}")
