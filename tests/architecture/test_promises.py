"""Each promise of docs/operations/promises.md, and each fault of trust.md, names a test that exists."""

import re

from testing.programs import ROOT

PAGE = ROOT / "docs" / "operations" / "promises.md"
FAULTS = PAGE.with_name("trust.md")


def test_every_promise_names_a_test_that_exists() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (?!promise|-)", line)]
    assert len(rows) > 15
    for row in rows:
        (name,) = re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", row)
        path, _, function = name.partition("::")
        text = (ROOT / path).read_text()
        assert not function or re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), name


def test_every_fault_names_a_test_that_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", FAULTS.read_text())
    assert len(named) > 10
    for name in named:
        folder = ROOT if name.startswith("tests/") else ROOT / "tests" / "memory_service"
        assert (folder / name).is_file(), name
