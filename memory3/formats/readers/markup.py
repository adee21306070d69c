"""Markup as text: Markdown, HTML and LaTeX. Headings become sentences, rows of tables "column: value" pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from memory3.formats.document import FileDocument, title_of, useful_title
from memory3.formats.encoding import decode
from memory3.formats.libraries import imported
from memory3.formats.readers.structured import metadata_of, parsed_toml, parsed_yaml, tree_lines
from memory3.formats.readers.tables import table_lines
from memory3.text.paragraphs import LABEL

_FRONT_MATTER = re.compile(r"\A(?P<mark>---|\+\+\+)[ \t]*\n(?P<fields>.*?)\n(?P=mark)[ \t]*(?:\n|\Z)", re.DOTALL)
_PARSER = MarkdownIt("commonmark", {"maxNesting": 100}).enable("table")  # what is deeper is left out
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")


def read_markdown(source: Path) -> Iterator[FileDocument]:
    """CommonMark with tables and front matter; marks, links and images lose their signs.

    The title is the front matter's, or the first heading. Each field of the front matter is metadata, and a line.
    """
    read = decode(source.read_bytes())
    text = read.text.replace("\r\n", "\n")
    fields, text, note = _front_matter(text)
    heading, body = markdown_text(text)
    titles = fields.pop("title", "") or ""
    title = ", ".join(map(str, titles)) if isinstance(titles, list) else str(titles)
    if title and heading and heading != title:
        body = f"{sentence(heading)}\n\n{body}"
    elif not title:
        title = heading or title_of(source)
    lines = "\n".join(tree_lines(fields))
    if fields:
        note = f"front matter became metadata and text: {', '.join(map(str, fields))}"
    body = "\n\n".join(part for part in (lines, body) if part)
    yield FileDocument(str(source), str(source), title, body, metadata_of(fields)).noted(read.note, note)


def _front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """Its fields, the text after it, and a note where it cannot be read; then it stays text."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text, ""
    try:
        parse = parsed_yaml if found["mark"] == "---" else parsed_toml
        fields = parse(found["fields"])
    except ValueError as error:
        return {}, f"{found['fields']}\n\n{text[found.end() :]}", f"front matter kept as text: {error}"
    if not isinstance(fields, Mapping):  # a horizontal rule and a text
        return {}, text, ""
    return {str(name): value for name, value in fields.items()}, text[found.end() :], ""


def markdown_text(
    text: str, *, headed: bool | None = True, numbered: bool = True, signs: Mapping[int, int] | None = None
) -> tuple[str, str]:
    """The first heading, or empty, and the text of Markdown.

    headed: whether the first row of tables names columns. numbered: whether the numbers of items are
    right. signs: characters that stand for others without a meaning.
    """
    tokens = _PARSER.parse(text)
    for token in tokens if signs else ():
        for one in (token, *(token.children or ())):
            one.content = one.content.translate(signs)
    title = ""
    if len(tokens) > 1 and tokens[0].type == "heading_open":
        title, tokens = _inline(tokens[1]), tokens[3:]
    blocks: list[str] = []
    rows: list[list[str]] | None = None
    number = ""
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "table_open":
            rows = []
        elif token.type == "table_close":
            blocks.append("\n".join(table_lines(rows or [], headed=headed if rows and any(rows[0]) else False)))
            rows = None
        elif token.type == "tr_open" and rows is not None:
            rows.append([])
        elif token.type in ("fence", "code_block"):
            blocks.append(token.content.rstrip("\n"))
        elif token.type == "html_block":
            blocks.append(_without_tags(token.content))
        elif token.type == "list_item_open":
            number = f"{token.info}{token.markup} " if token.info and numbered else ""
        elif token.type == "inline":
            words, number = number + _inline(token), ""
            if rows:
                rows[-1].append(words)
            else:
                blocks.append(sentence(words) if before and before.type == "heading_open" else words)
    return title, "\n\n".join(block for block in blocks if block)


def sentence(heading: str) -> str:
    """A heading as a sentence, so that it does not run into the text below it."""
    return heading if not heading or heading[-1] in ".!?:。！？" else f"{heading}."


def _inline(token: Token) -> str:
    """The words of inline text. A wrapped line runs on; one that begins with a label stays a line of its own."""
    lines, kept = [""], [True]
    for child in token.children or ():
        if child.type in ("text", "code_inline", "image"):
            lines[-1] += child.content
        elif child.type == "html_inline" and child.content.lower().startswith("<br"):
            lines.append("")
            kept.append(True)
        elif child.type in ("softbreak", "hardbreak"):
            lines.append("")
            kept.append(child.type == "hardbreak")
    words = lines[0]
    for line, keep in zip(lines[1:], kept[1:], strict=True):
        words += ("\n" if keep or LABEL.match(line) else " ") + line
    return words.strip()


def _without_tags(html: str) -> str:
    """The words of HTML inside Markdown."""
    if re.match(r"\s*<(script|style)\b", html, re.IGNORECASE):
        return ""
    return "\n".join(filter(None, (words(line) for line in _TAG.sub("\n", _COMMENT.sub("", html)).split("\n"))))


_NO_TEXT = ["script", "style", "noscript", "template", "svg", "nav"]
_FRAME = ":is(header, footer, aside):not(:is(article, section, header, footer, aside) *)"
"""Around the text of a page; within an article or a section they belong to it."""
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_BLOCKS = [*_HEADINGS, "p", "div", "section", "article", "main", "li", "ul", "ol", "dl", "dt", "dd", "tr", "table"]
_BLOCKS += ["br", "blockquote", "pre", "figcaption", "caption", "address", "details", "summary", "hr", "td", "th"]
_BLOCKS += ["header", "footer", "aside", "figure", "form", "fieldset", "legend", "option", "textarea", "button"]
_SEEN = "img, select:has(option[selected]) option, :is(form, fieldset, label, li, p, td, th) input"
"""Other inputs are switches of menus."""
_NO_VALUE = ("hidden", "password", "file", "image", "submit", "reset", "button")
_XHTML = re.compile(r"\A\s*<\?xml\b|<html\b[^>]*\bxmlns\s*=")
_CLOSED = re.compile(r"<(?!(?:br|hr|img|input|meta|link|col|area|base|embed|source|track|wbr)\b)(\w+)((?:\s[^<>]*)?)/>")
"""An element of XHTML without content, which is an open one to a parser of HTML."""
_HEAD = 4096
"""Characters in which a page says what it is."""
_NUMBERED = "\x1d"
"""Before the number of an item, whose text may begin with a block of its own."""
_BREAK = "\x1e"
"""Between lines of the text, until those of the source are gone; white space to `words`."""


def read_html(source: Path) -> Iterator[FileDocument]:
    """The words of a page's main part, a line a block; in the encoding that the page declares, or UTF-8."""
    read = decode(source.read_bytes())
    title, text = html_text(read.text)
    heading, _, below = text.partition("\n")
    if heading == sentence(title):
        text = below
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(read.note)


def html_text(page: str, *, whole: bool = False) -> tuple[str, str]:
    """The title and the words of the main part of a page, or of the whole."""
    if _XHTML.search(page[:_HEAD]):
        page = _CLOSED.sub(r"<\1\2></\1>", page)
    tree = imported("selectolax.lexbor").LexborHTMLParser(page)
    head = tree.css_first("title")
    title = useful_title(words(head.text())) if head else ""
    if not tree.body:
        return title, ""
    for block in tree.body.css(", ".join(_BLOCKS)):
        block.insert_before(_BREAK)
        block.insert_after(_BREAK)
    for seen in tree.body.css(_SEEN):
        seen.replace_with(f" {_shown(seen)} ")
    for above in tree.body.css("sup, msup > :last-child"):
        if (text := above.text()) != raised(text):
            above.replace_with(raised(text))
    heading = tree.body.css_first("h1")
    page_heading = words(heading.text()) if heading else ""
    tree.body.strip_tags(_NO_TEXT)
    parts = [tree.body] if whole else _main_parts(tree.body)
    if not title:
        title = next((words(first.text()) for part in parts if (first := part.css_first("h1"))), page_heading)
    return title, "\n".join(line for part in parts for line in _lines_of(part))


def _shown(element: Any) -> str:
    """What people see of a choice or a field of a form, or read in place of an image that the text does not name."""
    values = element.attributes
    kind = element.tag if element.tag != "input" else (values.get("type") or "text").lower()
    if kind == "img":
        text, around = words(values.get("alt") or ""), element.parent
        while around.parent is not None and not around.text().strip():
            around = around.parent
        return "" if text in words(around.text()) else text
    if kind in ("checkbox", "radio", "option"):
        return f"{'☒' if {'checked', 'selected'} & values.keys() else '☐'} {element.text()}"
    return (values.get("value") or "") if kind not in _NO_VALUE else ""


def _main_parts(body: Any) -> list[Any]:
    """The elements with the text of a page: `main`, articles that hold most of it, or all but the page's frame."""
    mains = body.css("main:not(main main)")
    if _characters(mains):
        return list(mains)
    frame = body.css(_FRAME)
    if _characters(frame) < _characters([body]):  # otherwise it is the text
        for part in frame:
            part.decompose()
    articles = body.css("article:not(article article)")
    return list(articles) if 2 * _characters(articles) > _characters([body]) else [body]


def _characters(elements: Sequence[Any]) -> int:
    return sum(len("".join(element.text().split())) for element in elements)


def _lines_of(root: Any) -> list[str]:
    """The words below `root`, a line a block. Lines of the source are no lines of the text, except in `pre`."""
    for table in root.css("table:not(:has(table))"):  # one around others is for their layout
        table.replace_with(f"{_BREAK}{_BREAK.join(_html_table(table))}{_BREAK}")
    for heading in root.css(", ".join(_HEADINGS)):
        heading.replace_with(f"{_BREAK}{sentence(words(heading.text()))}{_BREAK}")
    for ordered in root.css("ol"):
        items = [item for item in ordered.iter() if item.tag == "li" and item.text().strip()]
        step = -1 if "reversed" in ordered.attributes else 1
        number = _whole(ordered, "start", len(items) if step < 0 else 1)
        for item in items:
            number = _whole(item, "value", number)
            item.insert_before(f"{_NUMBERED}{numeral(number, ordered.attributes.get('type') or '1')}.")
            number += step
    for term in root.css("dt"):
        name = words(term.text())
        following = term.next
        while following is not None and following.tag == "-text":
            following = following.next
        if following is not None and following.tag == "dd" and name and len(name) < 80:
            value = words(following.text())
            following.decompose()
            term.replace_with(f"{_BREAK}{name.rstrip(':')}: {value}{_BREAK}")
    for block in root.css("pre"):
        block.replace_with(block.text().replace("\n", _BREAK))
    text = re.sub(rf"{_NUMBERED}(-?\w+\.)\s*", r"\1 ", root.text())
    return [line for line in map(words, text.split(_BREAK)) if line]


def _html_table(table: Any) -> list[str]:
    """The lines of a table; cells that span columns or rows count in each of them."""
    grid: list[list[str]] = []
    spanning: dict[int, tuple[int, str]] = {}  # column: rows left, text
    marks: list[str] = []
    for row in table.css("tr"):
        cells: list[str] = []
        kinds = set()
        for cell in row.css("td, th"):
            _fill(cells, spanning)
            text = words(cell.text())
            kinds.add(cell.tag)
            for _ in range(min(_span(cell, "colspan"), 100)):
                if (rows := _span(cell, "rowspan")) > 1:
                    spanning[len(cells)] = (rows - 1, text)
                cells.append(text)
        _fill(cells, spanning)
        grid.append(cells)
        marks.append("head" if kinds == {"th"} else "label" if row.css_first("th") else "data")
    caption = table.css_first("caption")
    headed = True if marks and marks[0] == "head" and "data" in [m.replace("label", "data") for m in marks] else None
    if marks and "head" not in marks and all(mark == "label" for mark in marks):
        headed = False  # each row has its name in front
    title = [sentence(words(caption.text()))] if caption else []
    return [*title, *table_lines(grid, headed=headed)]


def _fill(cells: list[str], spanning: dict[int, tuple[int, str]]) -> None:
    """Append the cells that a row above reaches down into."""
    while (column := len(cells)) in spanning:
        left, text = spanning.pop(column)
        cells.append(text)
        if left > 1:
            spanning[column] = (left - 1, text)


def _span(cell: Any, name: str) -> int:
    value = cell.attributes.get(name) or ""
    return int(value) if value.isdigit() and int(value) > 0 else 1


def _whole(element: Any, name: str, otherwise: int) -> int:
    value = (element.attributes.get(name) or "").strip()
    return int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else otherwise


def words(text: str) -> str:
    """The text with single spaces, without soft hyphens."""
    return " ".join(text.replace("\u00ad", "").split())


_RAISED = str.maketrans("0123456789+-\u2212", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")


_ROMAN = {1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX"}
_ROMAN |= {5: "V", 4: "IV", 1: "I"}


def numeral(number: int, system: str) -> str:
    """The number of an item in the system that HTML calls 1, a, A, i or I; after z, letters are repeated."""
    if number > 0 and system in ("a", "A"):
        letter = chr(ord(system) + (number - 1) % 26)
        return letter * ((number - 1) // 26 + 1)
    if 0 < number < 4000 and system in ("i", "I"):
        text = ""
        for value, sign in _ROMAN.items():
            text += sign * (number // value)
            number %= value
        return text.lower() if system == "i" else text
    return str(number)


def raised(text: str) -> str:
    """Text above the line: the digits of 10³ are none of the number before them, those of other text stay."""
    return text.translate(_RAISED) if re.fullmatch(r"\s*[+\u2212-]?[0-9]+\s*", text) else text


_TABULAR = re.compile(r"\\begin\{(tabular[xy*]?|longtable|array)\}(.*?)\\end\{\1\}", re.DOTALL)
_COLUMNS = re.compile(r"\A(?:\s*(?:\[[^]]*\]|\{(?:[^{}]|\{[^{}]*\})*\}))+")
_RULES = re.compile(r"\\(?:hline|toprule|midrule|bottomrule|cline\{[^}]*\}|cmidrule(?:\([^)]*\))?\{[^}]*\})")
_GROUP = r"(?:[^{}\\]|\\.)*"
for _ in range(4):
    _GROUP = rf"(?:[^{{}}\\]|\\.|\{{{_GROUP}\}})*"
_GROUP = rf"\s*(?:\[[^]]*\]\s*)*\{{({_GROUP})\}}"
"""An argument, groups in it included, after optional ones, such as a short form."""
_TEX_HEADING = re.compile(rf"\\(?:part|chapter|(?:sub)*section|paragraph)\*?{_GROUP}", re.DOTALL)
_TEX_NAMED = re.compile(rf"\\(title|author|date){_GROUP}", re.DOTALL)
_TEX_DEFINITION = re.compile(
    rf"\\(?:re)?newenvironment\*?(?:{_GROUP}){{3}}|\\newtheorem\*?(?:{_GROUP}){{2}}(?:\[\w+\])?"
    rf"|\\(?:(?:re)?new|provide)command\*?\s*(?:\{{\s*\\\w+\s*\}}|\\\w+){_GROUP}"
    rf"|\\def\s*\\\w+[#\d]*{_GROUP}",
    re.DOTALL,
)
"""No text; one that opens an environment, which another closes, takes pylatexenc minutes."""
_TEX_EXACT = re.compile(
    r"\\[\\%]|(?P<comment>%.*)|\\href\s*(?:\[[^]]*\])?\s*(?P<target>\{[^{}]*\})"
    r"|\\begin\{(?P<kind>[vV]erbatim\*?|lstlisting|minted)\}(?P<block>(?s:.*?))\\end\{(?P=kind)\}"
    r"|\\(?:verb\*?|lstinline|mintinline\{\w+\})(?:\[[^]]*\])?(?P<mark>[^\w\s*{\[])(?P<marked>.*?)(?P=mark)"
    r"|\\(?:url|nolinkurl|path|lstinline|mintinline\{\w+\})(?:\[[^]]*\])?\s*\{(?P<braced>[^{}]*)\}"
)
_OPTIONS = re.compile(r"\A(?:[ \t]*(?:\[[^]]*\]|\{[^{}\n]*\}))*[ \t]*\n")
_EXACT = "\ufdd0{}\ufdd1"
"""In place of text that LaTeX shows as it is, by its number; Unicode keeps both signs for the inside of programs."""


def read_latex(source: Path) -> Iterator[FileDocument]:
    """The text of LaTeX, by pylatexenc; formulas keep their signs as far as Unicode has them."""
    read = decode(source.read_bytes())
    plain = imported("pylatexenc.latex2text").LatexNodes2Text(keep_comments=False, strict_latex_spaces=False)
    try:
        title, text = _latex_text(read.text.replace("\r\n", "\n"), lambda latex: str(plain.latex_to_text(latex)))
        note = ""
    except Exception as error:  # pylatexenc raises any for a command without what belongs to it
        title, text = "", read.text
        note = f"its LaTeX cannot be converted, read as plain text: {type(error).__name__}: {error}"
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(read.note, note)


def _latex_text(latex: str, text_of: Callable[[str], str]) -> tuple[str, str]:
    """The title, or empty, and the text with authors and date. text_of: what pylatexenc makes of LaTeX."""
    exact: list[str] = []

    def kept(found: re.Match[str]) -> str:
        if found["comment"] or found["target"]:  # as links of other markup, one is its words
            return ""
        text = found["marked"] or found["braced"] or _OPTIONS.sub("", found["block"] or "").strip("\n")
        if not text:
            return found[0]
        exact.append(re.sub(r"\\([%#&_])", r"\1", text) if found["braced"] else text)
        mark = _EXACT.format(len(exact) - 1)
        return f"{_BREAK}{mark}{_BREAK}" if found["block"] else mark

    def shown(text: str) -> str:
        return re.sub(_EXACT.format(r"(\d+)"), lambda found: exact[int(found[1])], text)

    latex = _TEX_DEFINITION.sub("", _TEX_EXACT.sub(kept, latex))
    named: dict[str, list[str]] = {"title": [], "author": [], "date": []}
    for name, value in _TEX_NAMED.findall(latex):
        named[name].append("" if "\\today" in value else words(text_of(value)))
    if body := re.search(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", latex, re.DOTALL):
        latex = body[1]
    latex = _TEX_NAMED.sub("", latex).replace("\\maketitle", "")
    latex = _TABULAR.sub(lambda found: _tex_table(found[2], text_of), latex)
    latex = _TEX_HEADING.sub(lambda found: f"\n\n{sentence(found[1])}\n\n", latex)
    blocks = [words(block) for block in re.split(rf"\n\s*\n|\n(?=\s*\*)|{_BREAK}", text_of(latex))]
    facts = {name.title(): ", ".join(filter(None, named[name])) for name in ("author", "date")}
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    return shown(" ".join(named["title"])), shown("\n".join(filter(None, [*lines, *blocks])))


def _tex_table(body: str, text_of: Callable[[str], str]) -> str:
    """The rows of a tabular as lines that go through the conversion unchanged."""
    body = _RULES.sub("", _COLUMNS.sub("", body, count=1))
    cells = [[words(text_of(c)) for c in re.split(r"(?<!\\)&", row)] for row in re.split(r"\\\\(?:\[[^]]*\])?", body)]
    lines = [re.sub(r"([&%$#_{}])", r"\\\1", line) for line in table_lines(cells)]
    return "".join(f"{_BREAK}{line}{_BREAK}" for line in lines)
