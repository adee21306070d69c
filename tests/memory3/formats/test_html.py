"""HTML: the words of the main part, in the lines that people see."""

from pathlib import Path

import pytest

from tests.memory3.formats.reading import read


def test_a_web_page_gives_its_main_part_without_menus_and_scripts(tmp_path: Path) -> None:
    page = tmp_path / "some_page.html"
    page.write_text(
        "<html><head><title>The  page</title><style>p {}</style></head><body><nav>Home</nav>"
        "<main><h1>The page</h1><p>One <b>bold</b> word.</p><h2>Part</h2><ul><li>First<li>Second</ul>"
        "<table><tr><td>a</td><td>b</td></tr></table><script>bad()</script></main><footer>x</footer></body></html>"
    )
    document = read(page)
    assert document.title == "The page"
    assert document.text.split("\n") == ["One bold word.", "Part.", "First", "Second", "a: b"]
    page.write_text("<p>Only this")
    document = read(page)
    assert (document.title, document.text) == ("some page", "Only this")


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("<article>Ask<article>Reply 1</article></article><article>Reply 2</article>", ["Ask", "Reply 1", "Reply 2"]),
        ("<main></main><div>Gate 7</div>", ["Gate 7"]),
        ("<div>The gate opens at seven.</div><article>More</article>", ["The gate opens at seven.", "More"]),
        ("<div>Gate 7</div><aside><article>Other gates of town</article></aside>", ["Gate 7"]),
        ("<form><header>Site</header><p>Gate 7</form><footer>x</footer>", ["Gate 7"]),
        (
            "<header>x</header><main><header>By Bo</header>Gate 8<aside>Closed</aside></main>",
            ["By Bo", "Gate 8", "Closed"],
        ),
        ("<article><header>By Ann</header>Gate 7<footer>May</footer></article>", ["By Ann", "Gate 7", "May"]),
        ("<header><p>Under construction</p></header>", ["Under construction"]),
    ],
)
def test_all_of_the_main_part_of_a_page_is_read(body: str, lines: list[str], tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text(f"<title>Gates</title><body>{body}")
    document = read(page)
    assert document.text.split("\n") == lines


def test_empty_elements_of_xhtml_do_not_hold_what_follows_them(tmp_path: Path) -> None:
    head = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/><script src="x"/></head>'
    (tmp_path / "a.xhtml").write_text(
        f'{head}<body><p>One<br/>two <a id="p"/>three</p><div class="x"/>Four</body></html>'
    )
    document = read(tmp_path / "a.xhtml")
    assert (document.title, document.text) == ("a", "One\ntwo three\nFour")


def test_items_of_html_have_the_numbers_that_browsers_show(tmp_path: Path) -> None:
    items = "<li>Sift<li value=5>Add<li>Rest"
    lists = f"<ol type=a>{items}</ol><ol reversed>{items[:8]}<li>Rest</ol><ol type=I start=0>{items}</ol>"
    (tmp_path / "a.html").write_text(lists)
    document = read(tmp_path / "a.html")
    found = ["a. Sift", "e. Add", "f. Rest", "2. Sift", "1. Rest", "0. Sift", "V. Add", "VI. Rest"]
    assert document.text.split("\n") == found


def test_forms_images_and_powers_of_html_are_what_people_see(tmp_path: Path) -> None:
    cities = "<select><option>Oslo<option selected>Bergen</select>"
    boxes = "<input type=checkbox checked> Heated <input type=radio> Let <input type=hidden value=k3>"
    form = f"<form><label>Name <input value='Ida Berg'></label> in {cities}<p>{boxes}</form>"
    switch = "<ul><li><input type=checkbox>Pay</ul><div><input type=checkbox></div>"
    power = "<p>m<math><msup><mi>c</mi><mn>2</mn></msup></math>"
    (tmp_path / "a.html").write_text(
        f"{form}{switch}<a href=x><img alt='Floor plan'></a>{power}<p>Bergen<img alt=Bergen>"
    )
    document = read(tmp_path / "a.html")
    lines = ["Name Ida Berg in", "☐ Oslo", "☒ Bergen", "☒ Heated ☐ Let", "☐ Pay", "Floor plan", "mc²", "Bergen"]
    assert document.text.split("\n") == lines


def test_lines_of_the_source_of_a_web_page_are_no_lines_of_its_text(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text("<p>The <b>option\nruns</b>\nout<br>today.</p><pre>kite-55\nkite<br>56</pre><p>End\nof it")
    document = read(page)
    assert document.text == "The option runs out\ntoday.\nkite-55\nkite\n56\nEnd of it"


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        ("<td>Name<td>Bob", ["Name: Bob"]),
        ("<td>Name<td><table><tr><td>Order<td>4711</table><td>Next", ["Name", "Order: 4711", "Next"]),
        ("<th>Fluid<th>litres<tr><td>H<sub>2</sub>O<td>12<span>.5</span>", ["Fluid: H2O; litres: 12.5"]),
        ("<td>Days<td><ul><li>Mon<li>Tue</ul><div>May</div>June", ["Days: Mon Tue May June"]),
    ],
)
def test_cells_of_html_keep_words_whole_and_apart(cells: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f"<table><tr>{cells}</table>")
    assert read(tmp_path / "a.html").text.split("\n") == lines


def test_headings_and_definitions_of_html_keep_words_apart(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<h2>Gate<br>7</h2><dl><dt>Open<dd><p>Mon<p>Tue</dl>")
    assert read(tmp_path / "a.html").text == "Gate 7.\nOpen: Mon Tue"
