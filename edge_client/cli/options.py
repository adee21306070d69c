"""Options of commands that are settings of the model, or options of an answer: type and default are declared there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import Enum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from edge_client.generate.sampling import Sampling
from edge_client.settings import EdgeSettings


class Memory(str, Enum):
    """How an answer reads memories: a RecallMode, or both without and with."""

    overlap = "overlap"
    exact = "exact"
    off = "off"
    compare = "compare"


SETTINGS = {
    "bundle": "Folder of the edge bundle.",
    "local": "Folder of this device's own knowledge bases.",
    "service": "host:port of the service.",
    "knowledge_base": "Whose memories are read; several as a,b.",
    "memory": "overlap decodes while memories are recalled, exact waits for them, off reads none, compare answers "
    "twice, without and with.",
    "offline": "Never call the service; what this device has is read.",
    "provider": "auto, cpu, cuda or tensorrt.",
}
ANSWER = {
    "max_tokens": "Longest answer.",
    "temperature": "0 always takes the likeliest token.",
    "top_k": "Draw from this many likeliest tokens; 0 from all.",
    "top_p": "Draw from the likeliest tokens that reach this.",
    "stop": "End before this text; may be given again.",
    "seed": "Makes drawing repeatable.",
}
FLAGS = {"knowledge_base": ("--knowledge-base", "--kb")}
TYPES = {"memory": Memory, "stop": list[str]}

Command = Callable[..., None]


def with_options(*settings: str, answer: bool = False) -> Callable[[Command], Command]:
    """A command with these settings as options. It gets those that were given as a dict `given`.

    answer: the options of an answer as well, those that were given as a dict `drawn`.
    """
    types = {name: field.annotation for name, field in EdgeSettings.model_fields.items()}
    defaults = {name: field.default for name, field in EdgeSettings.model_fields.items()}
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
    stated = "" if shown in (None, (), False) else f" [default: {shown}]"
    option = typer.Option(*flags, help=f"{help}{stated}", show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[TYPES.get(name, kind) | None, option]
    )  # fmt: skip
