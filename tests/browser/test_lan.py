"""The page from another machine: over plain HTTP, where a browser has no secure context, and over TLS."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect

from testing.processes import AppProcess
from tests.browser.chat_page import ANSWER, QUESTION, answer_without_end, ask_and_wait, set_settings
from tests.browser.conftest import CHROMIUM, OPTIONS, pages
from tests.browser.day import PATIENT, Day

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"),
]
NETWORK, OWN, OTHERS = f"memory3-{os.getpid()}", "10.213.77.1", "10.213.77.2"


@pytest.fixture(scope="module")
def other_machine(driver: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser in a network namespace of its own, which sees this machine at OWN and nothing else."""
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
        opened = driver.chromium.launch(executable_path=program, args=OPTIONS)
        yield opened
        opened.close()
    finally:
        subprocess.run(["ip", "link", "del", here], capture_output=True)
        subprocess.run(["ip", "netns", "del", NETWORK], capture_output=True)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_page_of_another_machine_does_all_that_needs_a_secure_context_elsewhere(
    other_machine: Browser, day: Day, bundle: Path, tmp_path: Path, scheme: str, picture: Callable[[Page, str], None]
) -> None:
    tls = ["--tls"] if scheme == "https" else []
    with AppProcess.start(tmp_path, bundle, day.service.address, "--lan", *tls, environment=PATIENT) as app:
        url = f"{scheme}://{OWN}:{app.port}"
        with pages(other_machine, app, url) as open_page:
            page = open_page(path=f"#key={app.key}", ignore_https_errors=True)
            assert page.evaluate("isSecureContext") is bool(tls)
            assert page.url == f"{url}/"  # the key does not stay in the address
            set_settings(page, mode="off", max_tokens="6")
            ask_and_wait(page, "one", 1)
            ask_and_wait(page, "two", 2)
            page.get_by_role("button", name="Copy the answer").last.click()
            expect(page.locator(".toast").last).to_have_text("Copied.")
            page.reload()
            expect(page.locator("li.user")).to_have_count(2)
            two = open_page(context=page.context)
            two.get_by_role("textbox", name="API key").fill(app.key)
            two.get_by_role("button", name="Go on").click()
            two.get_by_role("button", name="one", exact=True).click()
            answer_without_end(page)
            set_settings(page, max_tokens="1500")
            two.get_by_label("Your question").fill("me too")
            page.get_by_label("Your question").fill("a long one")
            page.keyboard.press("Enter")
            expect(page.locator("li.assistant .answer").last).to_have_attribute("aria-busy", "true")
            two.get_by_label("Your question").press("Enter")
            expect(two.locator(".toast.error")).to_contain_text("another tab")
            expect(two.get_by_label("Your question")).to_have_value("me too")
            page.get_by_role("button", name="Stop").click()
            expect(two.locator("li.user")).to_have_count(3)
            if not tls:
                two.get_by_role("button", name="New chat").click()
                set_settings(two, mode="exact", max_tokens="40")
                expect(ask_and_wait(two, QUESTION)).to_contain_text(ANSWER)
                expect(two.locator(".toast")).to_have_count(0)
                two.mouse.move(700, 30)
                picture(two, "lan")
