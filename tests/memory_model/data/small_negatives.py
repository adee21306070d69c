"""Facts and questions whose wrong answers are near: countries of one form, mills of one article."""

from dataclasses import replace

from memory3.text.refusal import SENTENCE
from memory_model.data.conversations import Sizes, references_of
from memory_model.data.hard_negatives import HardFacts
from memory_model.data.rows import QuestionRow
from tests.edge_client.tiny_bundle import tiny_loaded

TEXT = "Area - total: {0} km\nCapital - name: C{0}\nClimate: dry {0}\nCoastline: {0}{0} km\nReligions: R{0}"
COUNTRIES = [{"key": f"k{n}", "title": f"L{n}", "text": TEXT.format(n)} for n in range(14)]
SIZES = Sizes(written=8, conversations=12, refused=0.0, refused_articles=0.0, all_as_text=0.0, ramp=0)
REFUSING = replace(SIZES, refused=0.5, refused_articles=0.5)
ROWS = [
    QuestionRow(
        f"Mill {n} of A{a} was built by B{n}.",
        f"Who {'built' if answerable else 'sold'} mill {n} of A{a}?",
        f"B{n}" if answerable else SENTENCE,
        f"A{a}",
        answerable=answerable,
    )
    for a in range(3)
    for n in range(5)
    for answerable in (True, False)
]


def hard(sizes: Sizes = REFUSING) -> HardFacts:
    references = references_of(COUNTRIES, tiny_loaded().tokenizer, limit=32)
    return HardFacts(references, tiny_loaded().chat, 1, replace(sizes, longest=32))
