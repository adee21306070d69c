"""LaTeX: its sections, tables and lists, and what it shows as it is."""

from pathlib import Path

from tests.memory3.formats.reading import read


def test_latex_has_its_sections_tables_and_lists(tmp_path: Path) -> None:
    paper = tmp_path / "a.tex"
    paper.write_text(
        "\\documentclass{article}\\title{On Bees}\\author{M. Okafor}\n\\begin{document}\\maketitle % hidden\n"
        "\\section{Setup} The hive has 41{,}000 bees. \\emph{Weight}: 38\\,kg, 5\\% more.\n\n"
        "\\begin{tabular}{l|r} Colony & Yield \\\\ \\hline Amber & 22 kg \\\\ \\end{tabular}\n"
        "\\begin{itemize}\\item Queen: marked blue\\end{itemize}\n\\end{document}\n"
    )
    document = read(paper)
    text = document.text
    assert document.title == "On Bees"
    assert "Author: M. Okafor\nSetup.\nThe hive has 41,000 bees. Weight: 38 kg, 5% more." in text
    assert "Colony: Amber; Yield: 22 kg" in text.split("\n")
    assert "Queen: marked blue" in text
    assert "hidden" not in text


def test_latex_keeps_what_it_shows_as_it_is_and_its_comments_do_not_reach_into_it(tmp_path: Path) -> None:
    paper = tmp_path / "a.tex"
    paper.write_text(
        "\\title[Bees]{On {\\large Bees {II}}}\\author[1]{Ann}\\author[2]{Bob}\\date{May 2021}\n\\begin{document}\n"
        "\\section[Set]{Setup of \\href{http://a.b/c%20d}{the hive}} See \\url{http://a.b/c%20d_e\\#f}. % \\verb|x\n"
        "\\verb|50%| and \\lstinline{a_b%c} % \\begin{verbatim}\n\nKept.\n"
        '\\begin{lstlisting}[language=C]\nif (x) {\n  printf("%d");\n\\end{lstlisting}\n'
        "\\begin{tabular}{ll} Rate & \\verb|5%| \\\\ \\end{tabular}\n\\end{document}\n"
    )
    document = read(paper)
    assert document.title == "On Bees II"
    assert document.text.split("\n") == [
        "Author: Ann, Bob",
        "Date: May 2021",
        "Setup of the hive.",
        "See http://a.b/c%20d_e#f. 50% and a_b%c",
        "Kept.",
        "if (x) {",
        '  printf("%d");',
        "Rate: 5%",
    ]


def test_definitions_of_latex_are_no_text_and_cost_no_time(tmp_path: Path) -> None:
    environments = "".join(
        f"\\newenvironment{{e{n}}}[1][x]{{\\begin{{THEOREM}} {{\\bf :}} }}{{\\end{{THEOREM}}}}\n" for n in range(3)
    )
    (tmp_path / "a.tex").write_text(
        f"\\begin{{document}}\n{environments}\\newtheorem{{LEMMA}}[THEOREM]{{Lemma}}\n\\def\\half#1{{{{1 / #1}}}}\n"
        "\\newcommand*{\\shop}[1]{Shop {#1}}\n\\renewcommand\\floor{Floor}\n\nThe hive has 41 bees.\n\\end{document}"
    )
    assert read(tmp_path / "a.tex").text == "The hive has 41 bees."


def test_latex_that_cannot_be_converted_is_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.tex").write_text("Rent: 900 \\textcolor{red}")
    document = read(tmp_path / "a.tex")
    assert document.text == "Rent: 900 \\textcolor{red}"
    assert document.notes[0].startswith("its LaTeX cannot be converted, read as plain text: ")
