"""Nothing in an answer, a memory or a title executes, and pages of other sites get nothing."""

import pytest
from playwright.sync_api import Browser, Page, expect

from testing.processes import AppProcess
from testing.programs import ROOT
from tests.browser.chat_page import import_turns, memories
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PAGE = ROOT / "edge_client" / "serve" / "page"
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
FROM_OUTSIDE = """async (url) => {
  const body = JSON.stringify({messages: [{role: "user", content: "x"}], max_tokens: 1});
  const json = {"Content-Type": "application/json"};
  const tries = {
    read: ["/v1/models"], json: ["/v1/chat/completions", {method: "POST", body, headers: json}],
    simple: ["/v1/chat/completions", {method: "POST", body}],
    add: ["/v1/local?key=evil", {method: "POST", body: "evil", mode: "no-cors"}],
  };
  const found = {};
  for (const [name, [path, options]] of Object.entries(tries)) {
    const answer = await fetch(url + path, options).catch(() => ({type: "refused"}));
    found[name] = answer.type;
  }
  return found;
}"""


def assert_nothing_ran(page: Page) -> None:
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    for selector in ("#messages", "#memories", "#conversations", "#upload-dialog"):
        found = page.locator(selector).locator(
            "script, img, iframe, object, embed, style, [onerror], [onload], [style*=url]"
        )
        assert found.count() == 0
    links = page.locator("#messages a").evaluate_all("(all) => all.map((a) => a.getAttribute('href') ?? '')")
    assert not [link for link in links if not link.startswith(("http:", "https:", "mailto:"))]


def test_hostile_markdown_in_answers_memories_and_titles_does_nothing(open_small: OpenPage) -> None:
    page = open_small()
    import_turns(page, "\n\n".join(HOSTILE), "\n\n".join(HOSTILE), read=HOSTILE, title=HOSTILE[1])
    expect(page.locator("#messages .markdown")).to_contain_text("onerror")
    expect(page.locator("#list")).to_contain_text("onerror")
    for row in memories(page).locator("details.memory summary").all():
        row.click()
    for link in page.locator("#messages .markdown a").all():
        link.hover()
    assert_nothing_ran(page)


def test_a_page_of_another_site_can_neither_read_nor_write(browser: Browser, small_app: AppProcess) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("http://localhost:9/", lambda route: route.fulfill(body="<p>Hello", content_type="text/html"))
    page.goto("http://localhost:9/")
    statuses: dict[str, int] = {}
    page.on("response", lambda r: statuses.update({r.url.removeprefix(small_app.url): r.status}))
    found = page.evaluate(FROM_OUTSIDE, small_app.url)
    context.close()
    assert found["read"] == found["json"] == found["simple"] == "refused"
    assert found["add"] in ("opaque", "refused")
    assert statuses.get("/v1/local?key=evil", 403) == 403


def test_the_whole_page_has_less_than_200_kilobytes() -> None:
    files = [file for file in PAGE.rglob("*") if file.is_file() and file.suffix not in (".md", ".LICENSE")]
    assert sum(file.stat().st_size for file in files) < 200_000
