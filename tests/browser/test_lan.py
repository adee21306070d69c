"""The page from another machine: over plain HTTP, where a browser has no secure context, and over TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from deploy.processes import AppProcess
from tests.browser.chat_page import ask_and_wait, set_settings
from tests.browser.conftest import CHROMIUM, OPTIONS, pages
from tests.edge_client.tiny_bundle import tiny_bundle

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"),
]
NETWORK, OWN, OTHERS = f"memory3-{os.getpid()}", "10.213.77.1", "10.213.77.2"


@pytest.fixture(scope="module")
def other_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser in a network namespace of its own, which sees this machine at OWN and nothing else."""
    if not CHROMIUM:
        pytest.skip("no chromium here: run `make setup-browser`")
    here, there = f"m3h{os.getpid()}", f"m3t{os.getpid()}"
    commands = (
        f"ip netns add {NETWORK}",
        f"ip link add {here} type veth peer name {there} netns {NETWORK}",
        f"ip address add {OWN}/30 dev {here}",
        f"ip link set {here} up",
        f"ip -n {NETWORK} address add {OTHERS}/30 dev {there}",
        f"ip -n {NETWORK} link set {there} up",
    )
    program = tmp_path_factory.mktemp("there") / "chromium"
    program.write_text(f'#!/bin/sh\nexec ip netns exec {NETWORK} {CHROMIUM} "$@"\n')
    program.chmod(0o755)
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr}")
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=program, args=OPTIONS)
            yield opened
            opened.close()
    finally:
        subprocess.run(["ip", "link", "del", here], capture_output=True)
        subprocess.run(["ip", "netns", "del", NETWORK], capture_output=True)


def started(folder: Path, *options: str) -> AppProcess:
    return AppProcess.start(folder, tiny_bundle(folder).folder, "127.0.0.1:1", "--lan", *options)


def used(page: Page) -> None:
    """A conversation with all that needs a secure context elsewhere: ids, locks, the clipboard."""
    set_settings(page, mode="off", max_tokens="6")
    ask_and_wait(page, "one", 1)
    ask_and_wait(page, "two", 2)
    page.get_by_role("button", name="Copy the answer").last.click()
    expect(page.locator(".toast").last).to_have_text("Copied.")
    page.reload()
    expect(page.locator("li.user")).to_have_count(2)


def test_over_plain_http_with_the_key_of_the_address(other_machine: Browser, tmp_path: Path) -> None:
    with started(tmp_path) as app, pages(other_machine, app, f"http://{OWN}:{app.port}") as open_page:
        page = open_page(path=f"#key={app.key}")
        assert page.evaluate("isSecureContext") is False
        assert page.url == f"http://{OWN}:{app.port}/"  # the key does not stay in the address
        used(page)
        two = open_page(context=page.context, path=f"#key={app.key}")
        two.get_by_role("button", name="one", exact=True).click()
        set_settings(page, max_tokens="1800")
        two.get_by_label("Your question").fill("me too")
        page.get_by_label("Your question").fill("a long one")
        page.keyboard.press("Enter")
        expect(page.locator("li.assistant .answer").last).to_have_attribute("aria-busy", "true")
        two.get_by_label("Your question").press("Enter")
        expect(two.locator(".toast.error")).to_contain_text("another tab")


def test_over_tls_with_the_certificate_that_it_made(other_machine: Browser, tmp_path: Path) -> None:
    context: BrowserContext = other_machine.new_context(ignore_https_errors=True)
    with started(tmp_path, "--tls") as app:
        with pages(other_machine, app, f"https://{OWN}:{app.port}") as open_page:
            used(open_page(context=context, path=f"#key={app.key}"))
        context.close()


def test_without_the_key_the_page_asks_for_it(other_machine: Browser, tmp_path: Path) -> None:
    with started(tmp_path) as app, pages(other_machine, app, f"http://{OWN}:{app.port}") as open_page:
        page = open_page()
        page.get_by_role("textbox", name="API key").fill(app.key)
        page.get_by_role("button", name="Go on").click()
        set_settings(page, mode="off", max_tokens="6")
        ask_and_wait(page, "one")
