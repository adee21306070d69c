"""What axe-core finds wrong in a page."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong, best practices included, once all that moves has come to rest."""
    page.wait_for_timeout(300)
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {node['html'][:200]}" for v in found for node in v["nodes"]]
