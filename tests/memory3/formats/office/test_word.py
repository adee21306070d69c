"""Word: paragraphs, tables, notes, numbers of headings, forms, and what is not read."""

import re
import zipfile
from pathlib import Path

import pytest

from tests.memory3.formats import office_files
from tests.memory3.formats.office_files import BERO, TABLE, rewrite
from tests.memory3.formats.reading import read


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


def test_the_main_part_of_word_may_have_any_name(tmp_path: Path) -> None:
    file = office_files.write_docx(tmp_path / "a.docx", "Rent: 700 euro")
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name.replace("document", "document2"), part.replace("word/document", "/word/document2"))
    assert read(file).text == "Rent: 700 euro"


@pytest.mark.parametrize("suffix", [".docm", ".dotx", ".dotm"])
def test_variants_of_word_are_read_as_word(tmp_path: Path, suffix: str) -> None:
    parts = {"header1": "Contract number: K-4711", "footer1": "Valid until: 2031", "comments": "ask Ida"}
    base, variant = (
        read(office_files.write_docx(tmp_path / f"a{kind}", "Rent: 700 euro", TABLE, **parts))
        for kind in (".docx", suffix)
    )
    assert variant.text == base.text
    assert variant.text.endswith("Contract number: K-4711\nValid until: 2031\nComment: ask Ida")


def test_marks_of_word_are_no_text_and_its_references_are_characters(tmp_path: Path) -> None:
    bold, plain = ("<w:r>{}<w:t>{}</w:t></w:r>".format(*run) for run in (("<w:rPr><w:b/></w:rPr>", "Rent:"), ("", "7")))
    exact = "<w:r><w:t><![CDATA[ a & <b>]]> &#8211; &#x20AC;5 &#95;c&#95; &amp;lt;</w:t></w:r>"
    styled = '<w:pPr><w:pStyle w:val="a>&quot;b"/></w:pPr><!-- > -->'
    file = office_files.write_docx(tmp_path / "a.docx", "_")
    rewrite(file, "<w:p>.*</w:p>", f"<w:p>{styled}{bold}{plain}{exact}</w:p>")
    assert read(file).text == "Rent:7 a & <b> – €5 _c_ &lt;"


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
