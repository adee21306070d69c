"""Files as documents: one reader for each kind of file, found by its suffix or its content.

    records      CSV, Parquet, JSON lines: a document for each row
    pages        PDF: a document for each page; images by OCR
    markup       Markdown, HTML, LaTeX    structured   YAML, TOML, XML, JSON
    office       Word, PowerPoint, Excel, OpenDocument, RTF
    books        EPUB, FictionBook
    mail         EML, Outlook, mbox, web archives
    calendars    iCalendar, vCard
    code         text, source code, logs, notebooks

A reader yields documents one at a time; what cannot be read comes as a failed one with its position, and nothing is
raised for it. A `Report` has what was read, skipped and assumed. Some kinds need the extra `formats` or `ocr`.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memory3.errors import InvalidInput, Memory3Error, MissingFile
from memory3.formats.document import NO_TEXT, composed, title_of
from memory3.formats.document import FileDocument as FileDocument  # what the readers yield
from memory3.formats.encoding import looks_like_text
from memory3.formats.readers import books, calendars, code, mail, pages, records, structured
from memory3.formats.readers.markup import html, latex, markdown
from memory3.formats.readers.office.documents import read_office
from memory3.formats.report import EMPTY, HIDDEN, LEFT, NO_FILE, NOT_OPENED, TOO_LARGE, UNSUPPORTED
from memory3.formats.report import Report as Report  # what became of the files

Reader = Callable[[Path], Iterator[FileDocument]]


@dataclass(frozen=True)
class Kind:
    """A kind of file. documents: what one file becomes. extra: of the wheels, whose packages its reader needs."""

    name: str
    suffixes: tuple[str, ...]
    read: Reader
    documents: str
    extra: str = ""


_PROGRAMS = (
    ".py .pyi .js .mjs .cjs .ts .tsx .jsx .java .kt .kts .scala .go .rs .c .h .cc .cpp .cxx .hpp .cs .swift .m .rb .php"
    " .pl .lua .r .jl .sh .bash .zsh .fish .ps1 .bat .sql .css .scss .less .vue .svelte .dart .ex .exs .erl .hs .ml"
    " .clj .groovy .gradle .tf .proto .cmake .asm .s .f90 .vb .diff .patch"
)
_SETTINGS = ".ini .cfg .conf .properties .env .log .out .err"
_MARKED_TEXT = ".txt .text .rst .adoc .asciidoc .org .textile .wiki .srt .vtt"

KINDS = (
    Kind("text", tuple(_MARKED_TEXT.split()), code.read_text, "one; its name is the title"),
    Kind(
        "Markdown",
        (".md", ".markdown", ".mdx", ".qmd", ".rmd"),
        markdown.read_markdown,
        "one; front matter or the first heading gives the title; other fields become metadata and lines",
    ),
    Kind("HTML", (".html", ".htm", ".xhtml"), html.read_html, "one: the main part, no menus or scripts", "formats"),
    Kind("PDF", (".pdf",), pages.read_pdf, "one for each page with text, its number as metadata `page`", "formats"),
    Kind(
        "Word",
        (".docx", ".doc", ".dot", ".docm", ".dotx", ".dotm"),
        read_office,
        "one, with headers, footers, notes, comments, charts and diagrams; of `.doc` the main text",
        "formats",
    ),
    Kind(
        "PowerPoint",
        (".pptx", ".ppt", ".pps", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"),
        read_office,
        "one, with speaker notes, charts and diagrams; of `.ppt` the text of slides",
        "formats",
    ),
    Kind(
        "Excel",
        (".xlsx", ".xls", ".xlt", ".xlsm", ".xltx", ".xltm", ".xlsb"),
        read_office,
        "one, all sheets, with headers, footers, comments, text boxes and titles of charts; "
        "of `.xls` without titles of charts, of `.xlsb` the cells",
        "formats",
    ),
    Kind(
        "OpenDocument",
        (".odt", ".ods", ".odp", ".odg", ".ott", ".ots", ".otp", ".otg"),
        read_office,
        "one, with headers, footers, comments, speaker notes, charts and formulas",
        "formats",
    ),
    Kind("RTF", (".rtf",), read_office, "one, with text boxes and comments", "formats"),
    Kind("EPUB", (".epub",), books.read_epub, "one, all chapters", "formats"),
    Kind("FictionBook", (".fb2",), books.read_fictionbook, "one, with its description, tables and notes"),
    Kind("mail", (".eml",), mail.read_mail, "one: headers, text, and the attachments that can be read"),
    Kind(
        "Outlook", (".msg", ".oft"), mail.read_outlook, "one, as mail; of appointments and contacts the text", "formats"
    ),
    Kind("mailbox", (".mbox",), mail.read_mailbox, "one for each mail"),
    Kind(
        "web archive",
        (".mhtml", ".mht"),
        mail.read_web_archive,
        "one: the main part of the page and its frames, its address as metadata `url`",
        "formats",
    ),
    Kind(
        "calendar and contacts",
        (".ics", ".vcf"),
        calendars.read_calendar,
        "one, a line for each fact of an event or a person",
    ),
    Kind("LaTeX", (".tex", ".latex"), latex.read_latex, "one", "formats"),
    Kind("notebook", (".ipynb",), code.read_notebook, "one: text, code and printed outputs"),
    Kind("YAML", (".yaml", ".yml"), structured.read_yaml, "one, a line `path: value` for each value"),
    Kind("TOML", (".toml",), structured.read_toml, "one, as YAML"),
    Kind("XML", (".xml", ".rss", ".atom"), structured.read_xml, "one, as YAML"),
    Kind("JSON", (".json",), structured.read_json, "one, as YAML"),
    Kind("source code", tuple(_PROGRAMS.split()), code.read_code, "one"),
    Kind("settings and logs", tuple(_SETTINGS.split()), code.read_code, "one"),
    Kind("JSON lines", (".jsonl", ".ndjson"), records.read_jsonl, "one for each line, see below"),
    Kind("CSV", (".csv", ".tsv"), records.read_csv, "one for each row, with any columns and delimiter"),
    Kind("Parquet", (".parquet",), records.read_parquet, "one for each row, as CSV", "formats"),
    Kind("image", pages.IMAGES, pages.read_image, "one: the text that OCR finds", "ocr"),
)
"""In the order of the guide's table."""
_TEXT = KINDS[0]
_OF_SUFFIX = {suffix: kind for kind in KINDS for suffix in kind.suffixes}
SUFFIXES = tuple(_OF_SUFFIX)
LARGEST_BYTES = 256 << 20
"""Of a file that is read at once; Parquet and JSON lines are read in parts."""
_SOFT_HYPHEN = "\u00ad"
"""Where a word may be divided at the end of a line; no reader of a text sees it."""
_RECORDS = (records.read_jsonl, records.read_csv, records.read_parquet)
_IN_PARTS = ("JSON lines", "Parquet")
_LEFT = re.compile(r"~\$.*|#.*#|.*(~|\.(bak|old|orig|tmp|temp|swp|part|partial|crdownload|download))", re.IGNORECASE)
"""Names of older versions, locks and unfinished downloads: read beside their file, they would contradict it."""


def kind_of(source: Path) -> Kind | None:
    """The kind of a file; one without a known suffix is text if it looks so. None: it cannot be read."""
    if kind := _OF_SUFFIX.get(source.suffix.lower()):
        return kind
    try:
        with source.open("rb") as file:
            head = file.read(8192)
    except OSError:
        return None
    return _TEXT if head and looks_like_text(head) else None


def name_of_kind(source: Path) -> str:
    """The kind of a file for people, by its suffix alone."""
    return (_OF_SUFFIX.get(source.suffix.lower()) or _TEXT).name


def reads(source: Path) -> bool:
    """Whether there is a reader for a file."""
    return kind_of(source) is not None


def find_sources(paths: Sequence[Path], report: Report | None = None) -> list[Path]:
    """The files of `paths`: files, folders (all that can be read in them, nothing hidden) and patterns (`**/*.md`).

    Of a folder, what programs leave beside a file is not read either.
    report: gets what is skipped. Raises MissingFile and InvalidInput where nothing of a path can be read.
    """
    report = report if report is not None else Report()
    sources: list[Path] = []
    for path in paths:
        none: Memory3Error
        before = len(report.skipped)
        try:
            is_folder = path.is_dir()
        except OSError as error:
            raise InvalidInput(f"{path} cannot be opened: {error.strerror}") from error
        if is_folder:
            found, none = _shown(path, report), InvalidInput(f"{path} has no file in it that can be read")
        elif path.exists():
            found, none = [path], InvalidInput(f"{path} cannot be read")
        elif glob.has_magic(str(path)):
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            none = MissingFile(f"no file that can be read fits the pattern {path}")
        else:
            raise MissingFile(f"{path} does not exist")
        readable = [file for file in found if _readable(file, report)]
        if not readable:
            why = [one for one in report.skipped[before:] if one.name == str(path)]
            raise InvalidInput(f"{path} is {why[0].reason}{f': {why[0].why}' if why[0].why else ''}") if why else none
        sources += readable
    return list(dict.fromkeys(sources))


def _shown(folder: Path, report: Report) -> list[Path]:
    """The files below a folder in order, without what is hidden or left by programs; its outermost is reported."""
    found: list[Path] = []
    try:
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith("."):
                report.skip(entry, HIDDEN)
            elif entry.is_dir() and not entry.is_symlink():
                found += _shown(entry, report)
            elif not entry.is_dir():
                if _LEFT.fullmatch(entry.name):
                    report.skip(entry, LEFT)
                else:
                    found.append(entry)
            else:
                report.skip(entry, NO_FILE, "a link to a folder")
    except OSError as error:
        report.skip(folder, NOT_OPENED, str(error.strerror))
    return found


def _readable(file: Path, report: Report) -> bool:
    """Whether a file is to be read; reports why not."""
    if file.is_dir():  # of a pattern
        return False
    if not file.is_file():
        report.skip(file, NO_FILE, "a broken link" if file.is_symlink() else "")
        return False
    try:
        size, kind = file.stat().st_size, kind_of(file)
    except OSError as error:
        report.skip(file, NO_FILE, str(error.strerror))
        return False
    if size == 0:
        report.skip(file, EMPTY)
    elif kind is None:
        report.skip(file, UNSUPPORTED)
    elif size > LARGEST_BYTES and kind.name not in _IN_PARTS:
        report.skip(file, TOO_LARGE, f"{size >> 20:,} MiB, at most {LARGEST_BYTES >> 20}")
    else:
        return True
    return False


def read_documents(source: Path, typed: Path | None = None, report: Report | None = None) -> Iterator[FileDocument]:
    """The documents of one file, one at a time; a file that is the document is named as it was `typed`.

    report: gets what was read and assumed.
    """
    kind = kind_of(source)
    documents = _named(source, typed or source, kind)
    if report is None:
        yield from documents
        return
    none = True
    for document in report.add(kind.name if kind else UNSUPPORTED, documents):
        none = False
        yield document
    if none:
        report.skip(typed or source, EMPTY, "a table without rows")


def _named(source: Path, typed: Path, kind: Kind | None) -> Iterator[FileDocument]:
    if kind is None:
        yield FileDocument.failed(typed, f"no reader for {source.suffix or 'such a file'}: convert it to text")
        return
    try:
        for document in kind.read(source):
            if not (document.text.strip() or document.unreadable or kind.read in _RECORDS):
                document = _of_its_title(document, source)
            title, text = composed(document.title), composed(document.text.replace(_SOFT_HYPHEN, ""))
            yield replace(document.named(typed), title=title, text=text)
    except (OSError, MissingFile, UnicodeError) as error:
        yield FileDocument.failed(typed, error)
    except Exception as error:  # whatever a damaged file does to its reader, the others are read
        yield FileDocument.broken(source, kind.name, error).named(typed)


def _of_its_title(document: FileDocument, source: Path) -> FileDocument:
    """A document without text as that of its title: its only heading; one that is named as its file fails."""
    if document.title in ("", title_of(source), source.name):
        return FileDocument.failed(source, NO_TEXT).noted(*document.notes)
    return replace(document, text=document.title).noted("it has no text but its title")


def has_parts(source: Path) -> bool:
    """Whether files of this kind have a document for each page, row or mail, whose keys begin with that of the file."""
    kind = kind_of(source)
    return kind is not None and kind.read in (pages.read_pdf, records.read_csv, records.read_parquet, mail.read_mailbox)


def holds_records(source: Path) -> bool:
    """Whether a file of this kind is a table or a list of records, each of which is a document."""
    kind = kind_of(source)
    return kind is not None and kind.read in _RECORDS


def count_documents(source: Path) -> int:
    """How many documents a file has, or about: pages without text count."""
    kind = kind_of(source)
    if holds_records(source):
        return sum(1 for _ in read_documents(source))
    if kind and kind.read is mail.read_mailbox:
        return mail.count_mails(source)
    return pages.count_pages(source) if kind and kind.read is pages.read_pdf else 1
