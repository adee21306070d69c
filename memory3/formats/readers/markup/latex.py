"""LaTeX as text, by pylatexenc."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode
from memory3.formats.libraries import imported
from memory3.formats.readers.markup.typography import BREAK, sentence, words
from memory3.formats.readers.tables import table_lines

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
        return f"{BREAK}{mark}{BREAK}" if found["block"] else mark

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
    blocks = [words(block) for block in re.split(rf"\n\s*\n|\n(?=\s*\*)|{BREAK}", text_of(latex))]
    facts = {name.title(): ", ".join(filter(None, named[name])) for name in ("author", "date")}
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    return shown(" ".join(named["title"])), shown("\n".join(filter(None, [*lines, *blocks])))


def _tex_table(body: str, text_of: Callable[[str], str]) -> str:
    """The rows of a tabular as lines that go through the conversion unchanged."""
    body = _RULES.sub("", _COLUMNS.sub("", body, count=1))
    cells = [[words(text_of(c)) for c in re.split(r"(?<!\\)&", row)] for row in re.split(r"\\\\(?:\[[^]]*\])?", body)]
    lines = [re.sub(r"([&%$#_{}])", r"\\\1", line) for line in table_lines(cells)]
    return "".join(f"{BREAK}{line}{BREAK}" for line in lines)
