"""Titles of texts about the factbook's held-out countries, which no corpus to train on may hold."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from memory_model.data.factbook import facts, held_out


class HeldOutTitles:
    """Titles of other texts about held-out documents, such as an article about the country: `title in titles`.

    A title is one of them when it has all words of a name of such a document ("History of Burma"), or when a name has
    all of its words ("Myanmar"), kinds of state apart. Names are titles and the fields `Country name - …`.
    """

    def __init__(self, documents: Iterable[dict[str, Any]]) -> None:
        kept = [document for document in documents if held_out(document["key"])]
        fields = (field for document in kept for field in facts(document["text"]))
        values = (value for name, value, _ in fields if name.startswith("Country name - "))
        self.names = {document["title"] for document in kept}.union(*map(_names, values))
        self._words = {words for words in map(frozenset, map(_name_words, self.names)) if words - _COMMON}

    def __contains__(self, title: object) -> bool:
        words = set(_name_words(str(title)))
        telling = bool(words - _COMMON)
        return any(name <= words or (telling and words <= name) for name in self._words)


_COMMON = frozenset(  # words of names that name no country alone
    """none republic union kingdom state states united federation federal federated democratic people peoples special
    administrative region territory islands island saint north south east west northern southern eastern western
    central new translated as departement collectivity overseas principality short form long and us""".split()  # noqa: SIM905
)


def _names(value: str) -> Iterator[str]:
    """Names of a field: `A/B (French/Arabic)`, `A (translated as B)`; languages and remarks are none."""
    spelled, _, remark = value.partition(" (")
    for name in (*re.split("[/;]", spelled), remark.removeprefix("translated as ").rstrip(")")):
        if name != remark.rstrip(")") and name != "none" and len(name.split()) < 8:
            yield name.strip()


def _name_words(name: str) -> list[str]:
    """Lower-case words without accents, and without articles, of a name."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return [word for word in re.findall(r"[a-z]+", plain) if word not in ("the", "of", "a", "de", "la", "du")]
