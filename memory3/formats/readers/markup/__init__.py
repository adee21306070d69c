"""Markup as text: Markdown, HTML and LaTeX. Headings become sentences, rows of tables "column: value" pairs."""
