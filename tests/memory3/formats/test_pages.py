"""PDF files: reading order, words in one piece, tables, form fields, titles, and pages without text."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pypdf import PdfWriter, annotations
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import BaseDocTemplate, Frame, FrameBreak, PageTemplate, Paragraph, Table, TableStyle

from memory3.formats import FileDocument, count_documents, read_documents
from memory3.formats.document import useful_title
from memory3.formats.readers import pages

TABLE = [["Printer", "Room", "IP address"], ["Alma", "12", "10.0.0.7"], ["Bero", "14", "10.0.0.9"]]
BERO = "Printer: Bero; IP address: 10.0.0.9"


def read(path: Path) -> list[FileDocument]:
    return list(read_documents(path))


def write(path: Path, *texts: str, title: str = "") -> Path:
    """A page of lines for each text; an empty text is a picture, as a scanner makes it."""
    canvas = Canvas(str(path))
    font = files("matplotlib").joinpath("mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
    pdfmetrics.registerFont(TTFont("DejaVu", str(font)))
    canvas.setTitle(title)
    for text in texts:
        canvas.setFont("DejaVu", 11)
        for number, line in enumerate(text.split("\n")):
            canvas.drawString(72, 700 - 14 * number, line)
        if not text:
            picture = path.with_suffix(".png")
            Image.new("RGB", (40, 40), "white").save(picture)
            canvas.drawImage(str(picture), 72, 400, 300, 300)
        canvas.showPage()
    canvas.save()
    return path


def test_each_page_is_a_document_that_knows_its_number(tmp_path: Path) -> None:
    paper = write(tmp_path / "a_paper.pdf", "First page.", "Second page.")
    first, second = read(paper)
    assert (first.title, first.text, first.metadata) == ("a paper", "First page.", {"page": "1"})
    assert (second.key, second.text, second.metadata) == (f"{paper}#page=2", "Second page.", {"page": "2"})
    assert count_documents(paper) == 2
    (only,) = read(write(tmp_path / "one.pdf", "Only page."))
    assert only.key == str(tmp_path / "one.pdf")


def test_turned_text_is_read_in_its_direction_after_the_rest(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    canvas.drawString(72, 700, "Password: kite-55")
    for degrees, text in ((90, "Version two of May"), (-90, "Draft of June")):
        canvas.saveState()
        canvas.translate(300, 300)
        canvas.rotate(degrees)
        canvas.drawString(0, 20, text)
        canvas.restoreState()
    canvas.save()
    (page,) = read(tmp_path / "a.pdf")
    assert page.text == "Password: kite-55\nVersion two of May\nDraft of June"


def test_pages_without_text_are_reported_with_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_ocr", lambda: None)
    first, fifth = read(write(tmp_path / "mixed.pdf", "Alpha: 1", "", "", "", "Omega: 5"))
    assert (first.text, fifth.text) == ("Alpha: 1", "Omega: 5")
    assert first.notes == ("no text on pages 2-4 of 5: the extra ocr reads scanned pages",)
    (scan,) = read(write(tmp_path / "scan.pdf", ""))
    assert scan.unreadable == "no text on page 1 of 1: the extra ocr reads scanned pages"


def test_pages_without_text_are_recognised_where_ocr_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [([[9, 0], [20, 0], [20, 9], [9, 9]], "R-5521", 0.9), ([[0, 0], [8, 0], [8, 9], [0, 9]], "Invoice:", 0.9)]
    monkeypatch.setattr(pages, "_ocr", lambda: lambda image: (words, None))
    first, second = read(write(tmp_path / "mixed.pdf", "Alpha: 1", ""))
    assert (second.text, second.metadata["page"]) == ("Invoice: R-5521", "2")
    assert first.notes == ("page 2 of 2 read by OCR",)


@pytest.mark.slow
def test_the_recogniser_reads_a_scan(tmp_path: Path) -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="needs the extra ocr")
    from PIL import ImageDraw, ImageFont

    image = Image.new("RGB", (900, 120), "white")
    ImageDraw.Draw(image).text((20, 40), "Invoice number: R-5521", fill="black", font=ImageFont.load_default(48))
    image.save(tmp_path / "scan.png")
    (document,) = read(tmp_path / "scan.png")
    assert document.text == "Invoice number: R-5521"


def test_a_page_that_cannot_be_read_with_its_layout_is_read_without_or_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = write(tmp_path / "a.pdf", "First page.", "Second page.", "Third page.")
    page_text = pages.page_text

    def broken(page: Any) -> str:
        if page.page_number == 2:
            raise TypeError("a colour without a number")
        return page_text(page)

    monkeypatch.setattr(pages, "page_text", broken)
    first, second, third = read(paper)
    assert [page.text for page in (first, second, third)] == ["First page.", "Second page.", "Third page."]
    assert first.notes == ("page 2 of 3 read without columns and tables, because of a fault in the file",)
    monkeypatch.setattr(pages, "_plain_text", lambda *_: "")
    failed, first, third = read(paper)
    assert (failed.position, failed.unreadable) == ("page 2", "it cannot be read: a colour without a number")
    assert (first.text, third.text) == ("First page.", "Third page.")


def test_ligatures_hyphens_and_soft_hyphens_do_not_divide_words(tmp_path: Path) -> None:
    lines = "The oﬃce of the ﬁre brigade has inter-\nnational tele\u00adphones and a well-\nknown ﬂag."
    (document,) = read(write(tmp_path / "a.pdf", f"{lines} Shelf: B-\n12 is empty. Well-known things."))
    assert "office of the fire brigade has international telephones and a well-known flag." in document.text
    assert "Shelf: B-12" in document.text


def test_words_of_lines_and_cells_with_narrow_spaces_are_told_apart(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    canvas.setFont("Helvetica", 10)
    canvas.grid([70, 170, 270], [390, 410, 430])
    cells = ((72, 415, "The city"), (172, 415, "Its sea"), (72, 395, "Oslo"), (172, 395, "Fjord"))
    for x, y, text in ((72, 700, "We have chosen it"), *cells):
        for word in text.split():
            canvas.drawString(x, y, word)
            x += pdfmetrics.stringWidth(word, "Helvetica", 10) + 2.2
    canvas.save()
    assert read(tmp_path / "a.pdf")[0].text == "We have chosen it\n\nThe city: Oslo; Its sea: Fjord"


def test_text_from_right_to_left_is_read_in_its_order_and_so_are_the_columns_of_its_tables(tmp_path: Path) -> None:
    lines = "שכר דירה: 950 ב Oslo City (נטו)", "שנתי"
    drawn = "(וטנ) Oslo City ב 950 :הריד רכש", "יתנש"  # as a viewer shows it
    path = write(tmp_path / "a.pdf", "with the font")
    canvas = Canvas(str(path))
    canvas.setFont("DejaVu", 11)
    for y, line in zip((700, 686), drawn, strict=True):
        canvas.drawRightString(500, y, line)
    canvas.grid([100, 300, 500], [580, 600, 620])
    for x, y, cell in ((490, 605, "ריע"), (290, 605, "םי"), (490, 585, "Oslo"), (290, 585, "ףוח 7")):
        canvas.drawRightString(x, y, cell)
    canvas.showPage()
    canvas.setFont("DejaVu", 11)
    canvas.drawString(72, 700, "They say םלוע םולש in Haifa")
    canvas.save()
    first, second = read(path)
    assert first.text.split("\n") == [*lines, "", "עיר: Oslo; ים: 7 חוף"]
    assert second.text == "They say שלום עולם in Haifa"


def test_a_sentence_over_a_page_break_is_whole(tmp_path: Path) -> None:
    first, second = read(write(tmp_path / "a.pdf", "The key hangs be-", "hind the stove. The oars are red."))
    assert first.text == "The key hangs behind the stove."
    assert second.text == "The oars are red."


def test_columns_are_read_one_after_the_other_and_what_spans_them_where_it_stands(tmp_path: Path) -> None:
    style = getSampleStyleSheet()["Normal"]
    left, right = "The wheel of the mill has 24 blades. " * 9, "The hammer of the forge weighs 90 kg. " * 9
    frames = [Frame(50, 500, 490, 250), Frame(50, 80, 235, 410), Frame(305, 80, 235, 410)]
    paper = BaseDocTemplate(str(tmp_path / "a.pdf"), pagesize=A4, title="Mills")
    paper.addPageTemplates([PageTemplate(frames=frames)])
    grid = Table(TABLE, style=TableStyle([("GRID", (0, 0), (-1, -1), 0.5, colors.black)]))
    abstract = Paragraph("We counted every mill of the valley and every forge next to it, in spring. " * 4, style)
    paper.build([abstract, FrameBreak(), Paragraph(left, style), FrameBreak(), Paragraph(right, style), grid])
    (document,) = read(tmp_path / "a.pdf")
    text = " ".join(document.text.split())
    assert document.title == "Mills"
    assert text.count(left.strip()) == text.count(right.strip()) == 1
    assert text.index("We counted") < text.index("The wheel") < text.index("The hammer") < text.index(BERO)


def test_tables_with_and_without_rules_keep_the_names_of_columns(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    canvas.drawString(72, 740, "Our printers are these.")
    for number, row in enumerate(TABLE):
        for x, cell in zip((72, 200, 320), row, strict=True):
            canvas.drawString(x, 700 - 18 * number, cell)
    canvas.save()
    (document,) = read(tmp_path / "a.pdf")
    assert document.text.split("\n")[0] == "Our printers are these."
    assert BERO in document.text.split("\n")


def test_values_of_form_fields_are_read(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "form.pdf"))
    canvas.drawString(72, 700, "Application")
    form = canvas.acroForm
    form.textfield(name="applicant", tooltip="Name of applicant", x=120, y=690, value="Wilma Ode")
    form.checkbox(name="member", x=120, y=650, checked=True)
    form.checkbox(name="student", x=120, y=630, checked=False)
    form.choice(name="plan", tooltip="Plan", x=120, y=600, options=["Gold", "Tin"], value="Tin")
    canvas.save()
    (document,) = read(tmp_path / "form.pdf")
    assert document.text.split("\n") == ["Application", "Name of applicant: Wilma Ode", "member: yes", "Plan: Tin"]


def test_comments_and_typed_text_of_a_page_are_read_and_attached_files_are_counted(tmp_path: Path) -> None:
    pdf = PdfWriter(clone_from=write(tmp_path / "a.pdf", "Offer"))
    box = (100, 600, 300, 620)
    pdf.add_annotation(0, annotations.FreeText(rect=box, text="Paid on 4 May"))
    pdf.add_annotation(0, annotations.Text(rect=box, text="Price is 99"))
    pdf.add_annotation(0, annotations.Popup(rect=box))
    pdf.add_annotation(0, annotations.Link(rect=box, url="https://example.org"))
    pdf.add_attachment("a.txt", b"attached")
    pdf.write(tmp_path / "b.pdf")
    (document,) = read(tmp_path / "b.pdf")
    assert document.text.split("\n") == ["Offer", "Paid on 4 May", "Comment: Price is 99"]
    assert document.notes == ("1 embedded file in it not read",)


def test_characters_of_a_font_that_does_not_say_which_they_are_are_counted_and_no_text(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    canvas.drawString(72, 700, "• Rent: 750")
    canvas.drawString(72, 650, "Lamp")
    canvas.save()
    pdf = PdfWriter(clone_from=tmp_path / "a.pdf")
    contents = pdf.pages[0].get_contents()
    assert contents is not None
    contents.set_data(contents.get_data().replace(b"(Lamp)", rb"(\201\215\217\235)"))
    pdf.pages[0].replace_contents(contents)
    pdf.write(tmp_path / "b.pdf")
    (document,) = read(tmp_path / "b.pdf")
    assert document.text == "• Rent: 750"
    assert document.notes == ("4 characters on page 1 not read: their fonts do not say which they are",)


@pytest.mark.parametrize(
    "title", ["untitled", "Microsoft Word - Document1.docx", "paper.dvi", "Document 2", "(anonymous)", "Untitled-1"]
)
def test_titles_that_programs_make_up_are_not_used(title: str, tmp_path: Path) -> None:
    (document,) = read(write(tmp_path / "house_rules.pdf", "No bicycles.", title=title))
    assert document.title == "house rules"


@pytest.mark.parametrize("title", ["House rules", "Page layout for printers", "Titles of the year", "Book of ferries"])
def test_real_titles_are_used(title: str) -> None:
    assert useful_title(title) == title
