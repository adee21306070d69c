"""Nothing in an answer, a memory or a title executes, and pages of other sites get nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from deploy.processes import AppProcess
from tests.browser.chat_page import ask_and_wait, memories, set_settings
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'><style>body{display:none}</style></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "[press](javascript:window.hacked=1) [press](data:text/html;base64,PHNjcmlwdD4=) [press](vbscript:x)",
    "[press](<java\nscript:window.hacked=1>) [a]: javascript:window.hacked=1",
    "![x](http://outside.test/pixel.png) ![x](javascript:window.hacked=1)",
    "<a href='http://outside.test' onmouseover='window.hacked = 1'>over</a>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.hacked=1&gt;'>",
    "```html\n<script>window.hacked = 1</script>\n```",
    "`${window.hacked = 1}` {{constructor.constructor('window.hacked=1')()}}",
]
# Puts a conversation where the page keeps them, as if the model and the service had said it.
PLANT = (Path(__file__).parent / "plant.js").read_text()


def assert_nothing_ran(page: Page) -> None:
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    for selector in ("#messages", "#memories", "#conversations", "#u-list"):
        found = page.locator(selector).locator(
            "script, img, iframe, object, embed, style, [onerror], [onload], [style*=url]"
        )
        assert found.count() == 0
    links = page.locator("#messages a").evaluate_all("(all) => all.map((a) => a.getAttribute('href') ?? '')")
    assert not [link for link in links if not link.startswith(("http:", "https:", "mailto:", ""))]
    assert not [link for link in links if "script:" in link or link.startswith("data:")]


def test_hostile_markdown_in_answers_memories_and_titles_does_nothing(open_small: OpenPage) -> None:
    page = open_small()
    page.evaluate(PLANT, HOSTILE)
    page.goto(page.url + "#planted")
    page.reload()
    expect(page.locator("#messages .markdown")).to_contain_text("onerror")
    for row in memories(page).locator("details.memory summary").all():
        row.click()
    for link in page.locator("#messages .markdown a").all():
        link.hover()
    assert_nothing_ran(page)


def test_a_hostile_upload_is_shown_as_text(open_page: OpenPage) -> None:
    page = open_page()
    set_settings(page, max_tokens="24")
    page.get_by_role("button", name="Documents").click()
    page.get_by_label("Knowledge base, or the name of a new one").fill("hostile")
    name = "<img src=x onerror=window.hacked=1>.md"
    text = "Motto: " + "\n".join(HOSTILE)
    page.locator("#u-files").set_input_files(
        [{"name": name, "mimeType": "text/plain", "buffer": text.encode()}]
    )
    expect(page.locator("#u-list .good")).to_contain_text("ready")
    page.locator("#upload-dialog").get_by_role("button", name="Done").click()
    ask_and_wait(page, "What is the motto?")
    row = memories(page).locator("details.memory").first
    row.locator("summary").click()
    expect(row).to_contain_text("onerror")
    assert_nothing_ran(page)


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title><p>Hello")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


TRY = (Path(__file__).parent / "other_site.js").read_text()


def test_a_page_of_another_site_can_neither_read_nor_write(
    browser: Browser, small_app: AppProcess, other_site: str
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(other_site)
    statuses: dict[str, int] = {}
    page.on("response", lambda r: statuses.update({r.url.removeprefix(small_app.url): r.status}))
    found = page.evaluate(TRY, small_app.url)
    context.close()
    assert found["read"] == found["json"] == found["simple"] == "refused"
    assert found["upload"] in ("opaque", "refused")
    assert statuses.get("/v1/knowledge_bases/default/documents?key=evil", 403) == 403


PAGE = Path(__file__).resolve().parents[2] / "edge_client" / "serve" / "page"


def test_the_whole_page_has_less_than_200_kilobytes() -> None:
    assert (
        sum(file.stat().st_size for file in PAGE.rglob("*") if file.suffix not in (".md", ".LICENSE"))
        < 200_000
    )


def test_no_file_of_the_page_names_another_site() -> None:
    for file in PAGE.iterdir():
        if file.is_file():
            text = file.read_text().replace("http://www.w3.org/", "")
            assert "http://" not in text, file
            assert "//cdn" not in text, file
