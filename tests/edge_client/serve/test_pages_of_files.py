"""Pages and rows of files: named in the sources of an answer, and gone with the file that no longer has them."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from reportlab.pdfgen.canvas import Canvas

from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead
from memory3.files.bundle import Bundle
from memory3.formats import read_documents
from memory3.formats.naming import page_of, source_of
from testing.processes import AppProcess
from tests.edge_client.cli.conftest import run
from tests.edge_client.http_calls import call, post

PAGES = ("The pump is red.", "The valve is blue.")
"""Each with its title fits a reference of the tiny model."""


def pdf(path: Path, *pages: str) -> Path:
    canvas = Canvas(str(path))
    for text in pages:
        canvas.drawString(72, 700, text)
        canvas.showPage()
    canvas.save()
    return path


@pytest.mark.parametrize(
    ("key", "title", "page", "source"),
    [
        ("/notes/manual.pdf#page=12", "Boiler", 12, "manual.pdf, page 12"),
        ("wiki/manual.pdf#page=1", "", 1, "manual.pdf, page 1"),
        (r"C:\files\manual.pdf#page=3", "", 3, "manual.pdf, page 3"),
        ("/notes/rooms.csv#row=2", "Bero", None, "Bero (rooms.csv)"),
        ("/notes/my mails.mbox#mail=2", "Dinner", None, "Dinner (my mails.mbox)"),
        ("/notes/rooms.csv#row=3", "rooms", None, "rooms"),
        ("/notes/staff_rules.md", "Staff rules", None, "Staff rules"),
        ("/notes/staff.md", "Rules", None, "Rules (staff.md)"),
        ("/notes/LICENCE", "Rules", None, "Rules (LICENCE)"),
        ("staff.md", "Rules", None, "Rules (staff.md)"),
        ("/notes/notes.txt", "Notes", None, "Notes"),
        ("wiki/version 1.2", "Rules", None, "Rules"),
        ("bn", "Benin", None, "Benin"),
        ("a#page=x", "", None, "a#page=x"),
    ],
)
def test_a_page_is_named_by_its_file_and_number(key: str, title: str, page: int | None, source: str) -> None:
    assert (page_of(key), source_of(key, title)) == (page, source)
    assert MemoryRead(1, key, title, 0, 0.5, None, knowledge_base="atlas").name == f"atlas: {source} #0"


def test_a_record_is_named_with_its_file_whatever_its_key_is(tiny: Bundle, tmp_path: Path) -> None:
    (tmp_path / "price list.csv").write_text("service,price\nWheel truing,30\n")
    (tmp_path / "facts.jsonl").write_text(json.dumps({"key": "k1", "title": "Bell", "text": "It rings."}) + "\n")
    assert (
        run("remember", tmp_path / "price list.csv", tmp_path / "facts.jsonl", "--bundle", tiny.folder).exit_code == 0
    )
    expected = {"Wheel truing (price list.csv)", "Bell (facts.jsonl)"}
    with EdgeModel.open(tiny.folder, offline=True) as model:
        assert {memory.source for memory in model.ask("What rings?", max_tokens=2).memories} == expected
        assert {document.source for document in model.local.documents()["mine"]} == expected


def test_the_sources_of_an_answer_on_the_command_line_know_their_page(tiny: Bundle, tmp_path: Path) -> None:
    manual = pdf(tmp_path / "manual.pdf", *PAGES)
    assert run("remember", manual, "--bundle", tiny.folder).exit_code == 0
    asked = ["ask", "What is blue?", "--bundle", tiny.folder, "--max-tokens", 2, "--offline"]
    chunks = json.loads(run(*asked, "--json").stdout)["memories"]
    read = {hit["text"]: (hit["source"], hit["page"]) for chunk in chunks for hit in chunk["read"]}
    assert read == {f"manual\n{text}": (f"manual.pdf, page {number}", number) for number, text in enumerate(PAGES, 1)}
    shown = run(*asked, "--details").stderr
    assert "mine: manual.pdf, page 1 #0" in shown
    assert "mine: manual.pdf, page 2 #0" in shown


def test_a_page_without_text_is_reported_and_not_counted(tiny: Bundle, tmp_path: Path) -> None:
    done = run("remember", pdf(tmp_path / "scan.pdf", PAGES[0], ""), "--bundle", tiny.folder)
    assert (done.exit_code, done.stdout) == (0, "1 document: 1 stored; 1 memory\n")
    assert "1 of 1 document, 1 memory" in done.stderr
    assert "scan.pdf: no text on page 2 of 2" in done.stderr


def test_a_long_pdf_that_is_asked_about_is_read_by_its_pages(tiny: Bundle, tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "manual.pdf"))
    for page in (1, 2):
        for line in range(50):  # longer together than three quarters of the context
            canvas.drawString(72, 800 - 14 * line, f"Part {page}{line:02} is here.")
        canvas.showPage()
    canvas.save()
    asked = run("ask", "Where?", "--file", tmp_path / "manual.pdf", "--bundle", tiny.folder, "--offline", "--json")
    assert asked.exit_code == 0, asked.output
    read = [hit for chunk in json.loads(asked.stdout)["memories"] for hit in chunk["read"]]
    assert read
    for hit in read:
        assert f"Part {hit['page']}" in hit["text"]
        assert hit["source"] == f"manual.pdf, page {hit['page']}"


def test_the_sources_of_an_answer_over_http_know_their_page(tiny: Bundle, tmp_path: Path) -> None:
    content = pdf(tmp_path / "manual.pdf", *PAGES).read_bytes()
    with AppProcess.start(tmp_path, tiny.folder, "127.0.0.1:1", "--offline", "--memory", "exact") as server:
        assert call(server.port, "POST", f"/v1/local?key={quote('manual.pdf')}", content).status == 200
        listed = call(server.port, "GET", "/v1/local").json()["data"]
        assert [one["source"] for one in listed] == ["manual.pdf, page 1", "manual.pdf, page 2"]
        body = {"messages": [{"role": "user", "content": "What is blue?"}], "max_tokens": 2}
        chunks = post(server, body).json()["memory"]["chunks"]
        assert {(hit["source"], hit["page"]) for chunk in chunks for hit in chunk["read"]} == {
            ("manual.pdf, page 1", 1),
            ("manual.pdf, page 2", 2),
        }
        shorter = pdf(tmp_path / "manual.pdf", *PAGES[:1]).read_bytes()
        reply = call(server.port, "POST", f"/v1/local?key={quote('manual.pdf')}", shorter)
        assert '"outcome":"dropped","key":"manual.pdf#page=2"' in reply.text
        assert [one["key"] for one in call(server.port, "GET", "/v1/local").json()["data"]] == ["manual.pdf"]


def keys(model: EdgeModel) -> list[str]:
    return sorted(document.key for document in model.local.documents()["mine"])


def test_the_rows_of_a_file_are_listed_in_their_order_and_forgotten_together(tiny: Bundle, tmp_path: Path) -> None:
    (rooms := tmp_path / "rooms.csv").write_text("room\n" + "".join(f"Hall {n}\n" for n in range(1, 12)))
    with EdgeModel.open(tiny.folder, offline=True) as model:
        model.remember("Another.", key="s.txt")
        list(model.remember_documents(read_documents(rooms)))
        listed = model.local.documents()["mine"]
        assert [(one.key, one.file) for one in listed] == [
            *((f"{rooms}#row={n}", str(rooms)) for n in range(1, 12)),
            ("s.txt", "s.txt"),
        ]
        assert model.forget(str(rooms))
        assert not model.forget(str(rooms))
        assert [one.key for one in model.local.documents()["mine"]] == ["s.txt"]


def test_a_file_that_was_interrupted_is_marked_until_it_is_given_again(tiny: Bundle, tmp_path: Path) -> None:
    (rooms := tmp_path / "rooms.csv").write_text("room\nHall 1\nHall 2\nHall 3\n")
    (book := tmp_path / "book.txt").write_text("".join(f"Hall {n} has a door and a window.\n" for n in range(99)))
    with EdgeModel.open(tiny.folder, offline=True) as model:
        for source in (rooms, book):
            steps = model.remember_documents(read_documents(source))
            assert sum(1 for _ in zip(range(3), steps, strict=False)) == 3
            steps.close()  # type: ignore[attr-defined]
    for marked in (2, 0):
        listed = run("remembered", "--kb", "mine").stdout
        assert listed.count("(not complete: remember it again)") == marked, listed
        assert str(rooms) in listed
        with EdgeModel.open(tiny.folder, offline=True) as model:
            documents = [read for source in (rooms, book) for read in read_documents(source)]
            outcomes = {one.outcome for one in model.remember_documents(documents)}
        assert outcomes == ({"unchanged", "writing", "stored"} if marked else {"unchanged"})


def test_a_file_that_became_shorter_or_longer_leaves_no_old_page_or_row(tiny: Bundle, tmp_path: Path) -> None:
    manual, rooms, record = tmp_path / "manual.pdf", tmp_path / "rooms.csv", tmp_path / "facts.jsonl"
    with EdgeModel.open(tiny.folder, offline=True) as model:
        for count in (2, 1, 3, 2):
            pdf(manual, *(f"Page {n}." for n in range(count)))
            rooms.write_text("room\n" + "".join(f"Hall {n}\n" for n in range(count)))
            record.write_text("".join(json.dumps({"key": f"k{n}", "text": "x"}) + "\n" for n in range(count)))
            for source in (manual, rooms, record):
                assert [
                    one for one in model.remember_documents(read_documents(source)) if one.outcome == "failed"
                ] == []
            pages = [f"{manual}#page={n + 1}" for n in range(count)] if count > 1 else [str(manual)]
            rows = [f"{rooms}#row={n + 1}" for n in range(count)]
            assert keys(model) == sorted([*pages, *rows, *(f"k{n}" for n in range(count))])
        rooms.write_text("room\nHall\nHall, 2\n")  # a row that cannot be read: what else is gone cannot be known
        assert "failed" in {one.outcome for one in model.remember_documents(read_documents(rooms))}
        assert f"{rooms}#row=2" in keys(model)
        assert model.remember("No longer a table.", key=str(rooms)) == 1
        assert [key for key in keys(model) if key.startswith(str(rooms))] == [str(rooms)]


def test_the_command_keeps_no_old_pages_although_it_keeps_files_that_are_gone(tiny: Bundle, tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "papers"
    folder.mkdir()
    pdf(folder / "a.pdf", "One.", "Two.")
    (folder / "b.txt").write_text("Text.")
    assert run("remember", folder, "--bundle", tiny.folder).exit_code == 0
    pdf(folder / "a.pdf", "One.")
    (folder / "b.txt").unlink()
    kept = run("remember", folder, "--keep", "--bundle", tiny.folder)
    assert "2 dropped, 1 stored" in kept.stdout, kept.output
    listed = run("remembered", "--kb", "mine").stdout.splitlines()[1:]
    assert [line.split()[1] for line in listed] == [f"{folder}/a.pdf", f"{folder}/b.txt"]
