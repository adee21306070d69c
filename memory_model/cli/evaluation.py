"""Score answers with and without memory, and report everything that is measured of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.cli.options import (
    EMBEDDER,
    FACTBOOK,
    VECTORS,
    AdapterOption,
    CodecOption,
    EmbedderOption,
    NaturalOption,
    ThreadsOption,
    console,
    progress_bars,
    read_json,
    use_threads,
)

if TYPE_CHECKING:
    from memory_model.eval.conditions import Evaluation, Scores
    from memory_model.eval.quality import Section
    from memory_model.eval.retrieval import KnowledgeBase
    from memory_model.eval.sections import Asked
    from memory_model.eval.subject import Subject

KnowledgeBaseOption = Annotated[
    Path, typer.Option("--knowledge-base", help="JSONL of {key, title, text} that memory_retrieved searches.")
]
CandidatesOption = Annotated[
    int, typer.Option("--candidates", help="Nearest by vector to order by words too; 0: by vector alone.")
]


def evaluate(
    data: Annotated[
        Path, typer.Option(help="JSON list of {knowledge, question, right_answer, hallucinated_answer?, …}.")
    ],
    out: Annotated[Path, typer.Option("--json", help="Results to write, with every answer.")],
    limit: Annotated[int | None, typer.Option(help="Only the first rows.")] = None,
    distractors: Annotated[int, typer.Option(help="Other memories beside the right one.")] = 4,
    conditions: Annotated[str, typer.Option(help="Which to score.")] = "none,memory,memory_exact,rag",
    adapter: AdapterOption = None,
    codec: CodecOption = None,
    knowledge_base: KnowledgeBaseOption = FACTBOOK,
    embedder: EmbedderOption = EMBEDDER,
    candidates: CandidatesOption = 50,
    threads: ThreadsOption = 0,
) -> None:
    """Score answers without memory, with memory through the codec, with exact memory, and with text (rag).

    The condition memory_retrieved gives nothing: the question searches the knowledge base for five memories.
    The model before any tuning: --adapter none --conditions none,rag.
    """
    from memory_model.eval.quality import conditions_result
    from memory_model.eval.results import write_json
    from memory_model.eval.rows import read_rows
    from memory_model.eval.subject import Subject

    use_threads(threads)
    rows = list(read_rows(read_json(data), limit))
    names = [c.strip() for c in conditions.split(",") if c.strip()]
    subject = Subject.open(adapter, codec)
    started = time.monotonic()
    base = _open_base(subject, knowledge_base, embedder) if "memory_retrieved" in names else None
    run = subject.evaluation(rows, names, distractors=distractors, knowledge_base=base, candidates=candidates)
    result = conditions_result(_scored(run, names, data.stem), rows)
    write_json(out, _eval_file(subject, result, time.monotonic() - started))
    _show(result["conditions"], f"{len(rows)} questions, {distractors} distractors")


def quality(
    out: Annotated[Path, typer.Option(help="File to write; what it has already is kept.")] = Path(
        "build/quality.json"
    ),
    eval_json: Annotated[
        Path | None, typer.Option("--eval-json", help="Write the held-out section as `eval` would, too.")
    ] = None,
    natural: NaturalOption = None,
    prose: Annotated[Path, typer.Option(help="JSONL of passages, whose held-out ones are predicted.")] = Path(
        "build/corpus/wikipedia.jsonl"
    ),
    data: Annotated[Path, typer.Option(help="Folder of the committed question sets.")] = Path("data"),
    limit: Annotated[int | None, typer.Option(help="At most so many rows a section.")] = None,
    sections: Annotated[
        str,
        typer.Option(help="Measure only these, by name, with commas between; the others stay as they are."),
    ] = "",
    adapter: AdapterOption = None,
    codec: CodecOption = None,
    knowledge_base: KnowledgeBaseOption = FACTBOOK,
    embedder: EmbedderOption = EMBEDDER,
    candidates: CandidatesOption = 50,
    threads: ThreadsOption = 0,
) -> None:
    """Measure everything that docs/quality.md reports, section by section; an interrupted run goes on.

    What was measured with the same model, codec and questions is kept. With --sections only those are measured;
    the others stay in the file with the model and the date that they have, and the page says so.
    Held-out countries, hard distractors, unanswerable and counterfactual questions, natural ones where a
    file is given, and how well tuned and plain model predict prose.
    """
    from functools import cache

    from memory_model.eval.quality import Section, data_sha256, joined_results, machine, run_sections
    from memory_model.eval.results import today, write_json
    from memory_model.eval.sections import plan
    from memory_model.eval.subject import PLAIN, Subject
    from memory_model.eval.targets import PROSE
    from memory_model.words import LARGEST_DROP, STEM, TITLE_WEIGHT, WEIGHT

    use_threads(threads)
    asked, windows = plan(data, natural, limit, tuple(s.strip() for s in sections.split(",") if s.strip()))
    subject = Subject.open(adapter, codec)
    plain = cache(lambda: Subject.open(PLAIN))
    base = cache(lambda: _open_base(subject, knowledge_base, embedder))
    about = {
        **subject.about(), "machine": machine(), "date": today(),
        "command": "memory-model quality" + (" --natural FILE" if natural else "")
        + (f" --sections {sections}" if sections else "") + (f" --limit {limit}" if limit else "")
        + (f" --candidates {candidates}" if candidates != 50 else ""),
    }  # fmt: skip
    ids = {name: about[name] for name in ("model_id", "codec_id")}
    todo: list[Section] = []
    for part in asked:
        key: dict[str, Any] = {"model_id": about["base_id"]} if part.plain else dict(ids)
        if "memory_retrieved" in part.conditions:
            key |= {
                "candidates": candidates,
                "order": [STEM, WEIGHT, TITLE_WEIGHT, LARGEST_DROP],
                "knowledge_base": data_sha256(knowledge_base.read_text("utf-8")),
            }
        todo.append(_asked_section(part, plain if part.plain else lambda: subject, base, candidates, key))
    if windows:
        source, texts = _held_out_prose(prose)
        key = {**ids, "windows": windows, "source": source, "data": data_sha256(texts)}
        todo.append(Section(PROSE, key, lambda: _predicted(subject, plain(), texts, windows, source)))
    result = run_sections(out, todo, about, console.print)
    if eval_json is not None and "heldout" in result["sections"]:
        parts = [result["sections"][name] for name in ("heldout", "retrieved") if name in result["sections"]]
        joined = joined_results([part["result"] for part in parts])
        write_json(eval_json, _eval_file(subject, joined, sum(part["seconds"] for part in parts)))
    for name, section in result["sections"].items():
        if "conditions" in section["result"]:
            _show(section["result"]["conditions"], f"{name}, {section['result']['rows']} rows")
        else:
            Console().print(name, section["result"])


def quality_report(
    measured: Annotated[
        Path, typer.Option("--from", help="File of `quality` to take over, if it is there.")
    ] = Path("build/quality.json"),
    numbers: Annotated[Path, typer.Option(help="Folder of the numbers that are kept.")] = Path("docs/data"),
    out: Annotated[Path, typer.Option(help="Page to write; figures go to images/ beside it.")] = Path(
        "docs/quality.md"
    ),
) -> None:
    """Write docs/quality.md and its figures from the numbers under docs/data."""
    from memory_model.eval.page import Numbers, page, write_plots
    from memory_model.eval.quality import without_answers

    if measured.is_file():
        without_answers(measured).save(numbers / "quality.json")
    read = Numbers.read(numbers)
    plots = write_plots(read, out.parent / "images")
    out.write_text(page(read), encoding="utf-8")
    console.print(f"[bold]{out}[/bold] and {', '.join(p.name for p in plots)}")


def _asked_section(
    part: Asked,
    subject: Callable[[], Subject],
    base: Callable[[], KnowledgeBase],
    candidates: int,
    key: dict[str, Any],
) -> Section:
    from memory_model.eval.quality import Section, conditions_result, data_sha256
    from memory_model.eval.rows import read_rows

    data = read_json(part.file)
    rows = list(read_rows(data, part.rows))

    def run() -> dict[str, Any]:
        given: dict[str, Any] = {}
        if "memory_retrieved" in part.conditions:
            given = {"knowledge_base": base(), "candidates": candidates}
        evaluation = subject().evaluation(rows, part.conditions, **given)
        return conditions_result(_scored(evaluation, part.conditions, part.name), rows)

    data_key = {"data": data_sha256(data[: part.rows]), "conditions": part.conditions}
    return Section(part.name, {**key, **data_key}, run)


def _scored(run: Evaluation, conditions: Sequence[str], name: str) -> dict[str, Scores]:
    """Scores by condition, with bars for the memories that are written and for the answers."""
    with progress_bars() as progress:
        if todo := run.unwritten(conditions):
            memories = progress.add_task(f"{name}: memories", total=todo)
            run.write(conditions, lambda n: progress.advance(memories, n))
        answers = progress.add_task(f"{name}: answers", total=len(run.rows) * len(conditions))
        return run.run(conditions, lambda n: progress.advance(answers, n))


def _open_base(subject: Subject, documents: Path, folder: Path) -> KnowledgeBase:
    from memory_model.eval.subject import open_embedder, open_knowledge_base

    with progress_bars() as progress:
        task = progress.add_task("embedding the knowledge base", total=None)
        return open_knowledge_base(
            documents, subject.loaded, open_embedder(folder, EMBEDDER), VECTORS,
            lambda total: progress.update(task, total=total), lambda n: progress.advance(task, n),
        )  # fmt: skip


def _held_out_prose(path: Path) -> tuple[str, list[str]]:
    """(what it is, texts): held-out passages of a corpus file, or the held-out countries' backgrounds."""
    from memory_model.data import factbook
    from memory_model.data.corpus.passages import held_out, read_passages

    if path.is_file():
        texts = [p.text for p in read_passages(path) if held_out(p.source, p.key)]
        return f"held-out passages of {path.stem}", texts
    console.print(f"no corpus at {path} (`python -m experiments prepare-data`): predicting the factbook's backgrounds")
    documents = [d for d in factbook.read_jsonl(FACTBOOK) if factbook.held_out(d["key"])]
    texts = [v for d in documents for field, v, _ in factbook.facts(d["text"]) if field == "Background"]
    return "backgrounds of the held-out countries", texts


def _predicted(subject: Subject, plain: Subject, texts: list[str], count: int, source: str) -> dict[str, Any]:
    from memory_model.eval.prose import WINDOW_TOKENS, perplexity, windows

    cut = windows(texts, subject.loaded.tokenizer.encode, limit=count)
    with progress_bars() as progress:
        task = progress.add_task("prose: windows", total=2 * len(cut))
        bos = [plain.loaded.tokenizer.bos_id]
        tuned, original = (
            perplexity(s.loaded, cut, s.prefix or bos, lambda n: progress.advance(task, n))
            for s in (subject, plain)
        )
    return {
        "tuned": round(tuned, 4), "original": round(original, 4), "ratio": round(tuned / original, 4),
        "windows": len(cut), "window_tokens": WINDOW_TOKENS, "source": source,
    }  # fmt: skip


def _eval_file(subject: Subject, result: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What `eval --json` writes: who was measured, the means by condition, every answer."""
    from memory_model.eval.results import today

    return {
        "model": subject.loaded.config.name, "model_id": subject.loaded.model_id, "rows": result["rows"],
        "seconds": round(seconds, 1), "date": today(), "conditions": result["conditions"],
        "answers": result["answers"],
    }  # fmt: skip


def _show(conditions: Mapping[str, Mapping[str, float]], title: str) -> None:
    columns = list(dict.fromkeys(name for scores in conditions.values() for name in scores))
    show = Table("condition", *columns, title=title)
    for name, scores in conditions.items():
        show.add_row(name, *(f"{scores[c]:.3f}" if c in scores else "" for c in columns))
    Console().print(show)


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command("eval")(evaluate)
    app.command()(quality)
    app.command("quality-report")(quality_report)
