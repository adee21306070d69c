"""PowerPoint: titles, text, speaker notes, numbers of items and descriptions of pictures."""

from pathlib import Path

import pytest

from tests.memory3.formats import office_files
from tests.memory3.formats.office_files import rewrite
from tests.memory3.formats.reading import read


def test_powerpoint_numbers_the_items_of_each_text_as_people_see_them(tmp_path: Path) -> None:
    def item(text: str, kind: str = "", level: int = 0) -> str:
        bullet = f'<a:buAutoNum type="{kind}"/>' if kind else "<a:buNone/>"
        run = f'<a:r><a:rPr lang="en"/><a:t>{text}</a:t></a:r>' if text else "<a:endParaRPr/>"
        return f'<a:p><a:pPr marL="4" lvl="{level}">{bullet}</a:pPr>{run}</a:p>'

    items = [
        item("Wash", "arabicPeriod"),
        item("hands", "alphaLcParenBoth", 1),
        item("", "arabicPeriod"),
        item("Dry", "arabicPeriod"),
        item("hands", "alphaLcParenBoth", 1),
        item("Done"),
        item("Rest", 'romanUcParenR" startAt="4'),
        item("Go", 'romanUcParenR" startAt="4'),
    ]
    style = '<a:lstStyle><a:lvl1pPr><a:buAutoNum type="arabicPlain"/></a:lvl1pPr></a:lstStyle>'
    file = office_files.write_pptx(tmp_path / "a.pptx", ("Plan", "_", ""))
    rewrite(
        file,
        "<a:p><a:r><a:t>_</a:t></a:r></a:p>(?=.*</p:sp>)",
        style + "".join(items) + "<a:p><a:r><a:t>Eat</a:t></a:r></a:p>",
    )
    lines = ["1. Wash", "(a) hands", "2. Dry", "(a) hands", "Done", "IV) Rest", "V) Go", "1 Eat"]
    assert [line for line in read(file).text.split("\n") if line] == lines


def test_powerpoint_has_its_titles_text_and_speaker_notes(tmp_path: Path) -> None:
    slides = ("Quarter plan", "Launch date: 14 May", "Say: Zora"), ("Sites", "Kiruna", "Wait here")
    document = read(office_files.write_pptx(tmp_path / "plan.pptx", *slides))
    assert document.title == "Quarter plan"
    for line in ("Launch date: 14 May", "Say: Zora", "Sites.", "Kiruna", "Notes: Wait here"):
        assert line in document.text.split("\n")


def test_pictures_of_slides_are_their_descriptions_and_emphasis_has_no_signs(tmp_path: Path) -> None:
    def picture(description: str, fill: str = "") -> str:
        return f'<p:pic><p:nvPicPr><p:cNvPr id="9" name="P"{description}/></p:nvPicPr>{fill}<p:spPr/></p:pic>'

    bold = '<a:r><a:rPr lang="en" b="1"/><a:t>BRAINS </a:t></a:r><a:br/><a:r><a:rPr b="1"/><a:t> of: all</a:t></a:r>'
    linked = '<p:blipFill><a:blip r:link="rId7"/></p:blipFill>'
    shown = picture(' descr="A map of Kiruna"') + picture("", "<p:blipFill/>") + picture("", linked)
    file = office_files.write_pptx(tmp_path / "a.pptx", ("Plan", "_", ""))
    rewrite(file, "<a:r><a:t>_</a:t></a:r>(?=.*</p:sp>)", bold)
    rewrite(file, "(?<=</p:sp>)(?=</p:spTree></p:cSld></p:sld>)", shown)
    assert " ".join(read(file).text.split()) == "BRAINS of: all A map of Kiruna"


@pytest.mark.parametrize("suffix", [".pptm", ".ppsx", ".ppsm", ".potx", ".potm"])
def test_variants_of_powerpoint_are_read_as_powerpoint(tmp_path: Path, suffix: str) -> None:
    slides = ("Quarter plan", "Launch date: 14 May", "Say: Zora"), ("Sites", "Kiruna", "Wait here")
    base, variant = (read(office_files.write_pptx(tmp_path / f"a{kind}", *slides)) for kind in (".pptx", suffix))
    assert (variant.title, variant.text) == (base.title, base.text)
    assert variant.text.endswith("Say: Zora\nNotes: Wait here")
