"""A real service with a small part of the Factbook, ingested once for a model, and prompts of an exact length."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from deploy.bench.machine import ROOT
from deploy.bench.scenario import BUILD, ScenarioFailed, Settings
from deploy.processes import ProcessFailed, ServiceProcess
from memory_model.bundle import Bundle
from memory_model.digest import file_sha256

FACTBOOK = ROOT / "data" / "factbook.jsonl"
COUNTRIES = ("bn", "lu")
"""Ingested: some 90 references, of which a chunk reads five."""
FILLERS = (" the", ".")
"""One token each, again and again, in most tokenizers."""


@contextmanager
def service_for(settings: Settings, bundle: Bundle, model: Path | None = None) -> Iterator[str]:
    """The address of the service that the settings name, or of one of our own; raises ScenarioFailed.

    model: the folder of the model that the bundle was exported from, by default the packaged one. The store is kept in
    build/bench for the next run, by the identity of what wrote it. An interrupted ingestion resumes.
    """
    if settings.target:
        yield settings.target
        return
    identity = bundle.identity
    name = "-".join(i[:8] for i in (identity.model_id, identity.codec_id, identity.memory_format_id))
    folder = BUILD / f"knowledge-{name}-{bundle.manifest.embedder_id[:8]}-{file_sha256(FACTBOOK)[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    service = None
    try:
        service = ServiceProcess.start(folder, bundle.folder, model=model)
        if not (folder / "ingested").is_file():
            _ingest(folder, service.address)
            (folder / "ingested").touch()
        yield service.address
        service.stop()
    except ProcessFailed as failure:
        raise ScenarioFailed(str(failure)) from failure
    finally:
        if service is not None:
            service.kill()


def prompts(bundle: Bundle, count: int, tokens: int, before: Sequence[str] = ()) -> list[str]:
    """`count` different messages whose prompt, template included, has exactly `tokens` tokens.

    They are passages of the Factbook about other countries than the ingested ones' first lines, so that every
    round asks for other memories. before: for each, a text that it begins with (whole, if there is room).
    """
    leads = [*before, *[""] * count]
    return [
        _cut(bundle, f"{lead}{passage}", tokens)
        for lead, passage in zip(leads, _passages(count), strict=False)
    ]


def _passages(count: int) -> list[str]:
    """Texts of more than a thousand tokens each, no two the same."""
    documents = [json.loads(line) for line in FACTBOOK.read_text("utf-8").splitlines()]
    chosen = [d for key in COUNTRIES for d in documents if d["key"] == key]
    passages = []
    for number in range(count):
        lines = chosen[number % len(chosen)]["text"].splitlines()
        start = 11 * (number // len(chosen)) % max(1, len(lines) - 80)
        passages.append("\n".join(lines[start:]))
    return passages


def _cut(bundle: Bundle, text: str, tokens: int) -> str:
    """The longest beginning of `text` whose prompt has at most `tokens` tokens, then filled up to just as many."""
    ids = bundle.tokenizer.encode(text)
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if _length(bundle, bundle.tokenizer.decode(ids[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    cut = bundle.tokenizer.decode(ids[:low]).rstrip()
    for filler in FILLERS:
        filled = cut
        while _length(bundle, filled) < tokens:
            filled += filler
        if _length(bundle, filled) == tokens:
            return filled
    raise ScenarioFailed(f"no prompt of exactly {tokens} tokens can be made with this tokenizer")


def _length(bundle: Bundle, text: str) -> int:
    return len(bundle.chat.prompt([{"role": "user", "content": text}]).ids)


def _ingest(folder: Path, address: str) -> None:
    documents = folder / "documents.jsonl"
    wanted = [
        line for line in FACTBOOK.read_text("utf-8").splitlines() if json.loads(line)["key"] in COUNTRIES
    ]
    documents.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    Console(stderr=True, highlight=False).print(
        f"ingesting {len(wanted)} countries into {folder.relative_to(ROOT)}, once: minutes"
    )
    program = Path(sys.executable).parent / "memory-service"
    done = subprocess.run(
        [program, "ingest", documents, "--address", address], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    if done.returncode:
        raise ScenarioFailed(
            f"memory-service ingest exited with {done.returncode}; see {folder / 'service.log'}"
        )
