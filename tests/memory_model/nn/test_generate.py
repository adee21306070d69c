"""Batched greedy answers equal those of one prompt at a time without any cache."""

import pytest

from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.generate import answer_nll, greedy
from tests.memory_model.nn.test_serving import SEEN, of_row, reference_logits, written
from tests.memory_model.tiny import PREFIX, tiny_model

PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]


def memories(model: Decoder) -> MemoryBatch:
    return written(model, [[20, 21, 22], [23] * 9, [24, 25]]).select(SEEN)


@pytest.mark.parametrize("with_memory", [False, True])
def test_greedy_answers_equal_one_prompt_at_a_time(with_memory: bool) -> None:
    model = tiny_model()
    memory = memories(model) if with_memory else None
    together = greedy(model, PROMPTS, PREFIX, memory, stop_ids=[63], longest=6)
    for row, prompt in enumerate(PROMPTS):
        text, answer = list(prompt), []
        for _ in range(6):
            token = int(reference_logits(model, text, memory and of_row(memory, row))[-1].argmax())
            if token == 63:
                break
            answer.append(token)
            text.append(token)
        assert together[row] == answer


@pytest.mark.parametrize("with_memory", [False, True])
def test_the_likelihood_of_an_answer_is_that_of_its_tokens(with_memory: bool) -> None:
    model = tiny_model()
    memory = memories(model) if with_memory else None
    answers = [[30, 31], [32, 33, 34, 35], [36]]
    for row, nll in enumerate(answer_nll(model, PROMPTS, answers, PREFIX, memory)):
        text, answer = PROMPTS[row] + answers[row], answers[row]
        scores = reference_logits(model, text, memory and of_row(memory, row)).log_softmax(-1)
        expected = [-float(scores[len(PROMPTS[row]) - 1 + i, t]) for i, t in enumerate(answer)]
        assert nll == pytest.approx(sum(expected) / len(expected), rel=1e-4)
