"""Small documents and passages, and the sources of training batches that draw from them."""

from memory_model.data.conversations import FactConversations, PassageConversations, Sizes, references_of
from memory_model.data.passages import Passage, PassageQuestion
from memory_model.data.running_text import KeepingBatches
from tests.edge_client.tiny_bundle import tiny_loaded

FACTS = "Area - total: {0} km\nCapital - name: C{0}\nClimate: dry {0}"
DOCUMENTS = [{"key": f"k{n}", "title": f"L{n}", "text": FACTS.format(n)} for n in range(8)]
PASSAGES = [
    Passage("s", f"p{n}", f"Town {n}", f"Town {n} is a small place. It was founded in 18{n:02} by Anna Berg of Oslo.")
    for n in range(12)
]
SIZES = Sizes(written=6, conversations=6, longest=32)


def facts(sizes: Sizes = SIZES, whole: float = 0.7) -> FactConversations:
    references = references_of(DOCUMENTS, tiny_loaded().tokenizer, limit=32)
    return FactConversations(references, tiny_loaded().chat, 1, sizes, whole)


def people(sizes: Sizes = SIZES) -> PassageConversations:
    rows = [
        PassageQuestion(f"when was town {n} founded", f"18{n:02}", f"Town {n}: 18{n:02}.", "s", f"p{n}")
        for n in range(8)
    ]
    return PassageConversations(rows, tiny_loaded().chat, 1, sizes)


def keeping() -> KeepingBatches:
    source = KeepingBatches(PASSAGES, tiny_loaded().chat, 1)
    source.rows, source.window, source.kept = 2, 24, 8
    return source
