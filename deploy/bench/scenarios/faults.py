"""Decoding while the service is down, slow or sends damaged memories: as fast as with a healthy one."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from deploy.bench import faulty_front
from deploy.bench.answering import Answered, AnswerSettings, answer, require_memories
from deploy.bench.decoding import speeds
from deploy.bench.faulty_front import Fault
from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.knowledge import prompts, service_for
from deploy.bench.rounds import interleave
from deploy.bench.scenario import (
    Keys,
    Scenario,
    ScenarioFailed,
    Sheet,
    figure,
    subject,
    with_intervals,
)
from deploy.bench.side_process import side_process
from memory_model.bundle import Bundle

HEALTHY, OFF = "healthy", "not asked"
FAULTS = {"slow": Fault(delay_s=30.0), "corrupt": Fault(corrupt=True)}


def measure(settings: AnswerSettings) -> Keys:
    """One row a fault: its decoding over that of the healthy service and over decoding that never asks."""
    bundle = Bundle.open(settings.bundle)
    texts = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    with ExitStack() as stack:
        service = stack.enter_context(service_for(settings, bundle))
        addresses = {HEALTHY: service, "down": f"127.0.0.1:{_free_port()}"}
        for name, fault in FAULTS.items():
            addresses[name] = stack.enter_context(side_process(faulty_front.serve, service, fault))
        models = {name: stack.enter_context(settings.open(address)) for name, address in addresses.items()}

        def asking(name: str) -> Callable[[int], Answered]:
            return lambda number: answer(models[name], texts[number], "overlap", settings.answer_tokens)

        variants = {name: asking(name) for name in models}
        variants[OFF] = lambda number: answer(models[HEALTHY], texts[number], "off", settings.answer_tokens)
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="answers")
        precision = models[HEALTHY].graph.precision
    require_memories(samples[HEALTHY])
    rows = [_row(name, samples) for name in addresses]
    worst = min((r for r in rows if r["fault"] != HEALTHY), key=lambda r: r["ratio"])
    return {
        "model": bundle.manifest.name, "precision": precision, "provider": "cpu", "threads": settings.threads,
        "rows": rows, "ratio": worst["ratio"], "intervals": {"ratio": worst["intervals"]["ratio"]},
    }  # fmt: skip


def _row(name: str, samples: Mapping[str, Sequence[Answered]]) -> Keys:
    answers = samples[name]
    told = Counter(_what(r.recall) for a in answers for r in a.recalls)
    if name != HEALTHY and "memories read" in told:
        raise ScenarioFailed(f"the service was meant to be {name}, yet memories were read: {dict(told)}")
    return with_intervals(
        {"fault": name, "told": dict(told)},
        tokens_per_s=median_interval(speeds(answers)),
        ratio=ratio_interval(speeds(answers), speeds(samples[HEALTHY])),
        ratio_to_not_asking=ratio_interval(speeds(answers), speeds(samples[OFF])),
        first_token_ms=median_interval([a.statistics.first_token_ms for a in answers]),
    )


def _what(recall: Any) -> str:
    """What an event says of its recall, in a word."""
    if recall.memories:
        return "memories read"
    refused = next((r.refused for r in recall.read if r.refused), "")
    return (recall.error or refused or "nothing found").partition(":")[0]


def _free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a fault."""
    columns = (
        "service",
        "tokens/s",
        "over healthy",
        "over not asking",
        "first token, ms",
        "what the events say",
    )
    rows = [
        (
            r["fault"], *(figure(r, n) for n in ("tokens_per_s", "ratio", "ratio_to_not_asking", "first_token_ms")),
            ", ".join(f"{what} x{count}" for what, count in r["told"].items()),
        )
        for r in result["rows"]
    ]  # fmt: skip
    note = (
        "Decoding speed after the first token, recall overlapped. A prompt waits for its memories up to the deadline,"
        " which is what the first token shows of a slow service; after a failure the service is not asked for a while."
        " Without memories a step has less to read, so a broken service decodes a little faster than a healthy one."
    )
    return [Sheet(subject(result), columns, rows, note)]


SCENARIO = Scenario(
    name="faults",
    summary="Decoding while the service is down, slow or corrupt.",
    settings=AnswerSettings,
    measure=measure,
    promised=("ratio", "rows"),
    sheets=sheets,
)
