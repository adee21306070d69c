from __future__ import annotations

import re

import pytest

from deploy.bench import html_report, report, result_files
from deploy.bench.scenario import ScenarioFailed
from tests.deploy.made_scenario import made_result, made_scenario


@pytest.fixture(autouse=True)
def made(monkeypatch):
    for module in (report, html_report):
        monkeypatch.setattr(module, "find_scenario", lambda name: made_scenario())


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    for name in ("made", "again"):
        result_files.write(made_result(name), folder / f"{name}.json")
    return folder


def test_only_what_stands_between_the_marks_is_written(tmp_path, results):
    page = tmp_path / "page.md"
    page.write_text(f"# By hand\n\n{report.BEGIN}\nold\n{report.END}\n\nby hand too\n")
    assert report.write(results, page, tmp_path / "images") == ["again", "made"]
    text = page.read_text()
    assert text.startswith("# By hand\n\n")
    assert text.endswith("\n\nby hand too\n")
    assert "old" not in text
    assert "| a \\| b <i> | 0.97 (0.95 to 0.99) |" in text
    assert "Quick run" in text
    for image in re.findall(r"\((images/[^)]+)\)", text):
        assert (tmp_path / image).is_file()
    report.write(results, page, tmp_path / "images")
    assert page.read_text() == text, "writing again changes nothing"


def test_a_page_without_marks_is_refused(tmp_path, results):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ScenarioFailed, match="lacks the lines"):
        report.write(results, page)
    assert page.read_text() == "nothing"


def test_the_html_file_can_be_read_alone(tmp_path, results):
    path = tmp_path / "report.html"
    assert html_report.write(results, path) == ["again", "made"]
    page = path.read_text()
    assert page.count("<svg") == 2
    assert "a | b &lt;i&gt;" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "figures share no ids"
    loaded = re.findall(r'<(?:script|link|img|iframe)\b|\bsrc="|url\((?!#)', page)
    assert not loaded, "nothing is loaded from elsewhere"


def test_a_report_of_nothing_says_what_to_do(tmp_path):
    with pytest.raises(ScenarioFailed, match="make bench"):
        html_report.write(tmp_path / "none", tmp_path / "report.html")


@pytest.mark.parametrize("write", [lambda r, p: report.write(r, p), lambda r, p: html_report.write(r, p)])
def test_a_result_of_another_version_is_told_with_what_to_do(tmp_path, results, write):
    old = made_result("old")
    del old["ratio"], old["intervals"]
    old["settings"] = {}
    result_files.write(old, results / "old.json")
    page = tmp_path / "page.md"
    page.write_text(f"{report.BEGIN}\n{report.END}")
    with pytest.raises(ScenarioFailed, match=r"the result old lacks .*make bench-old"):
        write(results, page)
