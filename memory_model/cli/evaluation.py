"""Score answers with and without memory."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory3.printable import counted
from memory_model import terminal
from memory_model.data.factbook import FACTBOOK
from memory_model.terminal import PrecisionOption, count, progress_bar, use_threads, write_json

_GIVEN = "none,memory,memory_exact,rag,rag_five"
_ROWS_AT_ONCE = 100
_WITHOUT_CODEC = "none,memory_exact,rag,rag_five"


def evaluate(
    data: Annotated[Path, typer.Option(help="JSON list of {knowledge, question, right_answer, …}.")],
    out: Annotated[Path, typer.Option("--json", dir_okay=False, help="JSON file for the results and all answers.")],
    limit: Annotated[int | None, count(help="Only the first rows.")] = None,
    distractors: Annotated[int, terminal.amount(help="References besides the right one.")] = 4,
    conditions: Annotated[str, typer.Option(help=f"Default: {_GIVEN}; with --kb, both retrieved, too.")] = "",
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    codec: terminal.CodecOption = None,
    knowledge_base: Annotated[
        Path | None,
        typer.Option("--kb", "--knowledge-base", help=f"JSONL that *_retrieved search. Default: {FACTBOOK}."),
    ] = None,
    embedder: terminal.EmbedderOption = None,
    seed: Annotated[int, typer.Option(help="Random seed for distractors.")] = 0,
    precision: PrecisionOption = "float32",
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Score a model's answers: without memory, with memories, and with the same references as text.

    Conditions: none; memory (five given references, through the codec); memory_exact (without the codec);
    rag_five (the same five as text); rag (only the right one, as text); memory_retrieved and rag_retrieved (up to five
    retrieved from the knowledge base, by the folder's minimum score and ranking; by the defaults with --embedder).
    NAME_error is the standard error of a mean.
    For the base model before tuning: --adapter none --conditions none,rag,rag_five. A folder without a codec is
    measured without `memory`. Written memories are kept in the user's cache for the next run.
    """
    from memory3.digest import file_sha256
    from memory_model.data.rows import open_rows
    from memory_model.eval.conditions import EVALUATOR, Evaluation, parse_conditions, result_of
    from memory_model.eval.report import open_knowledge_base, scored, show
    from memory_model.eval.subject import PLAIN, Subject
    from memory_model.eval.written import WrittenMemories
    from memory_model.export.embedder_cache import open_embedder
    from memory_model.models.folder import ModelFolder

    use_threads(threads)
    rows = open_rows(data, limit)
    folder, has_codec = ModelFolder.open(model), codec is not None
    given = _GIVEN if has_codec or folder.codec or str(adapter) == PLAIN else _WITHOUT_CODEC
    chosen = conditions or given + (",memory_retrieved,rag_retrieved" if knowledge_base else "")
    names, started = parse_conditions(chosen, str(adapter) == PLAIN), time.monotonic()
    retrieved = any(name.endswith("_retrieved") for name in names)
    opened = open_embedder(embedder, folder.embedder) if retrieved else None
    coded = any(name in ("memory", "memory_retrieved") for name in names)
    subject = Subject.open(model, adapter, codec, device=device, coded=coded)
    base = open_knowledge_base(subject, knowledge_base or FACTBOOK, opened, embedder) if opened else None
    subject.bank.written = WrittenMemories(subject.loaded)
    with subject.computing(precision) as computed:
        run = Evaluation(subject, rows, names, distractors=distractors, seed=seed, knowledge_base=base)
        result = result_of(scored(run, data.stem), rows)
    key = {"evaluator": EVALUATOR, "data": file_sha256(data)[:16], "seed": seed, "distractors": distractors}
    about = {**subject.about(), **key, "precision": computed}
    if base:
        about |= {"minimum_score": base.minimum_score, "ranking": asdict(base.ranking)}
    took = {"seconds": round(time.monotonic() - started, 1), "date": time.strftime("%Y-%m-%d")}
    write_json(out, {**about, **took, **result})
    show(result["conditions"], f"{counted(len(rows), 'question')}, {counted(distractors, 'distractor')}")


def fit_refusal(
    data: Annotated[list[Path], typer.Option(help="JSON list of questions for training; may be repeated.")],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write. Default: answerability.npz of the model folder.")
    ] = None,
    most_wrong: Annotated[float, terminal.share(help="Share of answerable questions that are refused.")] = 0.05,
    limit: Annotated[int | None, count(help="Only the first rows of each file.")] = None,
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    codec: terminal.CodecOption = None,
    precision: PrecisionOption = "auto",
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Fit what tells a model that nothing it reads answers: a linear probe of its memory heads' queries.

    The probe moves the logit of "I don't know." before an answer's first token. No weight is trained, and memories stay
    as they are. Give questions as people ask them, with the memories that a search finds for them (`distractors`), a
    few hundred with an answer and as many with `"answerable": false`, of every kind that will be asked. How readily it
    refuses follows from the same questions, each scored by a probe that was fitted without its text. Every question
    is read with all its memories, with two and with one, because a search may find so few.
    """
    import numpy as np

    from memory3.runtime.answerability import PROBE_FILE
    from memory_model.data.rows import QuestionRow, open_rows
    from memory_model.eval.conditions import Evaluation
    from memory_model.eval.probe_fit import Separation, cross_validated, fit_probe, limited
    from memory_model.eval.refusing import Signals, signals
    from memory_model.eval.subject import Subject
    from memory_model.eval.written import WrittenMemories
    from memory_model.models.folder import ModelFolder

    use_threads(threads)
    folder = ModelFolder.open(model)
    if out is None:
        folder.require_own(f"copy {folder.path}, or give --out")
    sets = [open_rows(path, limit) for path in data]
    subject = Subject.open(model, adapter, codec, device=device, probed=False)  # the old one may be of other weights
    subject.bank.written = WrittenMemories(subject.loaded)
    others = sorted({subject.loaded.config.memory.memories_per_chunk - 1, 1, 0}, reverse=True)
    asked, found = list[QuestionRow](), []
    with subject.computing(precision), progress_bar("questions", len(others) * sum(map(len, sets))) as advance:
        # In parts, whose memories stay in the cache from one number to the next.
        for part in (rows[at : at + _ROWS_AT_ONCE] for rows in sets for at in range(0, len(rows), _ROWS_AT_ONCE)):
            for distractors in others:
                found.append(signals(Evaluation(subject, part, ["memory"], distractors=distractors), advance))
                asked += part
    together = Signals(*map(np.concatenate, zip(*found, strict=True)))
    validated = cross_validated(together, asked)
    probe = fit_probe(subject.loaded.model_id, together)
    probe = limited(probe, together, validated, most_wrong)
    probe.save(path := out or folder.path / PROBE_FILE)
    table = Table(
        "refused by", "area under ROC", "refused rightly, 0.05 wrongly", title=counted(len(asked), "question")
    )
    scores = {"its logit alone": together.margins, "with the probe, cross-validated": validated}
    for name, score in scores.items():
        separation = Separation.of(score, together.answerable)
        table.add_row(name, f"{separation.area:.3f}", f"{separation.refused:.3f}")
    Console().print(table)
    terminal.console.print(f"probe of {len(probe.weights):,} queries in [bold]{path}[/bold]")


def fit_requests(
    data: Annotated[list[Path], typer.Option(help="JSON list of questions for training; may be repeated.")],
    requests: Annotated[list[Path], typer.Option(help="JSONL of {request} that need no knowledge; may be repeated.")],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write. Default: answerability.npz of the model folder.")
    ] = None,
    most_lost: Annotated[float, terminal.share(help="Share of the questions' refusals that may be lost.")] = 0.02,
    limit: Annotated[int | None, count(help="Only the first rows of each file.")] = None,
    model: terminal.ModelOption = None,
    precision: PrecisionOption = "auto",
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Fit what keeps a model from refusing "Hello!".

    A tuned model refuses much of what needs no memory. A second readout of the same queries tells requests from
    questions and makes the refusal of a request less likely, whether memories are read or not; other answers stay as
    they are. It goes into the file that `fit-refusal` wrote. Give some hundred questions, which are asked without their
    texts and with the right one in the prompt, and some hundred requests: greetings, thanks, "Write a poem".
    """
    import numpy as np

    from memory3.errors import InvalidInput
    from memory3.runtime.answerability import PROBE_FILE
    from memory_model.data import factbook
    from memory_model.data.rows import QuestionRow, open_rows
    from memory_model.eval.conditions import Evaluation
    from memory_model.eval.probe_fit import cross_validated, fit_probe, of_requests
    from memory_model.eval.refusing import Signals, signals
    from memory_model.eval.subject import Subject
    from memory_model.models.folder import ModelFolder

    use_threads(threads)
    folder = ModelFolder.open(model)
    if out is None:
        folder.require_own(f"copy {folder.path}, or give --out")
    read = [row["request"] for path in requests for row in factbook.read_jsonl(path, ("request",))[:limit]]
    asked = [QuestionRow(request, request, "-") for request in read]  # no answer of it is scored
    questions = [replace(row, answerable=False) for path in data for row in open_rows(path, limit)]
    subject = Subject.open(model, None, None, device=device)
    if subject.probe is None:
        raise InvalidInput(f"{folder.path} has no {PROBE_FILE}: `memory-model fit-refusal` makes it")
    rows = [(asked, "none"), (questions, "none"), (questions, "rag")]
    found = []
    with subject.computing(precision), progress_bar("questions", sum(len(part) for part, _ in rows)) as advance:
        for part, condition in rows:
            found.append(signals(Evaluation(subject, part, [condition]), advance, condition=condition))
    together = Signals(*map(np.concatenate, zip(*found, strict=True)))
    together = together._replace(memories=np.ones_like(together.memories))  # one number for all, as good as another
    every = [row for part, _ in rows for row in part]
    fitted, scores = fit_probe(subject.loaded.model_id, together), cross_validated(together, every)
    readout = of_requests(fitted, together, scores, most_lost)
    replace(subject.probe, of_requests=readout).save(path := out or folder.path / PROBE_FILE)
    after = together.margins + np.minimum(0, scores - together.margins + readout[-1] - fitted.offsets[0])
    table = Table("refused, of", "until now", "cross-validated", title=counted(len(every), "prompt"))
    for name, own in (("requests", together.answerable), ("questions", ~together.answerable)):
        table.add_row(name, *(f"{(margins[own] > 0).mean():.3f}" for margins in (together.margins, after)))
    Console().print(table)
    terminal.console.print(f"readout of requests in [bold]{path}[/bold]")


def calibrate(
    data: Annotated[list[Path], typer.Option(help="JSON list of development questions; may be repeated.")],
    most_wrong: Annotated[float, terminal.share(help="Largest share of wrong refusals over all files.")] = 0.05,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="JSON file for all biases.")] = None,
    save: Annotated[bool, typer.Option(help="Write the chosen biases into the model folder.")] = False,
    limit: Annotated[int | None, count(help="Only the first rows of each file.")] = None,
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    codec: terminal.CodecOption = None,
    precision: PrecisionOption = "float32",
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Set the bias of a model's answer "I don't know.", with a limit on wrong refusals.

    A bias is added to the first token of the refusal, at the beginning of answers that read memories: `bias` where
    several are read; `bias_alone` where one is, which is measured without distractors. Unanswerable questions have
    `"answerable": false`. Use development questions, so that the test questions stay unseen.
    """
    from memory3.errors import InvalidInput
    from memory_model.data.rows import open_rows
    from memory_model.eval import refusing
    from memory_model.eval.conditions import Evaluation
    from memory_model.eval.subject import Subject
    from memory_model.models.folder import ModelFolder

    use_threads(threads)
    folder = ModelFolder.open(model)
    if save:
        folder.require_own(f"copy {folder.path}, and give the copy with --model")
    sets = {path.stem: open_rows(path, limit) for path in data}
    if len(sets) < len(data):
        raise InvalidInput("two files of questions have one name: give each its own")
    if len({row.answerable for rows in sets.values() for row in rows}) < 2:
        raise InvalidInput('calibrating needs files with rows that have `"answerable": false`, and others')
    subject, result = Subject.open(model, adapter, codec, device=device), dict[str, Any](most_wrong=most_wrong)
    for key, distractors in (("bias", 4), ("bias_alone", 0)):
        found = {}
        with subject.computing(precision):
            for name, rows in sets.items():
                run = Evaluation(subject, rows, ["memory"], distractors=distractors)
                with progress_bar(f"{name}, {counted(distractors, 'distractor')}", len(rows)) as advance:
                    found[name] = refusing.margins(run, advance)
        best = refusing.chosen(points := refusing.curve(found), most_wrong)
        table = Table(key, *found, title="refused of answerable (and of unanswerable) questions; *: chosen")
        for point in (p for p in points if p is best or not p.bias % 1):
            sides = (point.wrongly, "{:.3f}"), (point.rightly, "({:.3f})")
            cells = [" ".join(form.format(m[name].mean) for m, form in sides if name in m) for name in found]
            table.add_row(f"{point.bias:g}{'*' if point is best else ''}", *cells)
        Console().print(table)
        result[key] = {"chosen": best.bias, "curve": [asdict(point) for point in points]}
    if out is not None:
        write_json(out, {**subject.about(), **result})
    biases = {key: result[key]["chosen"] for key in ("bias", "bias_alone")}
    if save:
        replace(folder, refusal=replace(folder.refusal, **biases)).save()
    then = f"saved in {folder.path}: `export` takes them into a bundle" if save else "--save writes them to the folder"
    terminal.console.print(", ".join(f"{key} {value:g}" for key, value in biases.items()) + f"; {then}")
