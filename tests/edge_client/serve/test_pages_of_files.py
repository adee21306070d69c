"""A PDF's pages from the file to the sources of an answer, on the command line, over HTTP and in the listings."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from reportlab.pdfgen.canvas import Canvas

from edge_client.recall.recaller import MemoryRead
from memory3.bundle import Bundle
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
        ("/home/me/manual.pdf#page=12", "Boiler", 12, "manual.pdf, page 12"),
        ("wiki/manual.pdf#page=1", "", 1, "manual.pdf, page 1"),
        (r"C:\files\manual.pdf#page=3", "", 3, "manual.pdf, page 3"),
        ("/home/me/rooms.csv#row=2", "Bero", None, "Bero"),
        ("/home/me/notes.txt", "Notes", None, "Notes"),
        ("a#page=x", "", None, "a#page=x"),
    ],
)
def test_a_page_is_named_by_its_file_and_number(key: str, title: str, page: int | None, source: str) -> None:
    assert (page_of(key), source_of(key, title)) == (page, source)
    assert MemoryRead(1, key, title, 0, 0.5, None, knowledge_base="atlas").name == f"atlas: {source} #0"


def test_the_sources_of_an_answer_on_the_command_line_know_their_page(tiny: Bundle, tmp_path: Path) -> None:
    manual = pdf(tmp_path / "manual.pdf", *PAGES)
    assert run("remember", manual, "--bundle", tiny.folder).exit_code == 0
    asked = ["ask", "What is blue?", "--bundle", tiny.folder, "--max-tokens", 2, "--offline"]
    chunks = json.loads(run(*asked, "--json").stdout)["memories"]
    read = {hit["text"]: (hit["source"], hit["page"]) for chunk in chunks for hit in chunk["read"]}
    assert read == {f"manual\n{text}": (f"manual.pdf, page {number}", number) for number, text in enumerate(PAGES, 1)}
    shown = run(*asked).stderr
    assert "mine: manual.pdf, page 1 #0" in shown
    assert "mine: manual.pdf, page 2 #0" in shown


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
