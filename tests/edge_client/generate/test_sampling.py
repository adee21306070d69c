"""Drawing equals its definition, worked out slowly and plainly, for any logits and options."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edge_client.generate.sampling import Sampler, Sampling, SamplingOptions, distribution
from memory3.errors import InvalidInput

SIZE = 12


def slow_logits(logits: list[float], options: dict[str, Any], prompt: list[int], answer: list[int]) -> list[float]:
    """Bias and penalties, token by token."""
    result = []
    counts = Counter(answer)
    for token, logit in enumerate(logits):
        logit = float(np.float32(logit) + np.float32(options.get("logit_bias", {}).get(token, 0.0)))
        if token in prompt or counts[token]:
            penalty = options.get("repetition_penalty", 1.0)
            logit = logit / penalty if logit > 0 else logit * penalty
        if counts[token]:
            logit -= options.get("frequency_penalty", 0.0) * counts[token]
            logit -= options.get("presence_penalty", 0.0)
        result.append(logit)
    return result


def slow_distribution(logits: list[float], options: dict[str, Any]) -> dict[int, float]:
    """Temperature, top-k, top-p, min-p by sorting everything; ties go to the lower id."""
    largest = max(logits)
    weights = [(math.exp((x - largest) / options["temperature"]), -token) for token, x in enumerate(logits)]
    kept = sorted(weights, reverse=True)
    kept = kept[: options.get("top_k") or None]
    if (top_p := options.get("top_p", 1.0)) < 1:
        wanted, total, count = top_p * sum(w for w, _ in kept), 0.0, 0
        while total < wanted and count < len(kept):
            total += kept[count][0]
            count += 1
            assume(abs(total - wanted) > 1e-9 * wanted)  # on the edge the last bit of a sum decides
        kept = kept[: max(count, 1)]
    least = options.get("min_p", 0.0) * kept[0][0]
    assume(all(abs(w - least) > 1e-9 for w, _ in kept if w != kept[0][0]))
    kept = [(w, token) for w, token in kept if w >= least]
    total = sum(w for w, _ in kept)
    return {-token: w / total for w, token in kept}


numbers = st.integers(-40, 40).map(lambda n: n / 4)
logit_lists = st.lists(numbers, min_size=SIZE, max_size=SIZE)
drawing = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.3, 0.7, 1.0, 2.0])},
    optional={
        "top_k": st.integers(0, SIZE + 2),
        "top_p": st.sampled_from([0.05, 0.5, 0.93, 1.0]),
        "min_p": st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    },
)
changing = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 1.1]),
        "presence_penalty": st.sampled_from([-2, 0, 0.7]),
        "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), numbers, max_size=3),
    },
)


@settings(max_examples=60, deadline=None)
@given(logit_lists, drawing)
def test_what_may_be_drawn_and_how_likely_is_the_definition(logits: list[float], options: dict[str, Any]) -> None:
    want = slow_distribution(logits, options)
    tokens, weights = distribution(np.array(logits, np.float32), Sampling(**options))
    ids = tokens.tolist()
    got = dict(zip(ids, (weights / weights.sum()).tolist(), strict=True))
    assert got.keys() == want.keys()
    assert all(got[token] == pytest.approx(want[token], rel=1e-6) for token in want)


@settings(max_examples=60, deadline=None)
@given(logit_lists, changing, st.lists(st.integers(0, SIZE - 1), max_size=10), st.integers(1, 5))
def test_the_repetition_penalty_looks_at_prompt_and_answer_the_others_count_the_answer_alone(
    logits: list[float], options: dict[str, Any], prompt: list[int], steps: int
) -> None:
    sampler = Sampler(Sampling(**options), SIZE, prompt)
    answer, given_logits = list[int](), np.array(logits, np.float32)
    for _ in range(steps):
        want = slow_logits(logits, options, prompt, answer)
        token = sampler.pick(given_logits).id
        assert want[token] == pytest.approx(max(want), abs=1e-4)
        answer.append(token)
    assert given_logits.tolist() == logits, "what the decoder wrote is not changed"


def test_the_token_that_ended_every_turn_of_a_prompt_can_end_the_answer() -> None:
    end, other = 3, 5
    logits = np.full(SIZE, -10, np.float32)
    logits[[end, other]] = 5.0, 4.0
    for penalty in ("frequency_penalty", "presence_penalty"):
        sampler = Sampler(Sampling.of({penalty: 2.0}), SIZE, [end, other, end, end])
        assert [sampler.pick(logits).id for _ in range(2)] == [end, other]


@settings(max_examples=40, deadline=None)
@given(logit_lists, st.integers(0, 5), changing)
def test_logprobs_are_the_models_own(logits: list[float], count: int, options: dict[str, Any]) -> None:
    total = math.log(sum(math.exp(x) for x in logits))
    picked = Sampler(Sampling(**options, logprobs=count), SIZE).pick(np.array(logits, np.float32))
    assert picked.logprob == pytest.approx(logits[picked.id] - total, abs=1e-5)
    best = sorted(range(SIZE), key=lambda token: (-logits[token], token))[:count]
    assert [token for token, _ in picked.top] == best
    assert [p for _, p in picked.top] == pytest.approx([logits[t] - total for t in best], abs=1e-5)


def test_every_option_has_a_keyword() -> None:
    assert set(SamplingOptions.__annotations__) == set(Sampling.__dataclass_fields__)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": True},
        {"max_tokens": 1.5},
        {"top_k": -1},
        {"top_k": 2.0},
        {"min_p": 1.1},
        {"temperature": math.nan},
        {"temperature": "1"},
        {"repetition_penalty": 0},
        {"frequency_penalty": 2.1},
        {"presence_penalty": math.inf},
        {"seed": -1},
        {"seed": 0.5},
        {"logprobs": 21},
        {"logprobs": True},
        {"logit_bias": {1: 101}},
        {"logit_bias": {-1: 0}},
        {"logit_bias": {"1": 0}},
        {"logit_bias": [1]},
        {"stop": ["a", ""]},
        {"stop": "a"},
        {"stop": 3},
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Sampling.of(options)


def test_an_option_that_does_not_exist_and_a_token_that_does_not_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no option topp"):
        Sampling.of({"topp": 0.5})
    with pytest.raises(InvalidInput, match="token 12"):
        Sampling(logit_bias={SIZE: 1.0}).check_vocabulary(SIZE)
