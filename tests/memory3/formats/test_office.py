"""Files of office programs and books: their values, tables with the names of columns, and what is not read."""

import re
import struct
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from memory3.formats import read_documents
from memory3.formats.readers.office import documents as office
from memory3.formats.readers.office import numbers, sheets
from tests.memory3.formats import office97_files, office_files
from tests.memory3.formats.reading import read

TABLE = [("Printer", "Room", "IP address"), ("Alma", 12, "10.0.0.7"), ("Bero", 14, "10.0.0.9")]
BERO = "Printer: Bero; IP address: 10.0.0.9"


def test_word_has_its_paragraphs_tables_headers_footers_and_comments(tmp_path: Path) -> None:
    file = office_files.write_docx(
        tmp_path / "lease_4.docx",
        "Rent: 700 euro",
        TABLE,
        "Deposit: 1,400 euro",
        header1="Contract number: K-4711",
        footer1="Valid until: 2031",
        comments="ask Ida",
    )
    document = read(file)
    lines = document.text.split("\n")
    assert document.title == "lease 4"
    for line in ("Rent: 700 euro", BERO, "Deposit: 1,400 euro", "Contract number: K-4711", "Comment: ask Ida"):
        assert line in lines
    assert "Valid until: 2031" in lines


def test_each_note_and_comment_of_word_is_a_line_of_its_own_kind(tmp_path: Path) -> None:
    def note(kind: str, number: int, text: str) -> str:
        return f'<w:{kind} w:id="{number}"><w:p><w:r><w:{kind}Ref/></w:r><w:r><w:t> {text}</w:t></w:r></w:p></w:{kind}>'

    notes = {
        "footnote": ("Since May.", "But not on Sundays."),
        "endnote": ("See the lease.",),
        "comment": ("why", "ask"),
    }
    file = office_files.write_docx(tmp_path / "a.docx", "Rent", **{f"{kind}s": "_" for kind in notes})
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    marks = "".join(f'<w:r><w:{kind}Reference w:id="1"/></w:r>' for kind in notes)
    parts["word/document.xml"] = parts["word/document.xml"].replace("</w:p>", f"{marks}</w:p>")
    for kind, texts in notes.items():
        paragraphs = "".join(note(kind, number, text) for number, text in enumerate(texts, 1))
        parts[f"word/{kind}s.xml"] = re.sub("<w:p>.*</w:p>", paragraphs, parts[f"word/{kind}s.xml"])
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    found = read(file).text.removeprefix("Rent\n\n").split("\n")
    assert found[:2] == ["Footnote: Since May.", "Footnote: But not on Sundays."]
    assert found[2:] == ["Endnote: See the lease.", "Comment: why", "Comment: ask"]


def test_a_text_box_of_word_follows_the_whole_paragraph_that_it_is_anchored_in(tmp_path: Path) -> None:
    def box(*texts: str) -> str:
        inside = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in texts)
        return f"<w:txbxContent>{inside}</w:txbxContent>"

    def shape(*texts: str) -> str:
        choice = f"<mc:Choice><wps:wsp><wps:txbx>{box(*texts)}</wps:txbx></wps:wsp></mc:Choice>"
        fallback = f"<mc:Fallback><w:pict>{box(*texts)}</w:pict></mc:Fallback>"
        return f"<mc:AlternateContent>{choice}{fallback}</mc:AlternateContent>"

    file = office_files.write_docx(tmp_path / "a.docx", "Rent: 700", "Fee: 3", header1="Lease")
    names = " ".join(f'xmlns:{name}="{name}"' for name in ("mc", "wps"))
    rewrite(file, "(?<=<w:p><w:r>)(?=<w:t[^>]*>[RL])", shape("Call Ida", "or Ole") + shape("at noon"))
    rewrite(file, "(?<=<w:document)|(?<=<w:part)", f" {names}")
    assert read(file).text.split("\n\n") == [
        "Rent: 700",
        "Call Ida",
        "or Ole",
        "at noon",
        "Fee: 3",
        "Header: Lease\nCall Ida\nor Ole\nat noon",
    ]


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


def test_word_numbers_its_headings_and_items_as_people_see_them(tmp_path: Path) -> None:
    def level(at: int, system: str, text: str, more: str = "") -> str:
        values = {"start": "1", "numFmt": system, "lvlText": text}
        inside = "".join(f'<w:{name} w:val="{value}"/>' for name, value in values.items())
        return f'<w:lvl w:ilvl="{at}">{inside}{more}</w:lvl>'

    def paragraph(text: str, number: int | None = None, at: int = 0, style: str = "") -> str:
        listed = f'<w:numPr><w:ilvl w:val="{at}"/><w:numId w:val="{number}"/></w:numPr>' if number is not None else ""
        styled = f'<w:pStyle w:val="{style}"/>' if style else ""
        return f"<w:p><w:pPr>{styled}{listed}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"

    heads = level(0, "upperRoman", "Art. %1", '<w:pStyle w:val="H1"/>')
    heads += level(1, "decimal", "%1.%2", '<w:isLgl/><w:pStyle w:val="H2"/>')
    kinds = (heads, level(0, "decimal", "%1.") + level(1, "lowerLetter", "(%2)"), level(0, "bullet", "•"))
    lists = "".join(f'<w:abstractNum w:abstractNumId="{n}">{kind}</w:abstractNum>' for n, kind in enumerate(kinds))
    again = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/></w:lvlOverride>'
    for number, kind, more in ((1, 0, ""), (2, 1, ""), (3, 1, again), (4, 2, "")):
        lists += f'<w:num w:numId="{number}"><w:abstractNumId w:val="{kind}"/>{more}</w:num>'
    head = '<w:style w:styleId="H1"><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
    styles = f'{head}{head.replace("H1", "H2")}<w:style w:styleId="H1b"><w:basedOn w:val="H1"/></w:style>'
    paragraphs = (
        paragraph("Rent", style="H1"),
        paragraph("Due", style="H2"),
        *(paragraph(text, 2, at) for text, at in (("one", 0), ("a", 1), ("b", 1), ("two", 0), ("c", 1))),
        paragraph("dot", 4),
        paragraph("Pets", style="H1b"),
        paragraph("Dogs", style="H2"),
        paragraph("none", 0, style="H2"),
        *(paragraph(text, 3) for text in ("seven", "eight")),
    )
    file = office_files.write_docx(tmp_path / "a.docx", "body", numbering="lists", styles="styles")
    for text, instead in (("body", "".join(paragraphs)), ("lists", lists), ("styles", styles)):
        rewrite(file, f'<w:p><w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>', instead)
    assert read(file).text.split("\n\n") == [
        *("Art. I Rent", "1.1 Due", "1. one", "(a) a", "(b) b", "2. two", "(a) c", "dot"),
        *("Art. II Pets", "2.1 Dogs", "none", "7. seven", "8. eight"),
    ]


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


def test_choices_in_forms_of_word_are_the_text_that_people_see(tmp_path: Path) -> None:
    def field(data: str) -> str:
        begin = f'<w:fldChar w:fldCharType="begin"><w:ffData><w:enabled/>{data}</w:ffData></w:fldChar>'
        code, end = "<w:instrText> FORM </w:instrText>", '<w:fldChar w:fldCharType="end"/>'
        return "".join(f"<w:r>{part}</w:r>" for part in (begin, code, end))

    def cities(more: str) -> str:
        return field(f'<w:ddList>{more}<w:listEntry w:val="Oslo"/><w:listEntry w:val="B&amp;B"/></w:ddList>')

    def box(more: str) -> str:
        return field(f'<w:checkBox><w:sizeAuto/><w:default w:val="1"/>{more}</w:checkBox>')

    file = office_files.write_docx(tmp_path / "a.docx", "Form: ", header1="Form: ")
    choices = (
        cities("") + cities('<w:result w:val="1"/>') + box("") + box('<w:checked w:val="0"/>') + box("<w:checked/>")
    )
    rewrite(file, "(?<=Form: </w:t></w:r>)", choices)
    text = "Form: OsloB&B☒☐☒"
    assert read(file).text.split("\n\n") == [text, text]


def test_symbols_of_fonts_are_characters_and_unknown_ones_are_counted(tmp_path: Path) -> None:
    found = (("Symbol", "F0A3"), ("Symbol", "006D"), ("Wingdings", "F0FC"), ("Segoe UI", "2611"), ("Webdings", "F061"))
    signs = "".join(f'<w:sym w:font="{font}" w:char="{code}"/>' for font, code in found)
    file = office_files.write_docx(tmp_path / "a.docx", "_", footnotes="_")
    rewrite(file, '<w:t xml:space="preserve">_</w:t>', f"<w:t>pH</w:t>{signs}<w:t>5</w:t>")
    assert read(file).text == "pH≤μ✓☑5\n\nFootnote: pH≤μ✓☑5"
    assert read(file).notes == ("2 symbols of unknown fonts in it not read",)


def test_pictures_that_are_not_read_are_reported(tmp_path: Path) -> None:
    file = office_files.write_docx(tmp_path / "a.docx", "Text.")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("word/media/image1.png", b"x")
    assert read(file).notes == ("1 picture in it not read",)


def test_excel_has_a_line_for_each_row_of_each_sheet(tmp_path: Path) -> None:
    phones = [("Staff of 2026", "", ""), ("Name", "Extension", "Floor"), ("Ines", 4420, ""), ("Sum", "=B3", "")]
    file = office_files.write_xlsx(tmp_path / "office.xlsx", {"Printers": TABLE, "Phones": phones})
    document = read(file)
    lines = document.text.split("\n")
    assert document.title == "office"
    assert BERO in lines
    assert "Name: Ines; Extension: 4420" in lines
    assert {"Printers.", "Phones.", "Staff of 2026"} <= set(lines)
    assert document.notes == ("1 formula without a stored value: open the file in Excel and save it",)


@pytest.mark.parametrize(
    ("stored", "code", "shown"),
    [
        ("0.125", "0.0%", "12.5%"),
        ("1500", '"$"#,##0', "$1,500"),
        ("-3", '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "$(3.00)"),
        ("0", '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "$-"),
        ("1234.5", "#,##0.00\\ [$€-407]", "1,234.50 €"),
        ("42", "00000", "00042"),
        ("5", '0.0 "kg"', "5.0 kg"),
        ("-0.2", "[Red]0", "0"),
        ("11.666666666666666", "0.##", "11.67"),
        ("1234567", "#,##0,", "1,235"),
        ("0.385416666666667", "h:mm", "9:15"),
        ("0.75", "[$-409]hh:mm:ss AM/PM;@", "06:00:00 PM"),
        ("0", "h:mm AM/PM", "12:00 AM"),
        ("1.260416666666667", "[h]:mm", "30:15"),
        ("0.0007", "mm:ss.0", "01:00.4"),
        ("0.25", 'h" h "mm" min"', "6 h 00 min"),
        ("44000.5", "h:mm", ""),
        ("44000.5", "d/m/yy h:mm", ""),
        ("5", "mmm", ""),
        ("44000", "dd/mm/yyyy", ""),
        ("0.5", "# ?/?", ""),
        ("3", "General", ""),
        ("5", "[>=100]0;0", ""),
    ],
)
def test_a_number_is_shown_in_its_format_and_left_alone_in_one_that_is_not_of_numbers(
    stored: str, code: str, shown: str
) -> None:
    assert numbers.shown_number(stored, code) == shown


def test_numbers_of_excel_are_read_as_people_see_them(tmp_path: Path) -> None:
    file = office_files.write_xlsx(
        tmp_path / "a.xlsx", {"S": [("Tax", "Fee", "Opens", "Ends"), (0.125, 7, 0.375, 0.75)]}
    )
    formats = '<numFmts><numFmt numFmtId="164" formatCode="0&quot; kg&quot;"/>'
    formats += '<numFmt numFmtId="165" formatCode="[Blue]h:mm"/></numFmts>'
    styles = "".join(f'<xf numFmtId="{number}"/>' for number in (0, 10, 164, 20, 165))
    rewrite(file, "<c><v>0.125</v>", '<c s="1"><f>1/8</f><v>0.125</v>')
    rewrite(file, "<c><v>7</v>", '<c t="n" s="2"><v>7</v>')
    rewrite(file, "<c><v>0.375</v>", '<c s="3"><v>0.375</v>')
    rewrite(file, "<c><v>0.75</v>", '<c s="4"><v>0.75</v>')
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("xl/styles.xml", f"<styleSheet>{formats}<cellXfs>{styles}</cellXfs></styleSheet>")
    values = ("Fee: 7 kg", "Opens: 9:00", "Ends: 18:00:00")
    assert read(file).text.split("\n")[2:] == [f"Tax: 12.50%; {value}" for value in values]


def test_powerpoint_has_its_titles_text_and_speaker_notes(tmp_path: Path) -> None:
    slides = ("Quarter plan", "Launch date: 14 May", "Say: Zora"), ("Sites", "Kiruna", "Wait here")
    document = read(office_files.write_pptx(tmp_path / "plan.pptx", *slides))
    assert document.title == "Quarter plan"
    for line in ("Launch date: 14 May", "Say: Zora", "Sites.", "Kiruna", "Notes: Wait here"):
        assert line in document.text.split("\n")


def test_the_main_part_of_word_may_have_any_name(tmp_path: Path) -> None:
    file = office_files.write_docx(tmp_path / "a.docx", "Rent: 700 euro")
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name.replace("document", "document2"), part.replace("word/document", "/word/document2"))
    assert read(file).text == "Rent: 700 euro"


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


def test_opendocument_epub_and_rtf_have_their_tables(tmp_path: Path) -> None:
    odt = read(office_files.write_odt(tmp_path / "a.odt", "Garden Club", "Annual fee: 25 euro", TABLE))
    assert (odt.title, BERO in odt.text.split("\n"), "Annual fee: 25 euro" in odt.text) == ("Garden Club", True, True)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in TABLE)
    book = read(office_files.write_epub(tmp_path / "a.epub", "The Ferry Log", "<h1>One</h1>", f"<table>{rows}</table>"))
    assert (book.title, BERO in book.text.split("\n")) == ("The Ferry Log", True)
    rtf = tmp_path / "a.rtf"
    rtf.write_bytes(rb"{\rtf1\ansi\ansicpg1252 Sj\'f6mann\par Mooring: berth 19\par Price: 3 \u8364?\par}")
    assert read(rtf).text.split("\n\n") == ["Sjömann", "Mooring: berth 19", "Price: 3 €"]


def test_a_broken_file_fails_and_says_what_it_is_not(tmp_path: Path) -> None:
    for name in ("a.docx", "a.xlsx", "a.pptx", "a.odt", "a.epub"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 cut")
        (document,) = read_documents(tmp_path / name)
        assert document.unreadable
    (tmp_path / "empty.docx").write_bytes(b"")
    (document,) = read_documents(tmp_path / "empty.docx")
    assert document.unreadable


def test_word_of_1997_has_its_tables_without_codes_of_fields_and_names_what_is_left_out(tmp_path: Path) -> None:
    text = "Rent: 750 euro\rPrinter\aRoom\aIP address\a\aAlma\a12\a\a\aBero\a14\a10.0.0.9\a\a"
    text += 'Gr\xf6\xdfe: 5, see \x13 HYPERLINK "http://a.test" \\o "x" \x14the page\x15.\r'
    (document,) = read_documents(office97_files.write_doc(tmp_path / "lease_4.doc", text, footnotes=40))
    lines = document.text.split("\n")
    assert document.title == "lease 4"
    for line in ("Rent: 750 euro", "Printer: Alma; Room: 12", "Printer: Bero; Room: 14", BERO):
        assert line in lines
    assert lines[-1] == "Größe: 5, see the page."
    assert document.notes == ("footnotes not read: save it as .docx",)
    (cut,) = read_documents(office97_files.write_doc(tmp_path / "cut.doc", "Half of it.\r", claimed=200))
    assert cut.notes == ("11 of 200 characters read: save it as .docx",)
    (locked,) = read_documents(office97_files.write_doc(tmp_path / "locked.doc", "Secret.", encrypted=True))
    assert "encrypted" in locked.unreadable


def test_excel_and_powerpoint_of_1997_are_read(tmp_path: Path) -> None:
    sheet = read(office97_files.write_xls(tmp_path / "rooms.xls", TABLE))
    assert (sheet.title, BERO in sheet.text.split("\n")) == ("rooms", True)
    slides = read(office97_files.write_ppt(tmp_path / "pump.ppt", "The pump is red.", "Größe: 5"))
    assert slides.text.split() == ["The", "pump", "is", "red.", "Größe:", "5"]


def test_a_file_with_the_name_of_an_old_kind_is_read_as_what_it_is(tmp_path: Path) -> None:
    new = office_files.write_docx(tmp_path / "a.docx", "Rent: 700 euro", header1="Contract: K-4711")
    assert read(new.rename(tmp_path / "a.doc")).text.split() == ["Rent:", "700", "euro", "Contract:", "K-4711"]
    (tmp_path / "b.doc").write_bytes(rb"{\rtf1\ansi Rent: 800 euro\par}")
    assert read(tmp_path / "b.doc").text == "Rent: 800 euro"
    (tmp_path / "c.xls").write_text("<html><table><tr><th>Room<th>IP<tr><td>14<td>10.0.0.9</table></html>")
    assert "Room: 14; IP: 10.0.0.9" in read(tmp_path / "c.xls").text
    for name in ("d.doc", "d.xls", "d.ppt"):
        (tmp_path / name).write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
        (document,) = read_documents(tmp_path / name)
        assert f"no readable {name[-3:].upper()} file" in document.unreadable


@pytest.mark.parametrize("suffix", [".docm", ".dotx", ".dotm"])
def test_variants_of_word_are_read_as_word(tmp_path: Path, suffix: str) -> None:
    parts = {"header1": "Contract number: K-4711", "footer1": "Valid until: 2031", "comments": "ask Ida"}
    base, variant = (
        read(office_files.write_docx(tmp_path / f"a{kind}", "Rent: 700 euro", TABLE, **parts))
        for kind in (".docx", suffix)
    )
    assert variant.text == base.text
    assert variant.text.endswith("Contract number: K-4711\nValid until: 2031\nComment: ask Ida")


@pytest.mark.parametrize("suffix", [".pptm", ".ppsx", ".ppsm", ".potx", ".potm"])
def test_variants_of_powerpoint_are_read_as_powerpoint(tmp_path: Path, suffix: str) -> None:
    slides = ("Quarter plan", "Launch date: 14 May", "Say: Zora"), ("Sites", "Kiruna", "Wait here")
    base, variant = (read(office_files.write_pptx(tmp_path / f"a{kind}", *slides)) for kind in (".pptx", suffix))
    assert (variant.title, variant.text) == (base.title, base.text)
    assert variant.text.endswith("Say: Zora\nNotes: Wait here")


def test_a_last_cell_far_below_the_others_costs_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = office.markdown_text
    monkeypatch.setattr(office, "markdown_text", lambda text, **form: parsed.append(text) or parse(text, **form))
    rows = [["Printer", "Room"], ["Alma", "12"], *([[]] * 2000), ["Bero", "14"], ["", "", "", "end"]]
    sheet = read(office97_files.write_xls(tmp_path / "a.xls", rows))
    assert sheet.text.split("\n")[0] == "Printer: Alma; Room: 12"
    assert sheet.text.endswith("end")
    assert len(parsed[0].split("\n")) < 10
    above = [[], [], ["Printer", "Room"], ["Alma", "12"]]
    assert read(office97_files.write_xls(tmp_path / "b.xls", above)).text == "Printer: Alma; Room: 12"


@pytest.mark.parametrize("suffix", [".xlsm", ".xltx", ".xltm"])
def test_variants_of_excel_are_read_as_excel(tmp_path: Path, suffix: str) -> None:
    sheets = {"Printers": TABLE, "Sums": [("Name", "Value"), ("Sum", "=B3")]}
    base, variant = (read(office_files.write_xlsx(tmp_path / f"a{kind}", sheets)) for kind in (".xlsx", suffix))
    assert (variant.title, variant.text, variant.notes) == (base.title, base.text, base.notes)
    assert BERO in variant.text.split("\n")
    assert variant.notes == ("1 formula without a stored value: open the file in Excel and save it",)


def test_rows_and_columns_without_values_cost_nothing_and_hide_no_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    parse = office.markdown_text
    monkeypatch.setattr(office, "markdown_text", lambda text, **form: parsed.append(text) or parse(text, **form))
    for file in (
        office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE}, step=(250_000, 12)),
        office_files.write_xlsb(tmp_path / "a.xlsb", TABLE, step=(250_000, 500)),
        office97_files.write_xls(tmp_path / "a.xls", TABLE, step=(2000, 40)),
    ):
        assert BERO in read(file).text.split("\n")
        assert len(parsed.pop()) < 300


def test_values_of_a_sheet_that_are_too_far_apart_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "MOST_CELLS", 8)
    for file in (
        office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE}, step=(1, 1)),
        office_files.write_xlsb(tmp_path / "a.xlsb", TABLE),
        office97_files.write_xls(tmp_path / "a.xls", TABLE),
    ):
        (document,) = read_documents(file)
        assert "a sheet in it has 3 rows and 3 columns with values, and at most 8 cells are read" in document.unreadable


def test_what_a_chart_of_an_old_sheet_shows_does_not_replace_its_cells(tmp_path: Path) -> None:
    file = office97_files.write_xls(tmp_path / "a.xls", TABLE, chart=(7, 8, 9))
    assert read(file).text == read(office97_files.write_xls(tmp_path / "b.xls", TABLE)).text


def test_codes_of_references_and_embedded_objects_of_old_word_are_no_text(tmp_path: Path) -> None:
    text = "Highlights RENVOIPAGE _Toc533 \\h 2\rSee REF _Ref17 \\r \\h 4.1\rEMBED Excel.Sheet.8 \\s below\rEMBED it\r"
    document = read(office97_files.write_doc(tmp_path / "a.doc", text))
    assert document.text.split() == ["Highlights", "2", "See", "4.1", "below", "EMBED", "it"]


def test_comments_text_boxes_and_printed_edges_of_old_sheets_are_read(tmp_path: Path) -> None:
    def box(kind: int, *parts: tuple[int, bytes], characters: int) -> list[tuple[int, bytes]]:
        said = struct.pack("<HH", 0x15, 0x12) + struct.pack("<H", kind) + bytes(16)
        texts = [(0x3C, bytes([wide]) + part) for wide, part in parts]
        return [(0x5D, said), (0x1B6, bytes(10) + struct.pack("<H", characters) + bytes(6)), *texts]

    edge = "&CPrices&R&P of &N"
    further = [
        (0x14, struct.pack("<HB", len(edge), 0) + edge.encode()),
        *box(0x19, (0, b"ask"), (1, " Zo\u00eb".encode("utf-16-le")), characters=7),
        *box(0x06, (0, b"Key below\rthe mat"), (0, b"\x00\x00"), characters=17),
    ]
    lines = read(office97_files.write_xls(tmp_path / "a.xls", TABLE, further=further)).text.split("\n")
    assert lines[-4:] == ["Printed header: Prices", "Comment: ask Zo\u00eb", "Text box: Key below", "the mat"]


def test_an_encrypted_old_sheet_says_so(tmp_path: Path) -> None:
    (document,) = read_documents(office97_files.write_xls(tmp_path / "a.xls", TABLE, further=[(0x2F, bytes(6))]))
    assert "it is encrypted" in document.unreadable


def test_a_binary_sheet_has_its_rows_and_says_that_comments_are_not_read(tmp_path: Path) -> None:
    file = office_files.write_xlsb(tmp_path / "rooms.xlsb", TABLE)
    assert (read(file).title, BERO in read(file).text.split("\n")) == ("rooms", True)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("xl/comments1.bin", b"x")
    assert read(file).notes == ("comments not read: save it as .xlsx",)


def test_a_file_that_the_converter_panics_at_fails_alone(tmp_path: Path) -> None:
    (document,) = read_documents(office_files.write_xlsb(tmp_path / "a.xlsb", TABLE, sheet="rId9"))
    assert "no readable XLSB file" in document.unreadable


def test_text_boxes_and_titles_of_charts_of_sheets_are_read_and_embedded_files_are_counted(tmp_path: Path) -> None:
    file = office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE})
    with zipfile.ZipFile(file, "a") as archive:
        box = "<d><a:p xmlns:a='a'><a:r><a:t>Key below</a:t></a:r><a:r><a:t> the mat</a:t></a:r></a:p></d>"
        archive.writestr("xl/drawings/drawing1.xml", box)
        title = "<c:title><a:t>Guests</a:t></c:title>"
        chart = (
            f"<c:chart xmlns:c='c' xmlns:a='a'>{title}<c:valAx>{title.replace('Guests', 'a day')}</c:valAx></c:chart>"
        )
        archive.writestr("xl/charts/chart1.xml", chart)
        archive.writestr("xl/embeddings/object1.docx", b"x")
        archive.writestr("xl/ctrlProps/ctrlProp1.xml", '<formControlPr objectType="CheckBox" checked="Checked"/>')
    assert read(file).text.split("\n")[-2:] == ["Text box: Key below the mat", "Chart title: Guests. a day."]
    control = "1 form control in it: what is chosen is not read"
    assert read(file).notes == (control, "1 embedded file in it not read")


def test_what_is_printed_above_and_below_sheets_is_read_without_codes_and_page_numbers(tmp_path: Path) -> None:
    file = office_files.write_xlsx(tmp_path / "a.xlsx", {"Printers": TABLE, "Spare": TABLE})
    header = '&L&"Arial,Bold"&12&K00-020R&&D &A&Cas of May 2031&RPage &P of &N'
    edges = {
        "oddHeader": header,
        "firstHeader": "As of May",
        "oddFooter": "&CSee page 4 of list &P",
        "evenFooter": "&P",
    }
    parts = "".join(f'<{name} xml:space="preserve">{escape(text)}</{name}>' for name, text in edges.items())
    rewrite(file, "(?=</worksheet>)", f"<headerFooter>{parts}</headerFooter>")
    lines = ["Printed header: R&D", "as of May 2031", "As of May", "Printed footer: See page 4 of list"]
    assert read(file).text.split("\n")[-4:] == lines


COMMENT = "<office:annotation><dc:creator>Ida</dc:creator><text:p>ask again</text:p></office:annotation>"


@pytest.mark.parametrize(("suffix", "kind"), [(".odt", "text"), (".ott", "text-template")])
def test_opendocument_text_has_its_headers_footers_and_comments(tmp_path: Path, suffix: str, kind: str) -> None:
    edges = "<style:header><text:p>Contract: K-4711</text:p></style:header>"
    page = "<text:page-number>3</text:page-number>"
    edges += f"<style:footer-first><text:p>Kiruna<text:s/>{page}</text:p></style:footer-first>"
    styles = f"<office:master-styles><style:master-page>{edges}</style:master-page></office:master-styles>"
    body = f"<office:body><office:text><text:p>Rent {COMMENT}700</text:p></office:text></office:body>"
    document = read(office_files.write_opendocument(tmp_path / f"a{suffix}", kind, body, styles=styles))
    assert document.text == "Rent 700\n\nComment: ask again\nContract: K-4711\nFooter: Kiruna"


def test_opendocument_text_has_its_lists_in_cells_notes_and_charts(tmp_path: Path) -> None:
    def paragraph(text: str) -> str:
        return f"<text:p>{text}</text:p>"

    def table(*rows: tuple[str, str]) -> str:
        cells = ("".join(f"<table:table-cell>{cell}</table:table-cell>" for cell in row) for row in rows)
        head, *others = (f"<table:table-row>{row}</table:table-row>" for row in cells)
        return f"<table:table><table:table-header-rows>{head}</table:table-header-rows>{''.join(others)}</table:table>"

    items = "".join(f"<text:list-item>{paragraph(text)}</text:list-item>" for text in ("kite", "rope"))
    content = paragraph("Not on Sundays")
    note = f'<text:note text:note-class="endnote"><text:note-citation>1</text:note-citation>{content}</text:note>'
    body = (
        f"<text:tracked-changes>{paragraph('Deleted')}</text:tracked-changes><text:h>Rules</text:h>"
        f"<text:p><text:span>Dogs</text:span> stay{note} out</text:p>"
        + table((paragraph("Shed"), paragraph("Holds")), (paragraph("Alma"), f"<text:list>{items}</text:list>"))
    )
    chart = table((paragraph("Year"), paragraph("Guests")), (paragraph("2031"), paragraph("70")))
    parts = {"Object 1/content": f"<office:body><office:chart>{chart}</office:chart></office:body>"}
    file = tmp_path / "a.odt"
    body = f"<office:body><office:text>{body}</office:text></office:body>"
    office_files.write_opendocument(file, "text", body, **parts)
    document = read(file)
    assert (document.title, document.notes) == ("Rules", ())
    assert document.text.split("\n\n") == [
        "Dogs stay out",
        "Endnote: Not on Sundays",
        "Shed: Alma; Holds: kite rope",
        "Year: 2031; Guests: 70",
    ]


@pytest.mark.parametrize("folder", ["Object 1", "Object_1", "Chart1"])
def test_charts_of_opendocument_are_read_whatever_program_named_them(folder: str, tmp_path: Path) -> None:
    rows = "".join(
        f"<table:table-row>{''.join(f'<table:table-cell><text:p>{cell}</text:p></table:table-cell>' for cell in row)}"
        "</table:table-row>"
        for row in (("Year", "Guests"), ("2031", "70"))
    )
    chart = f"<office:body><office:chart><table:table>{rows}</table:table></office:chart></office:body>"
    body = "<office:body><office:text><text:p>Rules</text:p></office:text></office:body>"
    file = office_files.write_opendocument(tmp_path / "a.odt", "text", body, **{f"{folder}/content": chart})
    assert read(file).text == "Rules\n\nYear: 2031; Guests: 70"


def test_opendocument_numbers_its_headings_and_items_as_people_see_them(tmp_path: Path) -> None:
    def level(name: str, at: int, more: str) -> str:
        return f'<text:{name} text:level="{at}" {more}/>'

    def item(text: str, inner: str = "", more: str = "", name: str = "item") -> str:
        return f"<text:list-{name} {more}><text:p>{text}</text:p>{inner}</text:list-{name}>"

    def listed(*items: str, more: str = 'text:style-name="L"') -> str:
        return f"<text:list {more}>{''.join(items)}</text:list>"

    def head(text: str, at: int, more: str = "") -> str:
        return f'<text:h text:outline-level="{at}" {more}>{text}</text:h>'

    heads = level("outline-level-style", 1, 'style:num-format="I" style:num-prefix="Art. "')
    heads += level("outline-level-style", 2, 'style:num-format="1" text:display-levels="2"')
    kinds = level("list-level-style-number", 1, 'style:num-format="1" style:num-suffix=")" text:start-value="3"')
    kinds += level("list-level-style-number", 2, 'style:num-format="a" style:num-prefix="(" style:num-suffix=")"')
    kinds += level("list-level-style-bullet", 3, 'text:bullet-char="-"')
    plain = '<style:style style:name="Plain" style:list-style-name=""/>'
    styles = f"<text:outline-style>{heads}</text:outline-style>{plain}"
    nested = listed(item("Hands"), item("Feet", listed(item("Left"), more="")), more="")
    again = listed(item("Go"), more='text:style-name="L" text:continue-numbering="true"')
    text = [
        head("Sea", 1)
        + head("Cold", 2)
        + head("Warm", 2)
        + head("About", 1, 'text:style-name="Plain"')
        + head("Land", 1),
        listed(item("Note", name="header"), item("Wash", nested), item(""), item("Dry", nested)),
        f"<text:p>Then</text:p>{again}" + listed(item("Eat"), item("Rest", more='text:start-value="9"')),
    ]
    body = (
        f'<office:automatic-styles><text:list-style style:name="L">{kinds}</text:list-style></office:automatic-styles>'
    )
    body += f"<office:body><office:text>{''.join(text)}</office:text></office:body>"
    file = office_files.write_opendocument(tmp_path / "a.odt", "text", body, styles=styles)
    document = read(file)
    washed = ["3) Wash", "(a) Hands", "(b) Feet", "Left", "5) Dry", "(a) Hands", "(b) Feet", "Left"]
    assert document.title == "Art. I Sea"
    assert document.text.replace("\n\n", "\n").split("\n") == [
        *("I.1 Cold.", "I.2 Warm.", "About.", "Art. II Land.", "Note", *washed, "Then", "6) Go", "3) Eat", "9) Rest")
    ]


def test_what_is_printed_above_and_below_sheets_of_opendocument_is_read_without_page_numbers(tmp_path: Path) -> None:
    number = "<text:page-number>1</text:page-number>"
    sheet = "<text:p><text:sheet-name>???</text:sheet-name> (<text:title>???</text:title>)</text:p>"
    page = f"<text:p>Page {number} / <text:page-count>99</text:page-count></text:p>"
    lines = f"<text:p>Confidential</text:p><text:p>List of rooms, page {number}</text:p>"
    header = f"<style:header>{sheet}<style:region-left>{lines}</style:region-left></style:header>"
    master = f"<style:master-page>{header}<style:footer>{page}</style:footer></style:master-page>"
    rooms = (
        '<table:table table:name="Rooms"><table:table-row><table:table-cell><text:p>Alma</text:p></table:table-cell>'
    )
    body = (
        f"<office:body><office:spreadsheet>{rooms}</table:table-row></table:table></office:spreadsheet></office:body>"
    )
    file = office_files.write_opendocument(tmp_path / "a.ods", "spreadsheet", body, styles=master)
    assert read(file).text.split("\n")[-2:] == ["Printed header: Confidential", "List of rooms, page"]


@pytest.mark.parametrize(("suffix", "kind"), [(".odt", "text"), (".ods", "spreadsheet"), (".odp", "presentation")])
def test_opendocument_has_what_is_typed_and_chosen_in_its_forms(tmp_path: Path, suffix: str, kind: str) -> None:
    fields = {
        'text f:current-value="Ida" f:value="Ole"': "Ida",
        'checkbox f:label="Heated" f:current-state="checked" f:state="unchecked"': "☒ Heated",
        'radio f:label="Let" f:selected="false"': "☐ Let",
        'listbox f:dropdown="true"': "Rome",
        'hidden f:value="k3"': "",
    }
    options = '<f:option f:label="Oslo"/><f:option f:label="Rome" f:current-selected="true"/>'
    forms = "".join(
        f'<f:{field} f:id="c{n}">{options * field.startswith("list")}</f:{field.split()[0]}>'
        for n, field in enumerate(fields)
    )
    controls = "".join(f'<draw:control draw:control="c{n}"/>' for n in range(len(fields)))
    place = {
        ".odt": f"{{0}}<text:p>Form:{controls}.</text:p>",
        ".ods": f'<table:table table:name="T">{{0}}<table:shapes>{controls}</table:shapes></table:table>',
        ".odp": f"<draw:page>{{0}}{controls}</draw:page>",
    }[suffix].format(f'<office:forms xmlns:f="f">{forms}</office:forms>')
    body = f"<office:body><office:{kind}>{place}</office:{kind}></office:body>"
    text = read(office_files.write_opendocument(tmp_path / f"a{suffix}", kind, body)).text
    seen = list(filter(None, fields.values()))
    assert text == (f"Form: {' '.join(seen)} ." if suffix == ".odt" else "\n".join(f"Field: {line}" for line in seen))


@pytest.mark.parametrize(("suffix", "kind"), [(".ods", "spreadsheet"), (".ots", "spreadsheet-template")])
def test_opendocument_sheets_have_their_dates_and_comments(tmp_path: Path, suffix: str, kind: str) -> None:
    cell = f'<table:table-cell office:value-type="string">{COMMENT}<text:p>Due</text:p></table:table-cell>'
    cell += '<table:table-cell office:value-type="date" office:date-value="2031-02-03T00:00:00"/>'
    sheet = f'<table:table table:name="Rooms"><table:table-row>{cell}</table:table-row></table:table>'
    body = f"<office:body><office:spreadsheet>{sheet}</office:spreadsheet></office:body>"
    document = read(office_files.write_opendocument(tmp_path / f"a{suffix}", kind, body))
    assert document.text.split("\n\n") == ["Rooms.", "Due: 2031-02-03", "Comment: ask again"]


def test_opendocument_sheets_have_their_numbers_as_people_see_them_and_no_empty_sheets(tmp_path: Path) -> None:
    share, number = (
        f'<table:table-cell office:value-type="{kind}" office:value="{value}">{shown}</table:table-cell>'
        for kind, value, shown in (("percentage", "0.125", "<text:p>12.5%</text:p>"), ("float", "7", ""))
    )
    label = "<table:table-cell><text:p>Tax</text:p></table:table-cell>"
    rows = "".join(f"<table:table-row>{label}{cell}</table:table-row>" for cell in (share, number))
    sheets = f'<table:table table:name="A">{rows}</table:table><table:table table:name="B"/>'
    body = f"<office:body><office:spreadsheet>{sheets}</office:spreadsheet></office:body>"
    document = read(office_files.write_opendocument(tmp_path / "a.ods", "spreadsheet", body))
    assert document.text == "A.\n\nTax: 12.5%\nTax: 7"


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".odp", "presentation"), (".otp", "presentation-template"), (".odg", "graphics"), (".otg", "graphics-template")],
)
def test_opendocument_slides_have_titles_tables_notes_and_comments(tmp_path: Path, suffix: str, kind: str) -> None:
    def frame(content: str, name: str = "outline") -> str:
        return f'<draw:frame presentation:class="{name}"><draw:text-box>{content}</draw:text-box></draw:frame>'

    rows = "".join(
        f"<table:table-row>{''.join(f'<table:table-cell><text:p>{cell}</text:p></table:table-cell>' for cell in row)}"
        "</table:table-row>"
        for row in TABLE
    )
    item = "<text:p>Kiruna<text:s/><text:span>station</text:span></text:p>"
    item = f"<text:list><text:list-item>{item}</text:list-item></text:list>"
    notes = f"<presentation:notes>{frame('<text:p>Wait here</text:p>', 'notes')}</presentation:notes>"
    pages = [
        frame("<text:p>Launch: 14 May</text:p>") + frame("<text:p>Quarter plan</text:p>", "title") + COMMENT,
        frame("<text:p>Sites</text:p>", "title") + frame(item) + notes,
        f"<draw:g><draw:custom-shape><text:p>Gate: 7</text:p></draw:custom-shape></draw:g>{frame('<text:p/>', 'title')}"
        f"<draw:frame><table:table>{rows}</table:table></draw:frame>",
    ]
    body = "".join(f"<draw:page>{page}</draw:page>" for page in pages)
    body = f"<presentation:footer-decl>Club 2031</presentation:footer-decl>{body}"
    master = frame("<text:p>Inside only</text:p>", "footer") + frame("<text:p>Click to add text</text:p>")
    master = f"<style:master-page>{master}</style:master-page>"
    file = tmp_path / f"a{suffix}"
    office_files.write_opendocument(file, kind, f"<office:body>{body}</office:body>", styles=master)
    document = read(file)
    assert document.title == "Quarter plan"
    parts = document.text.split("\n\n")
    assert parts[:2] == ["Launch: 14 May", "Sites.\nKiruna station\nNotes: Wait here"]
    assert parts[2].split("\n")[0] == "Gate: 7"
    assert BERO in parts[2].split("\n")
    assert parts[3:] == ["Footer: Club 2031\nComment: ask again\nFooter: Inside only"]
    meta = "<office:meta><dc:title>The plan</dc:title></office:meta>"
    office_files.write_opendocument(file, kind, f"<office:body>{body}</office:body>", meta=meta)
    assert (read(file).title, read(file).text.split("\n")[0]) == ("The plan", "Quarter plan.")
    file.write_bytes(b"PK\x03\x04 cut")
    (broken,) = read_documents(file)
    assert f"no readable {suffix[1:].upper()} file" in broken.unreadable


SIGNS = """R&D at AT&T: x < 5 > 3, it's "q" &amp; <name> __init__.py _a_ [x](y) [^1] *b* `c` ~d~ C:\\new|e"""
"""What XML has as entities, and what would be marks of Markdown."""


def rewrite(file: Path, pattern: str, instead: str) -> None:
    """Replaces what fits a pattern in all parts of a file."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, re.sub(pattern, lambda _: instead, part))


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


def test_marks_of_word_are_no_text_and_its_references_are_characters(tmp_path: Path) -> None:
    bold, plain = ("<w:r>{}<w:t>{}</w:t></w:r>".format(*run) for run in (("<w:rPr><w:b/></w:rPr>", "Rent:"), ("", "7")))
    exact = "<w:r><w:t><![CDATA[ a & <b>]]> &#8211; &#x20AC;5 &#95;c&#95; &amp;lt;</w:t></w:r>"
    styled = '<w:pPr><w:pStyle w:val="a>&quot;b"/></w:pPr><!-- > -->'
    file = office_files.write_docx(tmp_path / "a.docx", "_")
    rewrite(file, "<w:p>.*</w:p>", f"<w:p>{styled}{bold}{plain}{exact}</w:p>")
    assert read(file).text == "Rent:7 a & <b> – €5 _c_ &lt;"


def test_emphasis_in_rtf_leaves_no_signs(tmp_path: Path) -> None:
    text = r"{\rtf1\ansi {\b Lost\b0} cheques{\b .} You {\i1 report\i0 } {\strike old} C:\\b {\bullet} x\par}"
    (tmp_path / "a.rtf").write_text(text)
    assert read(tmp_path / "a.rtf").text == "Lost cheques. You report old C:\\b • x"


def test_rtf_has_what_stands_apart_from_its_text_and_counts_its_pictures(tmp_path: Path) -> None:
    box = r"{\shp{\*\shpinst{\sp{\sn t}{\sv 1}}{\shptxt \pard Call Ida\par}}{\shprslt{\*\do{\dptxbxtext Call Ida}}}}"
    old = r"{\*\do\dobx{\dptxbxtext\pard or Ole{\*\annotation Why?}\par}}"
    comment = r"{\*\atnid I}\chatn{\*\annotation{\*\atnref 1}\pard\plain {\cs1 Ask \{him\}}}"
    picture = rb"{\*\shppict{\pict\bin3 }\}}}{\nonshppict{\pict 00}}{\object{\*\objdata 01}{\result{\pict 00}}}"
    text = rf"Rent{box}{old}{comment} is {{\v not}} 700{{\xe {{\v Index}}}} in __init__\par "
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi " + picture + text.encode() + rb"End\par}")
    document = read(tmp_path / "a.rtf")
    apart = ["Text box: Call Ida", "Text box: or Ole", "Comment: Why?", "Comment: Ask {him}"]
    assert document.text.split("\n\n") == ["Rent is not 700 in __init__", "End", *apart]
    assert document.notes == ("2 pictures in it not read", "1 embedded file in it not read")


def test_rtf_has_the_numbers_of_items_and_the_choices_in_forms_that_people_see(tmp_path: Path) -> None:
    def item(number: str, text: str, kind: str = "list") -> str:
        return rf"{{{{\{kind}text\pard\plain\f0 {number}\tab}}}}\pard\ls1 {{\cf1 {text}}}\par "

    def field(kind: int, more: str) -> str:
        cities = r"{\*\ffl Oslo}{\*\ffl Rome}"
        code = rf"{{\*\fldinst {{ FORM {{\*\formfield{{\fftype{kind}{more}\ffdefres1{cities}}}}}}}}}"
        return rf"{{\field{code}{{\fldrslt}}}}, "

    signs = item("2.", "Wash") + item("(b)", "Dry", "pn") + item(r"\'b7", "Eat") + item("o", "Go")
    choices = field(2, r"\ffres0") + field(2, r"\ffres25") + field(1, r"\ffres0") + field(1, "")
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi T\par {signs}{choices}end\par}}")
    lines = ["T", "2. Wash", "(b) Dry", "Eat", "Go", "Oslo, Rome, ☐, ☒, end"]
    assert read(tmp_path / "a.rtf").text.split("\n\n") == lines


def test_spaces_hyphens_and_breaks_of_rtf_that_are_commands_stay(tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_text(r"{\rtf1\ansi 10\~000 a\_b C:\\~x 5\emspace kg\page New\sect Last\par}")
    assert " ".join(read(tmp_path / "a.rtf").text.split()) == "10 000 a-b C:\\~x 5 kg New Last"


def test_letters_of_rtf_are_those_of_the_character_set_of_their_font(tmp_path: Path) -> None:
    fonts = r"{\fonttbl{\f0\fcharset0 A;}{\f1\fnil\fcharset204 B;}{\f2\fcharset128 C;}{\f3\fcharset238 D;}}"
    text = r"\'e9 \f1\'cc\'e8\'f0\f0 \'e9 {\f2\'83\'5d\'83\'8b} \'e9 {\f3\'b3\'f3d\'9f} "
    text += r"{\f1\u1052\'cc\u1080\'e8 {\plain\'e9} \\\'ec}"
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi\ansicpg1252\deff0{fonts}\pard {text}\par}}")
    assert read(tmp_path / "a.rtf").text == "é Мир é ゾル é łódź Ми é \\м"


@pytest.mark.parametrize(
    ("head", "letter"),
    [
        (r"\mac", r"\'8e"),
        (r"\mac\ansicpg10000", r"\'8e"),
        (r"\pc", r"\'82"),
        (r"\pca", r"\'82"),
        (r"\ansi\ansicpg850", r"\'82"),
        (r"\ansi\ansicpg65001", r"\'c3\'a9"),
        (r"\ansi\ansicpg1", r"\'e9"),
    ],
)
def test_letters_of_rtf_are_those_of_the_encoding_of_the_file(head: str, letter: str, tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1{head}{{\info{{\title Zo {letter}}}}}\pard lanc{letter} ses\par}}")
    document = read(tmp_path / "a.rtf")
    assert (document.title, document.text) == ("Zo é", "lancé ses")


def test_a_font_of_rtf_keeps_its_character_set_in_a_file_of_another_encoding(tmp_path: Path) -> None:
    font = r"{\fonttbl{\f0\fcharset0 A;}}"
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\mac\deff1{font}\pard lanc\'8e {{\f0 lanc\'e9}} lanc\'8e\par}}")
    assert read(tmp_path / "a.rtf").text == "lancé lancé lancé"


def test_emphasis_of_a_part_of_a_word_in_rtf_leaves_no_signs(tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_text(r"{\rtf1\ansi {\ul S}erre {\b P}rod {\i Q}uick {\strike w}eg\par}")
    assert read(tmp_path / "a.rtf").text == "Serre Prod Quick weg"


@pytest.mark.parametrize("font", ["", r"{\fonttbl{\f0\fcharset204 A;}}"])
def test_a_title_of_rtf_is_its_text(font: str, tmp_path: Path) -> None:
    info = r"{\info{\title \'cc\'e8\'f0 a_b \u8364? {x}}}"
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi\ansicpg1251\deff0{font}{info}\pard Text\par}}")
    assert read(tmp_path / "a.rtf").title == "Мир a_b € x"


def test_fonts_of_rtf_with_many_properties_cost_no_time(tmp_path: Path) -> None:
    properties = r"\a " * 200
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi{{\fonttbl{{\f1{properties}A;}}}}Text\par}}")
    assert read(tmp_path / "a.rtf").text == "Text"


def test_emphasis_in_tables_of_word_leaves_no_signs(tmp_path: Path) -> None:
    file = office_files.write_docx(tmp_path / "a.docx", [("Boat", "Berth"), ("Bero", "19")])
    rewrite(file, "<w:r>(?=<w:t[^>]*>(Boat|19))", "<w:r><w:rPr><w:b/><w:i/></w:rPr>")
    assert read(file).text == "Boat: Bero; Berth: 19"


def test_tabs_hyphens_breaks_and_raised_text_of_word_stay_and_what_was_moved_is_there_once(tmp_path: Path) -> None:
    def run(text: str, properties: str = "") -> str:
        return f"<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>"

    tabs = '<w:pPr><w:tabs><w:tab w:val="right" w:pos="9000"/></w:tabs></w:pPr>'
    line = "<w:r><w:t>Rent</w:t><w:tab/><w:t>950</w:t><w:noBreakHyphen/><w:t>A</w:t><w:cr/><w:t>net</w:t></w:r>"
    area = (
        run("7 m")
        + run("2", '<w:vertAlign w:val="superscript"/>')
        + run("old", '<w:strike/><w:u/><w:highlight w:val="red"/>')
    )
    breaks = "".join(f'<w:br w:type="{kind}"/><w:t>{kind}</w:t>' for kind in ("page", "column", "textWrapping"))
    breaks = f"<w:r><w:t>Last</w:t>{breaks}</w:r>"
    moved = f'<w:moveFrom w:id="1">{run("Dogs")}</w:moveFrom>{run("No ")}<w:moveTo w:id="2">{run("Dogs")}</w:moveTo>'
    file = office_files.write_docx(tmp_path / "a.docx", "_", footer1="_")
    rewrite(file, "<w:p>.*</w:p>", "".join(f"<w:p>{part}</w:p>" for part in (tabs + line, area, breaks, moved)))
    assert read(file).text.startswith(
        "Rent 950-A net\n\n7 m²old\n\nLast page column textWrapping\n\nNo Dogs\n\nFooter: Rent 950-A net\n"
    )


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


def test_a_file_that_unpacks_to_too_much_is_refused_and_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory3.formats.document.LARGEST_UNPACKED_BYTES", 4 << 20)
    for file in (
        office_files.write_docx(tmp_path / "a.docx", "Text."),
        office_files.write_odt(tmp_path / "a.odt", "T", "P", [("a",)]),
        office_files.write_epub(tmp_path / "a.epub", "T", "<p>Text.</p>"),
    ):
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/more.xml", b" " * (5 << 20))
        (document,) = read_documents(file)
        assert "unpacks to 5 MiB, at most 4 are read" in document.unreadable
