"""Decoding with a network between device and service, and up to which round trip memory beats text in the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field

from deploy.bench.answering import AnswerSettings
from deploy.bench.break_even import break_even_ms
from deploy.bench.decoding import counted, measure_modes, speeds, states, whole_speeds
from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.knowledge import prompts, service_for
from deploy.bench.netem import netem, own_loopback
from deploy.bench.plots import drawing
from deploy.bench.scenario import Keys, Scenario, Sheet, figure, round_figure, subject, with_intervals
from deploy.bench.shaper import Link, shaped_network
from deploy.bench.text_rag import TextRag
from memory_model.bundle import Bundle

RAG = "RAG"
WAYS = ("overlap", "exact")


class NetworkSettings(AnswerSettings):
    """Links: every round trip with every bandwidth without loss, and once more each of `lossy`.

    emulator: proxy is a process in user space, netem the kernel's.
    """

    rtt_ms: tuple[float, ...] = Field(default=(0, 20, 50, 100, 200), min_length=1)
    bandwidth_mbit: tuple[float, ...] = Field(default=(100, 20), min_length=1)
    lossy: tuple[tuple[float, float, float], ...] = ()
    jitter_ms: float = Field(default=0, ge=0)
    emulator: Literal["proxy", "netem"] = "proxy"

    def links(self) -> list[Link]:
        """lossy: round trip, bandwidth and share of packets lost."""
        clean = [Link(rtt, mbit, self.jitter_ms) for mbit in self.bandwidth_mbit for rtt in self.rtt_ms]
        return clean + [Link(rtt, mbit, self.jitter_ms, loss) for rtt, mbit, loss in self.lossy]


def measure(settings: NetworkSettings) -> Keys:
    """One row a link, then the break-even points of each bandwidth."""
    bundle = Bundle.open(settings.bundle)
    texts = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    rows = []
    with ExitStack() as stack:
        if settings.emulator == "netem":
            stack.enter_context(own_loopback())
        service = stack.enter_context(service_for(settings, bundle))
        for link in settings.links():
            rows.append(_row(settings, link, service, texts))
    keys: Keys = {
        "model": bundle.manifest.name, "precision": bundle.manifest.precision, "provider": "cpu",
        "threads": settings.threads, "rows": rows, "break_even": _break_even(rows),
    }  # fmt: skip
    named = {"rtt_ms": 50.0, "bandwidth_mbit": 100.0, "loss": 0.0}
    target = next((r for r in rows if all(r[name] == value for name, value in named.items())), None)
    if target:
        keys["ratio_overlap_50ms_100mbit"] = target["ratio_overlap"]
        keys["intervals"] = {"ratio_overlap_50ms_100mbit": target["intervals"]["ratio_overlap"]}
    return keys


@contextmanager
def _between(settings: NetworkSettings, link: Link, service: str) -> Iterator[str]:
    """The service's address as seen through the link."""
    if settings.emulator == "netem":
        with netem(link):
            yield service
    else:
        with shaped_network(service, link) as address:
            yield address


def _row(settings: NetworkSettings, link: Link, service: str, texts: Sequence[str]) -> Keys:
    label = f"{link.rtt_ms:g} ms, {link.bandwidth_mbit:g} Mbit/s"
    with _between(settings, link, service) as address, settings.open(address) as model:
        rag = TextRag(model, texts, settings)
        samples = measure_modes(model, texts, settings, {RAG: rag.once}, label)
        lead_tokens = model.policy.lead_tokens
    off, overlap, exact = samples["off"], samples["overlap"], samples["exact"]
    found = states(overlap)
    chunks = sum(found.values())
    in_order = {
        "rtt_ms": link.rtt_ms, "bandwidth_mbit": link.bandwidth_mbit, "loss": link.loss, "jitter_ms": link.jitter_ms,
        "lead_tokens": lead_tokens, "chunks": chunks, "late_chunks": found.get("late", 0),
        "failed_chunks": chunks - sum(found.get(s, 0) for s in ("fetched", "held", "late")),
        "answer_s": {
            "overlap": round_figure(median(a.total_s for a in overlap)),
            "exact": round_figure(median(a.total_s for a in exact)),
            RAG: round_figure(median(samples[RAG])),
        },
    }  # fmt: skip
    return with_intervals(
        in_order,
        ratio_overlap=ratio_interval(speeds(overlap), speeds(off)),
        ratio_exact=ratio_interval(speeds(exact), speeds(off)),
        ratio_end_to_end_overlap=ratio_interval(whole_speeds(overlap), whole_speeds(off)),
        ratio_end_to_end_exact=ratio_interval(whole_speeds(exact), whole_speeds(off)),
        first_token_ms=median_interval([a.statistics.first_token_ms for a in overlap]),
        ratio_to_rag=ratio_interval(samples[RAG], [a.total_s for a in overlap]),
    )


def _break_even(rows: Sequence[Mapping[str, Any]]) -> list[Keys]:
    """For every bandwidth: up to which round trip an answer with memory from afar ends before one with text at hand.

    At hand: the text RAG of the shortest round trip, as if its references lay on the device.
    """
    at_hand = min(rows, key=lambda r: (r["rtt_ms"], r["loss"], -r["bandwidth_mbit"]))["answer_s"][RAG]
    found = []
    for mbit in sorted({r["bandwidth_mbit"] for r in rows}, reverse=True):
        clean = [r for r in rows if r["bandwidth_mbit"] == mbit and not r["loss"]]
        keys: Keys = {"bandwidth_mbit": mbit}
        for way in WAYS:
            ours = [r["answer_s"][way] for r in clean]
            at, inside = break_even_ms([r["rtt_ms"] for r in clean], ours, [at_hand] * len(clean))
            keys |= {f"{way}_ms": None if at is None else round_figure(at), f"{way}_measured": inside}
        found.append(keys)
    return found


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a link, then the break-even points."""
    columns = (
        "round trip, ms",
        "Mbit/s",
        "loss",
        "overlap",
        "exact",
        "overlap, end to end",
        "over text RAG",
        "late",
    )
    names = ("ratio_overlap", "ratio_exact", "ratio_end_to_end_overlap", "ratio_to_rag")
    rows = [
        (
            f"{r['rtt_ms']:g}", f"{r['bandwidth_mbit']:g}", f"{r['loss']:.0%}", *(figure(r, name) for name in names),
            f"{r['late_chunks']} of {r['chunks']}" + (f", {r['failed_chunks']} failed" if r["failed_chunks"] else ""),
        )
        for r in result["rows"]
    ]  # fmt: skip
    emulated = {
        "proxy": "a proxy that delays, limits and, for a lost packet, waits for TCP's retransmission",
        "netem": "the kernel's netem",
    }[result["settings"]["emulator"]]
    note = (
        f"{counted(result)} Memories of a generated chunk are asked for {result['rows'][0]['lead_tokens']} tokens"
        f" before it begins; late ones are read from when they come. The network is {emulated}."
    )
    even = [
        (f"{e['bandwidth_mbit']:g}", *(break_even_text(e[f"{w}_ms"], e[f"{w}_measured"]) for w in WAYS))
        for e in result["break_even"]
    ]
    told = (
        "Up to which round trip an answer with memories from afar ends before one of text RAG on the same runtime"
        " whose references lie on the device (the text RAG of the shortest round trip). Prolonged: beyond what was"
        " measured, by straight lines."
    )
    heads = ("Mbit/s", "overlap pays below", "exact pays below")
    return [
        Sheet(subject(result), columns, rows, note),
        Sheet("break-even with local text RAG", heads, even, told),
    ]


def break_even_text(at_ms: float | None, measured: bool) -> str:
    """The point in words."""
    if at_ms is None:
        return "no such point"
    return f"{at_ms:.0f} ms" if measured else f"{at_ms:.0f} ms (prolonged)"


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Left: decoding with over without memory. Right: seconds of a whole answer, with the break-even points."""
    with drawing(path, width=8.4, columns=2) as (ratios, seconds):
        for mbit in sorted({r["bandwidth_mbit"] for r in result["rows"]}, reverse=True):
            rows = [r for r in result["rows"] if r["bandwidth_mbit"] == mbit and not r["loss"]]
            at, style = [r["rtt_ms"] for r in rows], "-" if mbit >= 100 else "--"
            for way, marker, colour in (("overlap", "o", "C0"), ("exact", "s", "C1")):
                values = [r[f"ratio_{way}"] for r in rows]
                bounds = [r["intervals"][f"ratio_{way}"] for r in rows]
                errors = [
                    [max(v - low, 0) for v, (low, _) in zip(values, bounds, strict=True)],
                    [max(high - v, 0) for v, (_, high) in zip(values, bounds, strict=True)],
                ]
                look = {
                    "marker": marker,
                    "linestyle": style,
                    "color": colour,
                    "label": f"{way}, {mbit:g} Mbit/s",
                }
                ratios.errorbar(at, values, yerr=errors, capsize=2, **look)
                seconds.plot(at, [r["answer_s"][way] for r in rows], **look)
            text = {"marker": "^", "linestyle": style, "color": "C2", "label": f"text RAG, {mbit:g} Mbit/s"}
            seconds.plot(at, [r["answer_s"][RAG] for r in rows], **text)
        for even in result["break_even"]:
            for way, colour in (("overlap", "C0"), ("exact", "C1")):
                if (at_ms := even[f"{way}_ms"]) is None:
                    continue
                words = break_even_text(at_ms, even[f"{way}_measured"])
                label = f"{way}, {even['bandwidth_mbit']:g} Mbit/s, pays below {words}"
                if even[f"{way}_measured"]:
                    seconds.axvline(at_ms, color=colour, linestyle=":", linewidth=1, label=label)
                else:
                    seconds.plot([], [], color=colour, linestyle=":", linewidth=1, label=label)
        ratios.set_ylim(0, 1.1)
        ratios.set_ylabel("decoding speed, with over without memory")
        seconds.set_ylim(bottom=0)
        seconds.set_ylabel("seconds of a whole answer")
        for axes in (ratios, seconds):
            axes.set_xlabel("round-trip time, ms")
            axes.legend(frameon=False, fontsize=6)


SCENARIO = Scenario(
    name="network",
    summary="Decoding with memories from behind a network, over without; where text RAG is as fast.",
    settings=NetworkSettings,
    measure=measure,
    promised=("rows", "break_even"),
    sheets=sheets,
    plot=plot,
)
