"""OpenDocument: text, sheets, slides and drawings, with their comments, headers and forms."""

from pathlib import Path

import pytest

from memory3.formats import read_documents
from tests.memory3.formats import office_files
from tests.memory3.formats.office_files import BERO, TABLE
from tests.memory3.formats.reading import read

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
