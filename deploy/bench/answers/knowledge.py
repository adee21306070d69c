"""A real service with a small part of the Factbook, ingested once for a model, and prompts of an exact length."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy.bench.scenario import BUILD, ScenarioFailed, TargetSettings
from memory3.config import ModelConfig
from memory3.digest import file_sha256
from memory3.files.bundle import Bundle
from memory3.formats import FileDocument
from memory3.text.references import split
from testing.processes import PROGRAMS, ProcessFailed, ServiceProcess
from testing.programs import ROOT

FACTBOOK = ROOT / "data" / "factbook.jsonl"
COUNTRIES = ("bn", "lu")
"""Ingested: some 90 references, of which a chunk reads five."""
LEAST_REFERENCES = 8
SMALL_PARAMETERS = 135e6
FILLERS = (" the", ".")
"""One token each, again and again, in most tokenizers."""


@contextmanager
def service_for(settings: TargetSettings, bundle: Bundle, model: Path | None = None) -> Iterator[str]:
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
    try:
        with ServiceProcess.start(folder, bundle.folder, model=model) as service:
            if not (folder / "ingested").is_file():
                _ingest(folder, service.address)
                (folder / "ingested").touch()
            yield service.address
    except ProcessFailed as failure:
        raise ScenarioFailed(str(failure)) from failure


def prompts(bundle: Bundle, count: int, tokens: int, before: Sequence[str] = ()) -> list[str]:
    """`count` different messages whose prompt, template included, has exactly `tokens` tokens.

    They are passages of the ingested countries, so that every round asks for other memories. before: for each, a
    text that it begins with (whole, if there is room).
    """
    leads = [*before, *[""] * count]
    return [_cut(bundle, lead + text, tokens) for lead, text in zip(leads, _passages(count), strict=False)]


@dataclass
class Portion:
    """Documents of a round and the references that they are split into."""

    documents: list[FileDocument] = field(default_factory=list)
    references: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Of the references."""
        return len(self.references)


def portions(count: Callable[[str], int], tokens: int, references: int) -> Iterator[Portion]:
    """Documents of the factbook with about as many references, portion after portion, none twice.

    count: tokens of a text. tokens: of a reference, at most. Only the beginning of a larger document is taken.
    """
    portion = Portion()
    for line in FACTBOOK.read_text("utf-8").splitlines():
        document = json.loads(line)
        key, title, text = document["key"], document["title"], document["text"]
        parts = split(text, title, count, tokens)
        if len(parts) > references:
            text = text[: len(text) * references // len(parts)]
            parts = split(text, title, count, tokens)
        portion.documents.append(FileDocument(key, key, title, text))
        portion.references += parts
        if portion.count >= references:
            yield portion
            portion = Portion()


def fewer_of_large(references: int, config: ModelConfig) -> int:
    """How many references a round takes, of as many for a model of 135M parameters: about as long a time."""
    return max(LEAST_REFERENCES, round(references * min(1.0, SMALL_PARAMETERS / config.parameters())))


def _countries() -> list[dict[str, str]]:
    documents = map(json.loads, FACTBOOK.read_text("utf-8").splitlines())
    return [d for d in documents if d["key"] in COUNTRIES]


def _passages(count: int) -> Iterator[str]:
    """Texts of more than a thousand tokens each, the first 200 all different."""
    chosen = _countries()
    for number in range(count):
        lines = chosen[number % len(chosen)]["text"].splitlines()
        start = 11 * (number // len(chosen)) % max(1, len(lines) - 80)
        yield "\n".join(lines[start:])


def _cut(bundle: Bundle, text: str, tokens: int) -> str:
    """The longest beginning of `text` whose prompt has at most `tokens` tokens, then filled up to just as many."""

    def length(text: str) -> int:
        return len(bundle.chat.prompt([{"role": "user", "content": text}]).ids)

    ids = bundle.tokenizer.encode(text)
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if length(bundle.tokenizer.decode(ids[:middle])) <= tokens else (low, middle - 1)
    cut = bundle.tokenizer.decode(ids[:low]).rstrip()
    for filler in FILLERS:
        filled = cut
        while length(filled) < tokens:
            filled += filler
        if length(filled) == tokens:
            return filled
    raise ScenarioFailed(f"no prompt of exactly {tokens} tokens can be made with this tokenizer")


def _ingest(folder: Path, address: str) -> None:
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps(d) + "\n" for d in _countries()), encoding="utf-8")
    command = [str(PROGRAMS / "memory-service"), "ingest", str(documents), "--address", address]
    if code := subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise ScenarioFailed(f"memory-service ingest exited with {code}; see {folder / 'service.log'}")
