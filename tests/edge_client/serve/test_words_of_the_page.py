"""Every text of the chat page has a translation in each language; no translation is left without its text."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import edge_client.serve

PAGE = Path(edge_client.serve.__file__).parent / "page"
LANGUAGES = ("de", "zh")
ATTRIBUTES = {"aria-label", "title", "placeholder"}
VOID = {"meta", "link", "input", "br"}
LETTER = re.compile(r"[^\W\d_]")


class StaticTexts(HTMLParser):
    """The texts and attributes of index.html's body that words.js translates."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._open: list[bool] = []  # of each open element, whether its text stays as it is

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found |= {value for name, value in attrs if name in ATTRIBUTES and value}
        if tag not in VOID:
            kept = tag in ("head", "kbd", "noscript") or values.get("translate") == "no"
            self._open.append(kept or any(self._open))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if LETTER.search(text) and not any(self._open):
            self.found.add(text)


def key(code: str, start: int) -> Iterator[str]:
    """The parts of the key of a template literal whose text begins at `start`: {0}, {1} in place of expressions."""
    at, number = start, 0
    while code[at] != "`":
        if not code.startswith("${", at):
            yield code[at]
            at += 1
            continue
        depth, at = 1, at + 2
        while depth:
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        yield f"{{{number}}}"
        number += 1


def keys_of_code(code: str) -> set[str]:
    """The keys of all t`...` in a module."""
    return {"".join(key(code, found.end())) for found in re.finditer(r"(?<![\w$])t`", code)}


def keys() -> set[str]:
    """All keys of the page."""
    static = StaticTexts()
    static.feed((PAGE / "index.html").read_text(encoding="utf-8"))
    modules = [module for module in PAGE.glob("*.js") if module.name != "words.js"]
    return static.found.union(*(keys_of_code(module.read_text(encoding="utf-8")) for module in modules))


def translations(language: str) -> dict[str, str]:
    """The translations of a language: what its module exports is JSON but for the last comma."""
    module = (PAGE / "words" / f"{language}.js").read_text(encoding="utf-8")
    body = module[module.index("export default {") + len("export default ") :].rstrip().removesuffix(";")
    return dict(json.loads(re.sub(r",\s*}$", "}", body)))


def test_keys_of_a_module_are_its_texts_with_numbers_for_values() -> None:
    code = 'x(t`${a} of ${f({ b: "c" })}`); at`no`; y = ok ? t`yes, ${b ? `…${b}` : b}` : t`never`;'
    assert keys_of_code(code) == {"{0} of {1}", "yes, {0}", "never"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_has_a_translation_and_every_translation_a_text(language: str) -> None:
    found, expected = set(translations(language)), keys()
    assert sorted(expected - found) == [], "without a translation"
    assert sorted(found - expected) == [], "no longer used"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_has_the_values_of_its_text(language: str) -> None:
    for text, translation in translations(language).items():
        assert sorted(re.findall(r"\{\d\}", translation)) == sorted(re.findall(r"\{\d\}", text)), text
        assert translation.strip() == translation != ""


def test_the_worker_keeps_every_file_of_the_page() -> None:
    listed = set(re.findall(r'"([\w/.]+\.\w+)"', (PAGE / "worker.js").read_text(encoding="utf-8")))
    files = {str(file.relative_to(PAGE)) for file in PAGE.rglob("*") if file.suffix in (".js", ".css", ".svg")}
    assert files - listed == {"worker.js"}
