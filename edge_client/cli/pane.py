"""An answer while it comes, in a terminal: the text, and beside it which memories each chunk reads."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edge_client.events import Event, Finished, Recalled, Token
from memory_model.printable import printable

REFRESHES_PER_S = 12
LEAST_COLUMNS = 80
"""In a narrower terminal there is no pane."""
PANE_COLUMNS = 36
STYLES = {"fetched": "green", "held": "green", "offline": "cyan", "late": "yellow"}


class AnswerView:
    """What is known of one answer. Renders as its last lines beside its memories; never higher than the terminal."""

    def __init__(self) -> None:
        self.text = ""
        self.recalls: list[Recalled] = []
        self.finished: Finished | None = None

    def take(self, event: Event) -> None:
        """One event more."""
        if isinstance(event, Token):
            self.text += event.text
        elif isinstance(event, Recalled):
            self.recalls.append(event)
        else:
            self.finished = event

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(console.size.height - 2, 4)
        pane = provenance(self.recalls)[-height:]
        width = options.max_width - PANE_COLUMNS - 3
        lines = Text(printable(self.text)).wrap(console, max(width, 20))[-height:]
        table = Table.grid(padding=(0, 3, 0, 0))
        table.add_column(width=width)
        table.add_column(width=PANE_COLUMNS)
        table.add_row(Text("\n").join(lines), Text("\n").join(pane))
        yield table


def provenance(recalls: Iterable[Recalled]) -> list[Text]:
    """A line for every chunk (its number, what became of its recall) and for every memory that it reads."""
    lines: list[Text] = []
    for recalled in recalls:
        when = "generated" if recalled.generated else "prompt"
        style = STYLES.get(recalled.state, "red")
        lines.append(Text.assemble((f"{when} chunk {recalled.chunk}: ", "dim"), (recalled.state, style)))
        if recalled.recall.error:
            lines.append(_line(f"  {recalled.recall.error}", "red"))
        for memory in recalled.recall.read:
            said = f"  {memory.score:.2f} {memory.name}"
            lines.append(_line(f"{said}: {memory.refused}", "dim red") if memory.refused else _line(said, ""))
    return lines


def _line(text: str, style: str) -> Text:
    line = Text(printable(text), style=style, no_wrap=True)
    line.truncate(PANE_COLUMNS, overflow="ellipsis")
    return line


def show_live(events: Iterable[Event], console: Console) -> AnswerView:
    """Follow an answer in the terminal; when it is over the pane is gone and the whole text stays."""
    view = AnswerView()
    if console.width < LEAST_COLUMNS:
        for event in events:
            view.take(event)
            if isinstance(event, Token):
                console.print(Text(printable(event.text)), end="")
        console.print()
        return view
    with Live(view, console=console, refresh_per_second=REFRESHES_PER_S, transient=True):
        for event in events:
            view.take(event)
    console.print(Text(printable(view.text)))
    return view
