"""Options shared by commands (settings of the model and of an answer), and tables of answers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields
from enum import Enum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from edge_client.decoder.providers import provider_names
from edge_client.engine import check_names
from edge_client.errors import MENDABLE
from edge_client.generate.sampling import Sampling, SamplingOptions
from edge_client.model import EdgeModel
from edge_client.recall.outcome import named_apart
from edge_client.settings import EdgeSettings
from edge_client.stream import Recalled, Result
from memory3.errors import InvalidInput
from memory3.printable import counted, printable
from memory3.text.verdict import Verdict


class Memory(str, Enum):
    """How an answer reads memories: a RecallMode, or both without and with."""

    overlap = "overlap"
    exact = "exact"
    off = "off"
    compare = "compare"


SETTINGS = {
    "bundle": "Bundle folder.",
    "local": "Folder of this device's own knowledge bases; default: the user's, ~/.local/share/memory3-edge/local.",
    "service": "Address of the service, host:port.",
    "knowledge_base": "Knowledge base to read; several as a,b.",
    "memory": "overlap decodes while memories are recalled, exact waits for them, off reads none, compare answers "
    "without and then with memories.",
    "offline": "Never call the service; read only memories on this device.",
    "provider": f"What runs the decoder: {', '.join(provider_names()[:-1])} or {provider_names()[-1]}.",
    "model": "Folder of the bundle's model, which provider torch runs; default: the packaged one.",
}
ANSWER = {
    "max_tokens": "Longest answer, in tokens.",
    "temperature": "Sampling temperature; 0 is greedy.",
    "top_k": "Sample from this many likeliest tokens; 0: all.",
    "top_p": "Sample from the likeliest tokens with this total probability.",
    "stop": "Stop before this text; may be repeated.",
    "seed": "Random seed, for repeatable sampling.",
    "citations": "Show what each part of the answer was read from.",
    "only_documents": "Refuse an answer that nothing in the documents gave; it appears at once, when it is complete.",
    "explain": "Show what each memory contributed; reads the question again for every memory.",
}
FLAGS = {"knowledge_base": ("--kb", "--knowledge-base")}
TYPES = {"memory": Memory, "stop": list[str]}

MOST_SOURCES = 3
"""Documents that a line names."""
PARTIAL = " (not complete: remember it again)"
"""Behind a document of which memories are missing."""
NOTHING = "this device remembers nothing yet: {} remembers a file or a folder"
NARROW = 70
"""Terminal columns below which the times of an answer are one line."""
LEAST_TEXT = 30
"""Characters that a table must leave a line of a memory's text; otherwise lines take its place."""
Command = Callable[..., None]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(what: str, style: str = "dim") -> None:
    """One line to standard error, never wrapped, because it may hold a command to copy; nothing in it is markup."""
    err.print(Text(printable(what), style=style), soft_wrap=True)


def opened(
    given: dict[str, Any], drawn: SamplingOptions, *, document: str = "", deadline_s: float | None = None
) -> EdgeModel:
    """The model of these settings, as `loaded`.

    What is wrong with the options of an answer, the knowledge bases that `given` names and the document of a question
    is raised before that. deadline_s: where neither the environment nor the command says how long a recall may take.
    """
    settings = EdgeSettings(**given)
    if deadline_s is not None and "deadline_s" not in settings.model_fields_set:
        settings = settings.model_copy(update={"deadline_s": deadline_s})
    Sampling.of(drawn)
    check_names(settings, knowledge_bases=given.get("knowledge_base", ""), document=document)
    return loaded(settings)


def loaded(settings: EdgeSettings) -> EdgeModel:
    """The model of these settings; a terminal shows what is being done, which takes seconds."""
    log = logging.getLogger("edge_client.loading")
    before = log.level
    with err.status(f"loading {escape(printable(str(settings.bundle)))}") as status:
        steps = _Steps(status)
        log.addHandler(steps)
        log.setLevel(logging.INFO)
        try:
            return EdgeModel.open(settings=settings)
        finally:
            log.setLevel(before)
            log.removeHandler(steps)


class _Steps(logging.Handler):
    """Shows what is logged as a status."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        """See Handler."""
        self._status.update(escape(printable(record.getMessage())))


def warn_of_names(settings: EdgeSettings) -> None:
    """Say that a knowledge base that a server was given is not there: it may be ingested while the server runs."""
    named = settings.knowledge_base if "knowledge_base" in settings.model_fields_set else ""
    try:
        check_names(settings, knowledge_bases=named)
    except InvalidInput as error:
        say(f"warning: {error}; requests are refused until it is ingested", style="yellow")


def with_options(*settings: str, answer: bool = False) -> Callable[[Command], Command]:
    """A command with these settings as options. It gets those that were given as a dict `given`.

    answer: the options of an answer as well, those that were given as a dict `drawn`.
    """
    types = {name: field.annotation for name, field in EdgeSettings.model_fields.items()}
    defaults = {n: None if f.default_factory else f.default for n, f in EdgeSettings.model_fields.items()}
    groups = {"given": [_option(n, SETTINGS[n], types[n], defaults[n]) for n in settings]}
    if answer:
        types = get_type_hints(Sampling)
        defaults = {f.name: None if f.default is MISSING else f.default for f in fields(Sampling)}
        groups["drawn"] = [_option(n, ANSWER[n], types[n], defaults[n]) for n in ANSWER]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**values: Any) -> None:
            for group, options in groups.items():
                taken = {p.name: values.pop(p.name) for p in options}
                values[group] = {n: v for n, v in taken.items() if v is not None and v != []}
            command(**values)

        hints = get_type_hints(command, include_extras=True)
        own = [
            p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name])
            for p in inspect.signature(command).parameters.values()
            if p.name not in groups
        ]
        parameters = own + [p for options in groups.values() for p in options]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _option(name: str, help: str, kind: Any, default: Any) -> inspect.Parameter:
    flags = FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    shown = default.value if isinstance(default, Enum) else default
    stated = help if shown in (None, (), False) else f"{help[:-1]}; default: {shown}."
    option = typer.Option(*flags, help=stated, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[TYPES.get(name, kind) | None, option]
    )


def memories_table(recalls: Sequence[Recalled], *, texts: bool = True) -> RenderableType:
    """Table of the memories read per chunk: document, score, text; and what `notes_of` says."""
    rows = [("chunk", "document", "score", "state")]
    table = Table(title="Memories read", title_justify="left", expand=texts)
    table.add_column("chunk", justify="right", no_wrap=True)
    table.add_column("document", overflow="fold")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    if texts:
        table.add_column("text", ratio=1)
    for recalled in recalls:
        label = _label(recalled)
        for memory in recalled.recall.read:
            text = f"refused: {memory.refused}" if memory.refused else memory.text or ""
            rows.append((label, printable(memory.name), f"{memory.score:.3f}", recalled.state))
            row = (*rows[-1], *([printable(text)] if texts else []))
            # Text: a title is no markup
            table.add_row(*map(Text, row), style="red" if memory.refused else None)
            label = ""
    taken = sum(max(map(cell_len, column)) for column in zip(*rows, strict=True)) + 3 * len(table.columns) + 1
    if taken + (LEAST_TEXT if texts else 0) > err.width:
        return _memories_list(recalls, texts)
    nothing = [_label(one) for one in recalls if not (one.recall.read or one.recall.error or one.recall.service_error)]
    below = [Text(f"chunk {', '.join(nothing)}: the knowledge base has nothing near it", style="yellow")]
    return Group(*([table] if table.row_count else []), notes_of(recalls), *(below if nothing else []))


def notes_of(recalls: Sequence[Recalled]) -> Group:
    """What went wrong in recalls, a line each with the chunks that it concerns."""
    notes: dict[str, list[str]] = {}
    for recalled in recalls:
        if note := _note(recalled):
            notes.setdefault(note, []).append(_label(recalled))
    return Group(*(Text(printable(f"chunk {', '.join(of)}: {note}"), style="yellow") for note, of in notes.items()))


def _label(recalled: Recalled) -> str:
    return f"{recalled.chunk}{' (generated)' if recalled.generated else ''}"


def _note(recalled: Recalled) -> str:
    if recalled.recall.reason == "OFFLINE":  # as it was told to be
        return ""
    if recalled.recall.error:
        kept = f"; {counted(recalled.kept, 'memory')} from before kept" if recalled.kept else ""
        return f"{recalled.state}: {recalled.recall.error}{kept}"
    return f"from this device alone, because {recalled.recall.service_error}" if recalled.recall.service_error else ""


def _memories_list(recalls: Sequence[Recalled], texts: bool) -> RenderableType:
    """`memories_table` as lines, where its columns leave too little room for the text: each reference once."""
    lines, named = [Text("Memories read", style="italic")], set[str]()
    for recalled in recalls:
        for memory in recalled.recall.read:
            if memory.name not in named:
                named.add(memory.name)
                lines.append(Text(printable(f"{memory.name} ({memory.score:.2f})"), style="bold"))
                if texts:
                    lines.append(Text(printable(memory.refused or memory.text or "")))
    notes = {r.recall.error or r.recall.service_error: None for r in recalls if _note(r)}
    return Group(*(lines if len(lines) > 1 else []), *(Text(printable(note), style="yellow") for note in notes))


def attentive(model: EdgeModel, drawn: SamplingOptions) -> SamplingOptions:
    """The options of an answer with citations wherever the decoder has them, which the line below it names."""
    return {**drawn, "citations": drawn.get("citations", False) or model.engine.decoder.backend.records_queries}


def sources_of(result: Result, *, citations: bool) -> list[Text]:
    """What each memory contributed, a line each, and with `citations` what the answer's parts were read from."""
    lines = []
    for span in result.spans if citations else ():
        passage = span.memory.text[slice(*span.passage)] if span.memory.text and span.passage else ""
        quoted = f": {' '.join(passage.split())}" if passage else ""
        text = " ".join(result.text[span.start : span.end].split())
        lines.append(Text(printable(f"“{text}” from {span.memory.name}{quoted}")))
    for one in result.contributions:
        lines.append(Text(printable(f"{one.memory.name} contributed {one.nats:.1f} nats"), style="dim"))
    return lines


def verdict_of(result: Result) -> Text:
    """What the answer rests on and what to do next, in one line.

    It names the documents that spans were read from. Without a span it names what was retrieved, and says so unless
    that is one document.
    """
    sources = named_apart(result.cited or result.memories)
    if len(sources) > MOST_SOURCES:
        sources[MOST_SOURCES:] = [f"{len(sources) - MOST_SOURCES} more"]
    named = "; ".join(sources)  # a name may hold a comma
    certain = bool(result.cited) or len(sources) < 2
    texts = {
        Verdict.grounded: f"read from: {named or 'the conversation'}"
        if certain
        else f"read from memories, without a sign of which; retrieved: {named}",
        Verdict.from_the_model: f"{_unread(result) or 'not from your documents'}: the model's own words, which may be"
        " wrong (--only-documents refuses such answers)",
        Verdict.not_in_what_was_read: _not_in_what_was_read(result, named),
        Verdict.nothing_found: _nothing_found(result),
        None: f"retrieved, without a sign that the answer is from it: {named}" if named else "",
    }
    styles = {Verdict.grounded: "green", None: "dim"}
    return Text(printable(texts[result.verdict]), style=styles.get(result.verdict, "yellow"))


def _unread(result: Result) -> str:
    """What could not be read; "" where nothing failed."""
    reason = result.memory_error.partition(":")[0]
    if reason == "UNREACHABLE":
        return "the service was not reached, so nothing of it was read"
    return f"not all memories could be had ({reason})" if reason else ""


def _again(result: Result) -> str:
    return "" if result.memory_error.partition(":")[0] in MENDABLE else ": ask again when it answers"


def _not_in_what_was_read(result: Result, named: str) -> str:
    read = f" ({named})" if named else ""
    if unread := _unread(result):
        return f"{unread}{_again(result)}; the model found no answer in what else it read{read}"
    return f"the model found no answer in what it read{read}: ask in the document's own words, or add a document"


def _nothing_found(result: Result) -> str:
    if not result.recalls:
        return "nothing was read: memory is off"
    if unread := _unread(result):
        return f"{unread}{_again(result)}"
    if result.without_memory:
        return "no memories could be had"
    return "nothing near the question was found: add a document, or choose another --kb"


def nothing_to_read(model: EdgeModel, result: Result) -> bool:
    """Whether memories lacked because this device alone is read and remembers nothing."""
    return result.without_memory and not result.memory_error and not any(model.local.documents().values())


def statistics_table(result: Result) -> RenderableType:
    """Statistics of an answer: speed, and milliseconds per stage of every recall."""
    s = result.statistics
    states = ", ".join([f"{n} {state}" for state, n in s.states.items()] + [f"{n} {r}" for r, n in s.reasons.items()])
    drafts = f"{s.accepted_tokens} of {counted(s.drafted_tokens, 'drafted token')} accepted; "
    line = (
        f"{counted(s.generated_tokens, 'token')} at {s.tokens_per_s:.1f} tokens/s, "
        f"first token after {s.first_token_ms:.0f} ms, prompt {counted(s.prompt_tokens, 'token')} "
        f"({s.reused_tokens} reused), decoder {s.decoder_ms:.0f} ms, recall {s.recall_ms:.0f} ms"
        f"{f' ({states})' if states else ''}, the rest {s.overhead_ms:.1f} ms; "
        f"{drafts if s.drafted_tokens else ''}ended by {result.reason}"
    )
    if err.width < NARROW:
        waited = sum(recalled.blocked_ms for recalled in result.recalls)
        return Group(Text(line, style="dim"), Text(f"waited for memories {waited:.1f} ms", style="dim"))
    table = Table(box=None, padding=(0, 1, 0, 0), style="dim")
    stages = ("embed", "call", "server", "decompress", "inject", "blocked")
    for column in ("recall", "state", *(f"{stage} ms" for stage in stages)):
        table.add_column(column, justify="right")
    for recalled in result.recalls:
        t = recalled.recall.times
        values = (t.embed_ms, t.call_ms, t.server_ms, t.decompress_ms, t.inject_ms, recalled.blocked_ms)
        table.add_row(str(recalled.chunk), recalled.state, *(f"{v:.1f}" for v in values))
    return Group(Text(line, style="dim"), *([table] if table.row_count else []))


def as_json(result: Result) -> dict[str, Any]:
    """The answer as JSON-ready values; memories by document, without their vectors."""
    s = result.statistics
    return {
        "answer": result.text,
        "reason": result.reason,
        "without_memory": result.without_memory,
        "refused": result.refused,
        "verdict": result.verdict,
        "memory_error": result.memory_error,
        "memories": [recalled.as_json() for recalled in result.recalls],
        "spans": [span.as_json() for span in result.spans],
        "contributions": [
            {"memory_id": f"{c.memory.memory_id:016x}", "source": c.memory.source, "nats": round(c.nats, 4)}
            for c in result.contributions
        ],
        "statistics": {**asdict(s), "recall_ms": s.recall_ms, "blocked_ms_per_chunk": s.blocked_ms_per_chunk},
    }
