"""What a model is tuned on: the tasks of `memory-model adapt --mixture`, each a source of batches, mixed by weight."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory3.printable import counted
from memory3.text.chat import ChatTemplate
from memory3.text.references import split, title_line
from memory3.text.tokenizer import Tokenizer
from memory_model.data import factbook
from memory_model.data.batches import BatchSource, Mixture, parse_weights
from memory_model.data.conversations import FactConversations, PassageConversations, Sizes, references_of
from memory_model.data.dialogue import Dialogues
from memory_model.data.hard_negatives import Articles, HardFacts
from memory_model.data.passages import PASSAGE_QUESTIONS, PassageFiles, PassageQuestion, corpus_files, read_rows
from memory_model.data.preferences import Preferences
from memory_model.data.retrieved import RetrievedSequences
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.data.running_text import ContinualBatches, KeepingBatches
from memory_model.data.tasks import INTRODUCTIONS, QUESTIONS, REQUESTS, TASKS

if TYPE_CHECKING:
    from memory_model.models.load import LoadedModel

_WITHOUT_CORPUS = {"facts", "hard", "articles", "dialogue", "preferences"}


@dataclass(frozen=True)
class Reader:
    """What batches are made for: the model's tokenizer, chat template and shape with its memory budget."""

    tokenizer: Tokenizer
    chat: ChatTemplate
    config: ModelConfig

    @classmethod
    def of(cls, loaded: LoadedModel) -> Reader:
        """What a loaded model reads by."""
        return cls(loaded.tokenizer, loaded.chat, loaded.config)


@dataclass(frozen=True)
class TrainingFiles:
    """The files that tasks are made from; each is read when a task first needs it.

    documents: JSONL of {key, title, text}, a knowledge base of facts. corpus: folder of passages (docs/data.md).
    sequences: the prepared sequences of continual and warmup. closed_book: what the model answers wrongly without
    memory, by question, for preferences. report: receives a line about each file.
    """

    documents: Path
    corpus: Path | None = None
    questions: Path = QUESTIONS
    sequences: Callable[[], RetrievedSequences] | None = None
    closed_book: Callable[[Sequence[QuestionRow]], Mapping[str, str]] = lambda _: {}
    report: Callable[[str], None] = lambda _: None

    @cached_property
    def training_documents(self) -> list[dict[str, Any]]:
        """The documents without the held-out ones."""
        documents = [d for d in factbook.read_jsonl(self.documents) if not factbook.held_out(d["key"])]
        self.report(f"{counted(len(documents), 'document')} to tune on, the held-out ones left out")
        return documents

    @cached_property
    def passages(self) -> PassageFiles:
        """The corpus' passages without the held-out ones, file by file, read as needed."""
        if self.corpus is None:
            raise InvalidInput("this task needs --corpus: docs/data.md describes it")
        passages = PassageFiles(corpus_files(self.corpus))
        self.report(f"{counted(len(passages), 'passage')} to tune on, the held-out ones left out")
        return passages

    @cached_property
    def question_rows(self) -> list[QuestionRow]:
        """People's questions about paragraphs."""
        return open_rows(self.questions, advice="`python -m experiments split-questions` makes it")

    def passage_questions(self) -> list[PassageQuestion]:
        """People's questions about passages that may be trained on."""
        assert self.corpus is not None
        known = {(p.source, p.key) for p in self.passages}
        files = [self.corpus / PASSAGE_QUESTIONS, *([INTRODUCTIONS] if INTRODUCTIONS.is_file() else [])]
        questions = [q for file in files for q in read_rows(file, PassageQuestion) if (q.source, q.key) in known]
        self.report(f"{counted(len(questions), 'question')} about these passages")
        return questions

    def requests(self) -> list[tuple[str, str]]:
        """Small talk: (request, answer)."""
        rows = factbook.read_jsonl(REQUESTS, ("request", "answer")) if REQUESTS.is_file() else []
        return [(row["request"], row["answer"]) for row in rows]


def facts_of(reader: Reader, files: TrainingFiles, seed: int, sizes: Sizes) -> FactConversations:
    """Conversations about a knowledge base of facts, the held-out documents left out."""
    references = references_of(files.training_documents, reader.tokenizer, sizes.longest)
    return FactConversations(references, reader.chat, seed, sizes)


def hard_facts_of(reader: Reader, files: TrainingFiles, seed: int, sizes: Sizes) -> HardFacts:
    """Conversations about facts whose references all have the requested field, of different subjects."""
    references = references_of(files.training_documents, reader.tokenizer, sizes.longest)
    return HardFacts(references, reader.chat, seed, sizes)


def mixture_of(
    weights: str, reader: Reader, files: TrainingFiles, seed: int, sizes: Sizes, *, rows: int = 2
) -> Mixture:
    """The mixture of `--mixture facts:4,hard:3,…`; rows: sequences a batch of continual and warmup.

    Raises InvalidInput for an unknown task, or one that needs a corpus where none is given.
    """
    shares = parse_weights(weights, TASKS)
    sizes = replace(sizes, longest=reader.config.memory.reference_tokens)
    needing = [task for task in shares if task not in _WITHOUT_CORPUS]
    if needing and files.corpus is None:
        raise InvalidInput(f"task {needing[0]} needs --corpus: docs/data.md describes it")
    sources = {task: (share, source_of(task, reader, files, seed, sizes, rows)) for task, share in shares.items()}
    return Mixture(sources, seed)


def source_of(task: str, reader: Reader, files: TrainingFiles, seed: int, sizes: Sizes, rows: int) -> BatchSource:
    """The batches of one task. Each task has a seed of its own."""
    chat = reader.chat
    match task:
        case "facts":
            return facts_of(reader, files, seed, sizes)
        case "hard":
            return hard_facts_of(reader, files, seed + 5, sizes)
        case "articles":
            return Articles(files.question_rows, chat, seed + 6, sizes)
        case "preferences":
            facts = hard_facts_of(reader, files, seed + 8, sizes)
            articles = Articles(files.question_rows, chat, seed + 9, sizes)
            return Preferences(facts, articles, files.closed_book(files.question_rows), seed + 10)
        case "dialogue":
            return Dialogues(files.training_documents, chat, seed + 7, sizes)
        case "keeping":
            return KeepingBatches(files.passages, chat, seed + 2, requests=files.requests())
        case "questions":
            return PassageConversations(files.passage_questions(), chat, seed + 4, sizes)
        case "continual" | "warmup":
            if files.sequences is None:
                raise InvalidInput(f"task {task} needs prepared sequences")
            return ContinualBatches(files.sequences(), seed + 3, rows=rows, warmup=task == "warmup")
    raise InvalidInput(f"there is no task {task!r}: choose from {', '.join(TASKS)}")


def codec_texts(
    reader: Reader, files: TrainingFiles, references: int, seed: int, asked: Sequence[QuestionRow] = ()
) -> tuple[Mixture, list[str]]:
    """What a codec is fitted to: batches that read memories, and the texts of `references` references.

    asked: questions whose texts are half of the references. All kinds are mixed, because the last ones measure.
    """
    corpus = files.corpus
    tasks = "facts:1,questions:2" if corpus and (corpus / PASSAGE_QUESTIONS).is_file() else "facts"
    mixture = mixture_of(tasks, reader, files, seed, Sizes())
    facts_source = mixture.sources["facts"][1]
    assert isinstance(facts_source, FactConversations)
    rng, facts = random.Random(seed), [r.text for r in facts_source.references]
    prose = list(dict.fromkeys(title_line(row.title) + row.knowledge for row in asked))
    prose = [text for text in prose if reader.tokenizer.count(text) <= reader.config.memory.reference_tokens]
    prose = rng.sample(prose, min(references // 2, len(prose)))
    references -= len(prose)
    # Prose is more diverse than facts and loses more.
    chosen = rng.sample(facts, min(references // 3 if corpus else references, len(facts)))
    limit = reader.config.memory.reference_tokens
    while corpus is not None and len(chosen) < references:
        passage = rng.choice(files.passages)
        if pieces := split(passage.text, passage.title, reader.tokenizer.count, limit):
            chosen.append(rng.choice(pieces))
    chosen += prose
    rng.shuffle(chosen)
    return mixture, chosen
