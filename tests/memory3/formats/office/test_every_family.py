"""What holds for files of several office programs: signs, runs, charts, formulas and raised digits."""

import re
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from tests.memory3.formats import office97_files, office_files
from tests.memory3.formats.office_files import BERO, TABLE, rewrite
from tests.memory3.formats.reading import read


@pytest.mark.parametrize("folder", ["word", "ppt"])
def test_charts_and_diagrams_of_word_and_powerpoint_have_their_words_and_values(folder: str, tmp_path: Path) -> None:
    def points(code: str, *values: str) -> str:
        each = "".join(f'<c:pt idx="{n}"><c:v>{value}</c:v></c:pt>' for n, value in enumerate(values))
        return f"<c:cache>{code and f'<c:formatCode>{code}</c:formatCode>'}{each}</c:cache>".replace(
            "cache", "numCache" if code else "strCache"
        )

    def series(name: str, code: str, *values: str) -> str:
        along = points("", "007", "2032")
        return (
            f"<c:ser><c:tx><c:v>{name}</c:v></c:tx><c:cat>{along}</c:cat><c:val>{points(code, *values)}</c:val></c:ser>"
        )

    title = "<c:title><a:t>Guests of </a:t><a:t>Bero</a:t></c:title>"
    plot = series("Share", "0%", "0.25", "0.5") + series("Fee", "General", "4.4000000000000004")
    axes = "<c:valAx><c:title><a:t>thousand</a:t></c:title></c:valAx><c:catAx/>"
    chart = f'<c:chartSpace xmlns:c="c" xmlns:a="a"><c:chart>{title}{plot}{axes}</c:chart></c:chartSpace>'
    diagram = '<d:pt xmlns:d="d" xmlns:a="a"><a:p><a:t>Harbour</a:t></a:p><a:p><a:t>Mate</a:t></a:p></d:pt>'
    if folder == "word":
        file = office_files.write_docx(tmp_path / "a.docx", "Text.")
    else:
        file = office_files.write_pptx(tmp_path / "a.pptx", ("T", "Text.", ""))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{folder}/charts/chart1.xml", chart)
        archive.writestr(f"{folder}/diagrams/data1.xml", diagram)
    values = ["007; Share: 25%", "007; Fee: 4.4", "2032; Share: 50%"]
    assert read(file).text.split("\n")[2:] == [
        "Chart: Guests of Bero.",
        "thousand.",
        *values,
        "Diagram: Harbour",
        "Mate",
    ]


def test_formulas_of_word_and_powerpoint_stand_where_they_are_on_one_line(tmp_path: Path) -> None:
    def formula(inside: str) -> str:
        inside = re.sub(r"<(/?)", r"<\1m:", re.sub(r"\[(.*?)\]", r"<r><t>\1</t></r>", inside))
        return f'<m:oMath xmlns:m="m">{inside}</m:oMath>'

    power = 2 * formula("[E=m]<sSup><e>[c]</e><sup>[2]</sup></sSup>")
    mean = "<f><num>[a+b]</num><den>[2]</den></f>[, ]<rad><deg></deg><e>[x]</e></rad>[, ]"
    mean += '<nary><naryPr><chr m:val="∑"/></naryPr><sub>[i=1]</sub><sup>[n]</sup><e>[i]</e></nary>[, ]'
    mean += "<sSup><e><d><e>[a]</e></d></e><sup>[n]</sup></sSup>[x]"
    shown = "We know E=mc² E=mc² and (a+b)/2, √x, ∑_(i=1)^n i, (a)^n x."
    word = office_files.write_docx(tmp_path / "a.docx", "_")
    slide = office_files.write_pptx(tmp_path / "a.pptx", ("T", "_", ""))
    for file, run in ((word, "<w:r><w:t{}>{}</w:t></w:r>"), (slide, "<a:r><a:t{}>{}</a:t></a:r>")):
        space = ' xml:space="preserve"' if file is word else ""
        we, know, end = (run.format(space, part) for part in ("We know ", " and ", "."))
        kinds = ("<m:oMathPara>", "</m:oMathPara>") if file is word else ('<a14:m xmlns:a14="a14">', "</a14:m>")
        inside = f"{we}<m:oMath xmlns:m='m'/>{power.join(kinds)}{know}{formula(mean).join(kinds)}{end}"
        rewrite(file, run.format(space, "_").replace(" ", "[ ]"), inside)
        assert read(file).text == shown
    begin, end = '<mc:AlternateContent xmlns:mc="mc" xmlns:p14="p14">', "</mc:AlternateContent>"
    rewrite(
        slide, "<p:sp>(?=.*idx)", f"{begin}<mc:Choice><p14:x/></mc:Choice><mc:Fallback/>{end}{begin}<mc:Choice><p:sp>"
    )
    fallback = "<mc:Fallback><p:sp><a:t>old</a:t></p:sp></mc:Fallback>"
    rewrite(slide, "</p:sp>(?=</p:spTree></p:cSld></p:sld>)", f"</p:sp></mc:Choice>{fallback}{end}")
    assert read(slide).text == shown


def test_opendocument_epub_and_rtf_have_their_tables(tmp_path: Path) -> None:
    odt = read(office_files.write_odt(tmp_path / "a.odt", "Garden Club", "Annual fee: 25 euro", TABLE))
    assert (odt.title, BERO in odt.text.split("\n"), "Annual fee: 25 euro" in odt.text) == ("Garden Club", True, True)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in TABLE)
    book = read(office_files.write_epub(tmp_path / "a.epub", "The Ferry Log", "<h1>One</h1>", f"<table>{rows}</table>"))
    assert (book.title, BERO in book.text.split("\n")) == ("The Ferry Log", True)
    rtf = tmp_path / "a.rtf"
    rtf.write_bytes(rb"{\rtf1\ansi\ansicpg1252 Sj\'f6mann\par Mooring: berth 19\par Price: 3 \u8364?\par}")
    assert read(rtf).text.split("\n\n") == ["Sjömann", "Mooring: berth 19", "Price: 3 €"]


SIGNS = """R&D at AT&T: x < 5 > 3, it's "q" &amp; <name> __init__.py _a_ [x](y) [^1] *b* `c` ~d~ C:\\new|e"""
"""What XML has as entities, and what would be marks of Markdown."""


def test_signs_of_every_kind_of_file_are_kept(tmp_path: Path) -> None:
    text = escape(SIGNS)
    old = office_files.write_docx(tmp_path / "b.docx", SIGNS, [(SIGNS,)]).rename(tmp_path / "b.doc")
    rtf = tmp_path / "a.rtf"
    rtf.write_text(r"{\rtf1\ansi {\ul one} " + SIGNS.replace("\\", r"\\") + r" \u9472_ 5\par}")
    files = {
        office_files.write_docx(tmp_path / "a.docx", SIGNS, [(SIGNS,)]): 2,
        old: 2,
        office_files.write_pptx(tmp_path / "a.pptx", ("T", SIGNS, SIGNS)): 2,
        office_files.write_odt(tmp_path / "a.odt", "T", text, [(text,)]): 2,
        office_files.write_epub(
            tmp_path / "a.epub", "T", f"<p>{text}</p><pre>{text}</pre><p><code>{text}</code></p>"
        ): 3,
        office_files.write_xlsx(tmp_path / "a.xlsx", {"S": [(SIGNS,), (SIGNS,)]}): 2,
        office97_files.write_xls(tmp_path / "a.xls", [(SIGNS,), (SIGNS,)]): 2,
        office97_files.write_ppt(tmp_path / "a.ppt", "T", SIGNS): 1,
        rtf: 1,
    }
    found = {file.name: read(file).text for file in files}
    assert {name: text.count(SIGNS) for name, text in found.items()} == {file.name: n for file, n in files.items()}
    assert found["a.rtf"] == f"one {SIGNS} ─ 5"


def test_words_and_numbers_of_several_runs_stay_in_one_piece(tmp_path: Path) -> None:
    def run(text: str, fill: str = "", kind: str = "r") -> str:
        return f"<a:{kind}><a:rPr b='1'>{fill}</a:rPr><a:t>{text}</a:t></a:{kind.split()[0]}>"

    line = run("line") + "<a:br><a:rPr><a:latin/></a:rPr></a:br>" + run("two", "<a:latin/>") + "<a:br><a:rPr/></a:br>"
    empty = "<a:r><a:rPr/><a:t/></a:r>"
    runs = f"{line}<a:r><a:t>Kiru</a:t></a:r>{run('na has 12', '<a:latin/>')}{empty}{run('34, since ')}"
    slide = office_files.write_pptx(tmp_path / "a.pptx", ("T", "_", "|"))
    date = run("2031", kind="fld type='datetime1'")
    rewrite(slide, "<a:r><a:t>_</a:t></a:r>", f"{runs}{date}</a:p><a:p>{date}")
    rewrite(slide, r"<a:r><a:t>\|</a:t></a:r>", date + run(" is the year"))
    rtf = tmp_path / "a.rtf"
    rtf.write_text(r"{\rtf1\ansi {Kiru}na {\b has} 12{\i 3}4, {\cf1 since }2031\par}")
    assert read(slide).text == "line two Kiruna has 1234, since 2031\n\nNotes: 2031 is the year"
    assert read(rtf).text == "Kiruna has 1234, since 2031"


def test_numbers_and_signs_that_are_typed_before_a_line_are_kept(tmp_path: Path) -> None:
    typed = ["2031. A year", "7. Rent", "2) Deposit", "- minus", "+ plus", "* * star"]
    rtf = tmp_path / "a.rtf"
    rtf.write_text(r"{\rtf1\ansi T\par " + r"\par ".join(typed) + r"\par}")
    files = (
        office_files.write_docx(tmp_path / "a.docx", *typed),
        office_files.write_pptx(tmp_path / "a.pptx", ("T", "\n".join(typed), "")),
        office97_files.write_ppt(tmp_path / "a.ppt", "T", "\r".join(typed)),
        rtf,
    )
    for file in files:
        assert [line for line in read(file).text.split("\n") if line in typed] == typed, file.name


def test_raised_digits_are_no_digits_of_the_number_before_them(tmp_path: Path) -> None:
    above = ("3", "-6", "st")  # 10³ 10⁻⁶ 1st
    word = '<w:r><w:t>1</w:t></w:r><w:r><w:rPr><w:{}/><w:sz w:val="19"/></w:rPr><w:t>{}</w:t></w:r>'
    kinds = ('vertAlign w:val="superscript"', 'position w:val="8"', 'vertAlign w:val="superscript"')
    docx = office_files.write_docx(tmp_path / "a.docx", "_", footnotes="_")
    mark = f"<w:pPr><w:rPr><w:{kinds[0]}/></w:rPr></w:pPr>"  # of the paragraph's end
    rewrite(docx, "<w:r>.*?</w:r>", mark + "".join(word.format(*one) for one in zip(kinds, above, strict=True)))
    slide = '<a:r><a:t>1</a:t></a:r><a:r><a:rPr lang="en" baseline="30000"/><a:t>{}</a:t></a:r>'
    pptx = office_files.write_pptx(tmp_path / "a.pptx", ("T", "_", "_"))
    rewrite(pptx, "<a:r><a:t>_</a:t></a:r>", "".join(map(slide.format, above)))
    rtf = tmp_path / "a.rtf"
    rtf.write_text(r"{\rtf1\ansi 1{\super 3}1{\super\fs19 -6}1{\super\fs19\cf1 st}\par}")
    style = '<style:style style:name="T1"><style:text-properties style:text-position="super 58%"/></style:style>'
    spans = "".join(f'1<text:span text:style-name="T1">{one}</text:span>' for one in above)
    body = f"<office:automatic-styles>{style}</office:automatic-styles><office:body><office:text>"
    body += f"<text:p>{spans}</text:p></office:text></office:body>"
    odt = office_files.write_opendocument(tmp_path / "a.odt", "text", body)
    markup = "".join(f"1<sup>{one}</sup>" for one in above)
    html = tmp_path / "a.html"
    html.write_text(f"<p>{markup}</p><table><tr><td>{markup}</td></tr></table>")
    found = {file.suffix: read(file).text.count("1³1⁻⁶1st") for file in (docx, pptx, rtf, odt, html)}
    assert found == {".docx": 2, ".pptx": 2, ".rtf": 1, ".odt": 1, ".html": 2}
