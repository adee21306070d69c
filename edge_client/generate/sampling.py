"""How a token is chosen and shown: the options of an answer, logits to one token, tokens to text.

Bias, penalties, constraint, temperature, top-k, top-p, min-p, and a draw. Greedy is one argmax; nothing here sorts
the whole vocabulary where a few tokens are likely. Of the text only whole characters leave, and stop strings are found
across tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Protocol, TypedDict

import numpy as np
from pydantic import ConfigDict, Field, SkipValidation, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from memory3.errors import InvalidInput
from memory3.text.tokenizer import Tokenizer

MOST_LOGPROBS = 20
"""Likeliest tokens that can be requested, as in OpenAI's interface."""


class TokenConstraint(Protocol):
    """Rules tokens out, such as a grammar. Made for one answer, used by the thread that computes it."""

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """The logits float32 [vocabulary] with -inf where a token is not permitted; may change them in place."""
        ...

    def took(self, token: int) -> None:
        """The token was chosen."""
        ...


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
    citations: bool
    explain: bool
    only_documents: bool


_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_Stop = Annotated[str, Field(min_length=1)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]


@checked_dataclass(frozen=True, config=_STRICT)
class Sampling:
    """Checked options, made by `of`. They work on the logits in this order.

    logit_bias: {token id: number added to its logit}, from -100 (never) to 100 (always).
    repetition_penalty: r > 1 makes tokens that were there unlikelier: a positive logit is divided by r, a
    negative one multiplied (Keskar et al. 2019); it looks at every token of the whole prompt as the model reads
    it (earlier turns, system prompt and the template's scaffolding included; memories not) and of the answer so
    far. frequency_penalty, presence_penalty: -2 to 2; subtracted from a token's logit once for every time it was
    in the answer so far, and once if it was there at all.
    temperature: divides the logits; 0 takes the likeliest token and then what follows has no effect.
    top_k: keep the k likeliest tokens; 0 keeps all. top_p: of these, keep the fewest likeliest whose
    probabilities reach p of theirs. min_p: of these, keep those at least min_p times as likely as the
    likeliest. Of equally likely tokens the lower id counts as likelier.

    seed: makes drawing repeatable. logprobs: None for none, n for the chosen token's log-probability and
    those of the n likeliest. max_tokens: longest answer. stop: strings before which the answer ends.
    constraint: rules tokens out after bias and penalties; made for this one answer.

    citations: name the memory that each part of the answer was read from, see `stream.Span`. explain: also measure what
    each memory contributed, by leaving it out (`stream.Contribution`); reads prompt and answer again for every memory.
    only_documents: an answer that would be the model's own (`memory3.text.verdict.Verdict`) becomes a refusal; its text
    comes at once, when it is complete.
    """

    max_tokens: Annotated[int, Field(ge=1)] = 512
    stop: list[_Stop] | tuple[_Stop, ...] = ()
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    frequency_penalty: _Penalty = 0.0
    presence_penalty: _Penalty = 0.0
    logit_bias: Mapping[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] = field(
        default_factory=dict
    )
    seed: Annotated[int, Field(ge=0, le=2**128)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    constraint: SkipValidation[TokenConstraint | None] = None
    citations: bool = False
    explain: bool = False
    only_documents: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Sampling:
        """From keyword arguments; raises InvalidInput that names the option which is wrong or does not exist."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise InvalidInput(f"there is no option {', '.join(unknown)}: the options are {', '.join(known)}")
        try:
            return cls(**options)
        except ValidationError as error:
            wrong = error.errors()[0]
            expected = wrong["msg"].partition(" should ")[2]
            raise InvalidInput(f"{wrong['loc'][0]} must {expected}, not {str(wrong['input'])[:60]!r}") from None

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise InvalidInput for a biased token that the model does not have."""
        if self.logit_bias and (highest := max(self.logit_bias)) >= vocabulary:
            raise InvalidInput(f"logit_bias names token {highest}, the model's ids are 0 to {vocabulary - 1}")


@dataclass(frozen=True)
class Picked:
    """A token, and with the option `logprobs` how likely it was, and the likeliest ones [(id, logprob)]."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one answer; the same seed gives the same tokens. One thread at a time.

    text: token ids of the prompt, at which the repetition penalty looks; `pick` counts what it returns.
    """

    def __init__(self, sampling: Sampling, vocabulary: int, text: Sequence[int] = ()) -> None:
        self.sampling = sampling
        penalties = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        self._penalises = penalties != (1, 0, 0)
        self._random = np.random.default_rng(sampling.seed)
        self._biased = np.fromiter(sampling.logit_bias, np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        counted = vocabulary if self._penalises else 0
        self._there = np.zeros(counted, bool)
        # Of the answer alone: every turn of a prompt ends with the token that is to end the answer.
        self._counts = np.zeros(counted, np.int64)
        if self._penalises:
            self._there[np.asarray(text, np.int64)] = True

    def pick(self, logits: np.ndarray, bias: tuple[int, float] | None = None) -> Picked:
        """A token from logits float32 [vocabulary], which are not changed. bias: of one token, this once."""
        changed = self._changed(logits)
        if bias is not None:
            changed = changed.copy() if changed is logits else changed
            changed[bias[0]] += bias[1]
        if self.sampling.temperature == 0:
            token = int(changed.argmax())
        else:
            tokens, weights = distribution(changed, self.sampling)
            reached = np.cumsum(weights)
            index = int(np.searchsorted(reached, self._random.random() * reached[-1], side="right"))
            token = int(tokens[min(index, len(weights) - 1)])
        if self._penalises:
            self._there[token] = True
            self._counts[token] += 1
        if self.sampling.constraint is not None:
            self.sampling.constraint.took(token)
        if self.sampling.logprobs is None:
            return Picked(token)
        return _with_logprobs(logits, token, self.sampling.logprobs)

    def _changed(self, logits: np.ndarray) -> np.ndarray:
        """Logits after bias, penalties and constraint; the same array if none applies."""
        s = self.sampling
        if not self._penalises and not len(self._biased) and s.constraint is None:
            return logits
        changed = logits.copy()
        changed[self._biased] += self._bias
        if self._penalises:
            seen = np.flatnonzero(self._there)
            values, counts = changed[seen], self._counts[seen]
            values = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
            values -= s.frequency_penalty * counts + s.presence_penalty * (counts > 0)
            changed[seen] = values
        return changed if s.constraint is None else s.constraint.allow(changed)


def distribution(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that may be drawn and their weights, which need not sum to 1.

    logits: float32 [vocabulary], after bias and penalties. sampling: with a temperature above 0.
    """
    s = sampling
    tokens = likeliest(logits, s.top_k or len(logits))
    # In float64 a temperature near 0 does not overflow; its least value keeps the division defined.
    weights = np.exp((logits[tokens].astype(np.float64) - float(logits.max())) / max(s.temperature, 1e-6))
    if s.top_p < 1:
        kept = _nucleus(weights, s.top_p)
        tokens, weights = tokens[kept], weights[kept]
    if s.min_p > 0:
        kept = np.flatnonzero(weights >= s.min_p * weights.max())
        tokens, weights = tokens[kept], weights[kept]
    return tokens, weights


def likeliest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values, ascending; of equal ones the first."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    larger = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(larger)]
    return np.sort(np.concatenate([larger, equal]))


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The fewest indices, likeliest first, whose weights reach top_p of all."""
    total = weights.sum()
    # All that are lighter than this do not add up to what is left out: only the others are sorted.
    likely = np.flatnonzero(weights >= (1 - top_p) * total / len(weights))
    likely = likely[np.argsort(-weights[likely], kind="stable")]
    return likely[: int(np.searchsorted(np.cumsum(weights[likely]), top_p * total)) + 1]


def _with_logprobs(logits: np.ndarray, token: int, count: int) -> Picked:
    """Of the model's own distribution, whatever the options made of it."""
    largest = float(logits.max())
    total = largest + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    top = likeliest(logits, count) if count else np.empty(0, np.int64)
    top = top[np.argsort(-logits[top], kind="stable")]
    return Picked(token, float(logits[token]) - total, tuple((int(t), float(logits[t]) - total) for t in top))


_INCOMPLETE = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of UTF-8's longest character: so many U+FFFD behind so many tokens are really broken bytes."""


def incomplete(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The last tokens of a text that ends inside a character, from the one in which it begins; else none."""
    for count in range(min(_LONGEST_CHARACTER, len(tokens) + 1)):
        before = tokens[max(len(tokens) - count - _LONGEST_CHARACTER, 0) : len(tokens) - count]
        if not tokenizer.decode(before).endswith(_INCOMPLETE):
            return list(tokens[len(tokens) - count :])
    return []


class StreamText:
    """The growing text of one answer. `push` returns what may be shown; `flush` the rest at the end.

    begun: tokens of a text that the answer goes on with; it may have been cut inside a character. turn: whether it is
    a turn of its own, whose text begins with its first character that is no white space: templates drop that before.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), begun: Sequence[int] = (), *, turn: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._pending = incomplete(tokenizer, begun)
        self._shown = len(tokenizer.decode(self._pending).rstrip(_INCOMPLETE)) if self._pending else 0
        self._before: list[int] = []
        self._held = ""
        self._opening = turn
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; returns new text, which may be empty. After a stop string `stopped` is True."""
        self._pending.append(token)
        piece = self._decoded()
        # Some tokenizers decode all bytes in a row as U+FFFD while the last character is incomplete.
        broken = len(piece) - len(piece.rstrip(_INCOMPLETE))
        if broken > 0 and min(broken, len(self._pending)) < _LONGEST_CHARACTER:
            return ""
        # A special token has no text, and what follows it would lose its space as at the beginning of a text.
        self._before, self._pending = self._pending if piece else [*self._before, *self._pending], []
        piece, self._shown = piece[self._shown :], 0
        return self._release(self._held + piece)

    def flush(self, *, cut: bool = False) -> str:
        """The end of the answer: everything that was held back. cut: without a character that is not whole."""
        piece = self._decoded()[self._shown :] if self._pending else ""
        rest = self._held + (piece.rstrip(_INCOMPLETE) if cut else piece)
        self._pending.clear()
        self._held = ""
        return "" if self.stopped else rest

    def _decoded(self) -> str:
        """Text of the pending tokens; SentencePiece drops a leading space, so they are read behind the last ones."""
        if not self._before or not self._tokenizer.opens_with_space:
            return self._tokenizer.decode(self._pending)
        whole = self._tokenizer.decode([*self._before, *self._pending])
        return whole[len(self._tokenizer.decode(self._before)) :]

    def _release(self, text: str) -> str:
        """Show `text` up to a stop string, or up to what might become one."""
        if self._opening:
            text = text.lstrip()
            self._opening = not text
        ends = [index for s in self._stop if (index := text.find(s)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        starts = (n for s in self._stop for n in range(1, min(len(text) + 1, len(s))) if text.endswith(s[:n]))
        shown = len(text) - max(starts, default=0)
        self._held = text[shown:]
        return text[:shown]
