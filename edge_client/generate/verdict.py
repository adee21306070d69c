"""The verdict of an answer, from what it read: texts of memories and of the conversation, and attention if recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edge_client.generate.past import is_turn
from edge_client.stream import AnswerAttention, Recalled
from memory3.text.chat import Message
from memory3.text.references import said_by_people, sentence_ranges
from memory3.text.verdict import Grounding, Verdict, is_yes_or_no, words_found

QUESTION_MARKS = ("?", "？", "؟")


def verdict_of(
    answer: str,
    refused: bool,
    messages: Sequence[Message],
    recalls: Iterable[Recalled],
    attention: AnswerAttention | None,
    grounding: Grounding,
    *,
    held: bool = False,
) -> Verdict | None:
    """What the answer to the last message of a person rests on; None where what was read is not known.

    What the model said, or people asked, is no evidence, neither as text nor in memories of turns that left the cache.

    recalls: the last event of every chunk. attention: None where it was not recorded. held: whether memories are in the
    slots, maybe of an earlier answer.
    """
    read = [memory for recalled in recalls for memory in recalled.recall.read if not memory.refused]
    held = held or bool(read)
    if refused:
        return Verdict.not_in_what_was_read if held else Verdict.nothing_found
    question, given = question_and_given(messages)
    if not held and not given:
        return Verdict.from_the_model
    share = attention_share(attention)
    if grounding.share is None:
        share = None
    elif share is not None and share >= grounding.share:
        return Verdict.grounded
    texts = [_stated(said_by_people(m.text)) if is_turn(m) else m.text for m in read if m.text]
    found = words_found(answer, question, [*given, *texts])
    if found is not None and found >= grounding.words:
        return Verdict.grounded
    if found is None and is_yes_or_no(answer) and _decided_by_memories(attention, grounding):
        return Verdict.grounded
    all_known = bool(read or not held) and all(memory.text for memory in read)
    return Verdict.from_the_model if share is not None or (found is not None and all_known) else None


def attention_share(attention: AnswerAttention | None, tokens: int | None = None) -> float | None:
    """The share of attention that the answer's tokens paid to memories; None where it was not recorded.

    Without memories of the conversation's own turns: in them is what the model said. tokens: the first so many, or all.
    """
    if attention is None or not attention.memories:
        return None
    evidence = [not is_turn(memory) for memory in attention.memories]
    return float(attention.shares[:tokens, evidence].sum(axis=1).mean())


def _decided_by_memories(attention: AnswerAttention | None, grounding: Grounding) -> bool:
    """Whether the first token, which says yes or no, was chosen from memories: what follows it repeats the question."""
    paid = attention_share(attention, tokens=1)
    if attention is None or paid is None:
        return False
    first = next(read for read, shares in attention.parts if len(shares.memories))
    least = grounding.share_of_a_decision(len(first))
    return bool(first) and least is not None and paid >= least


def question_and_given(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The question of the last person's message, and the texts that people gave: in it, and before it.

    What was asked before is no text that was given.
    """
    *before, (question, given) = [_parted(m["content"]) for m in messages if m["role"] == "user"] or [("", "")]
    earlier = [text for asked, text in before for text in (_stated(asked), text)]
    return question, [text for text in (*earlier, given) if text]


def _parted(message: str) -> tuple[str, str]:
    """A question and the text that stands before or after it, with a blank line between them; "" without one.

    The question is what ends with a question mark, or else the shorter one.
    """
    message = "\n".join(line.rstrip() for line in message.strip().split("\n"))
    first, _, rest = message.partition("\n\n")
    start, _, end = message.rpartition("\n\n")
    if first.rstrip()[-1:] in QUESTION_MARKS and end.rstrip()[-1:] not in QUESTION_MARKS:
        leads = True
    else:
        leads = end.rstrip()[-1:] not in QUESTION_MARKS and len(first) < len(end)
    return (first, rest) if leads else (end, start)


def _stated(asked: str) -> str:
    """What is no question of it: `My sister is Anna. Where does she live?` says who she is."""
    found = [asked[start:end] for start, end in sentence_ranges(asked)]
    return " ".join(sentence for sentence in found if sentence[-1] not in QUESTION_MARKS)
