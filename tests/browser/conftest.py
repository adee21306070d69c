"""A real chromium, watched: nothing may be asked of another site, nothing may go wrong in the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

from testing.processes import AppProcess
from testing.programs import ROOT
from tests.browser.day import Day
from tests.edge_client.tiny_bundle import tiny_bundle

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
# The background talk of a browser is no part of these tests; a container has no sandbox for root.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_MS = 90_000
# What the browser itself says of requests that fail, and of a service worker under a certificate of our own.
OWN_REPORTS = ("Failed to load resource", "An SSL certificate error occurred when fetching the script")
# The app computes on the cores that the browser draws with.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def driver() -> Iterator[Playwright]:
    """A thread can have one."""
    if not CHROMIUM:
        pytest.skip("no chromium here: run `make setup-browser`")
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="session")
def browser(driver: Playwright) -> Iterator[Browser]:
    opened = driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Day]:
    running = Day(tmp_path_factory.mktemp("day"), bundle)
    yield running
    running.close()
    assert "Traceback" not in running.app.log.read_text()


OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def small_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    """An app with a model of random weights and no service, for what does not depend on what is answered."""
    folder = tmp_path_factory.mktemp("small")
    with AppProcess.start(folder, tiny_bundle(folder).folder, "127.0.0.1:1") as running:
        yield running
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def open_page(browser: Browser, day: Day) -> Iterator[OpenPage]:
    """Opens the page, each time as another person unless `context` is given; checks all of them at the end."""
    with pages(browser, day.app) as opened:
        yield opened


@pytest.fixture
def open_small(browser: Browser, small_app: AppProcess) -> Iterator[OpenPage]:
    """The same with the small app."""
    with pages(browser, small_app) as opened:
        yield opened


@contextmanager
def pages(browser: Browser, app: AppProcess, url: str = "") -> Iterator[OpenPage]:
    """Opens pages of an app, by default at its own address, and checks that nothing went wrong in any of them."""
    url = url or app.url
    contexts: list[BrowserContext] = []
    troubles: list[str] = []

    def watch(page: Page) -> None:
        def console(message: ConsoleMessage) -> None:
            if message.type == "error" and not message.text.startswith(OWN_REPORTS):
                troubles.append(message.text)

        def asked(request: Request) -> None:
            if not request.url.startswith((url, "data:", "blob:")):
                troubles.append(f"asked {request.url}")

        page.on("console", console)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", asked)

    def opened(*, context: BrowserContext | None = None, path: str = "", **options: Any) -> Page:
        if context is None:
            context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})
            context.set_default_timeout(TIMEOUT_MS)
            contexts.append(context)
        page = context.new_page()
        watch(page)
        page.goto(f"{url}/{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="session")
def picture() -> Callable[[Page, str], None]:
    """Keeps a screenshot in the folder SCREENSHOTS, build/screenshots by default."""
    folder = Path(os.environ.get("SCREENSHOTS") or ROOT / "build" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        page.screenshot(path=folder / f"chat-{name}.png")

    return take
