"""`filter-corpus`: the paper's data pipeline (4.2, 4.4) on a corpus: rules, duplicates, quality, test questions.

Each step takes passages and yields those that stay; the report says how many each removed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from experiments.corpus.preparing import SETS, question_sets, write_rows
from memory3.errors import InvalidInput
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory_model.data.factbook import read_jsonl
from memory_model.data.passages import Passage, corpus_files, read_rows
from memory_model.data.retrieved import overlaps
from memory_model.data.rows import open_rows
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.folder import ModelFolder
from memory_model.terminal import EmbedderOption, console, progress_bar, write_json

Scorer = Callable[[Sequence[str]], np.ndarray]
REFERENCE_TOKENS = 128
_WORD = re.compile(r"\w+")


def refused_by_rule(text: str) -> str:
    """The rule (paper 4.2) that refuses a text, or "". The paper gives three thresholds; the last two are ours."""
    words = text.split()
    if len(words) < 50:
        return "fewer than 50 words"
    if sum(map(len, words)) / len(words) > 10:
        return "mean word longer than 10 characters"
    if sum(c.isalpha() for c in text) < 0.3 * len(text.replace(" ", "")):
        return "70 % not alphabetic"
    counts = Counter(word.lower() for word in words)
    if len(counts) > 0.9 * len(words) and len(words) > 100:
        return "more than 0.9 of the words unique"
    if -sum(n / len(words) * math.log2(n / len(words)) for n in counts.values()) < 3:
        return "less than 3 bits of entropy a word"
    return ""


def without_duplicates(passages: Iterable[Passage], similarity: float = 0.8) -> list[Passage]:
    """Of passages alike by MinHash (128 permutations of shingles of five words) the first."""
    from datasketch import MinHash, MinHashLSH

    index, kept = MinHashLSH(threshold=similarity, num_perm=128), []
    for number, passage in enumerate(passages):
        words = _WORD.findall(passage.text.lower())
        sketch = MinHash(num_perm=128)
        sketch.update_batch([" ".join(words[n : n + 5]).encode() for n in range(max(1, len(words) - 4))])
        if not index.query(sketch):
            index.insert(number, sketch)
            kept.append(passage)
    return kept


def quality_scorer(texts: Sequence[str], grades: Sequence[float], embed: Scorer) -> tuple[Scorer, Mapping[str, float]]:
    """A ridge regression of grades (0 to 5) over embeddings, and how well it orders texts that it has not seen.

    That is Spearman's rank correlation, cross-validated five times, with its standard error by bootstrap over texts.
    """
    from scipy.stats import bootstrap, spearmanr
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict

    if len(texts) < 20 or not all(isinstance(grade, int | float) for grade in grades):
        raise InvalidInput(f"{len(texts)} texts with grades: give at least 20 of {{text, grade}}, grades from 0 to 5")
    vectors, model = embed(texts), RidgeCV(alphas=np.logspace(-3, 3, 13))
    unseen = cross_val_predict(model, vectors, grades, cv=KFold(5, shuffle=True, random_state=0))

    def correlation(*pairs: Sequence[float]) -> float:
        return float(spearmanr(*pairs).statistic)

    drawn = bootstrap((unseen, grades), correlation, n_resamples=1000, vectorized=False, paired=True, rng=0)
    model.fit(vectors, grades)
    found = {"spearman": correlation(unseen, grades), "error": drawn.standard_error}
    return lambda given: model.predict(embed(given)), {name: round(float(value), 3) for name, value in found.items()}


def with_test_questions(passages: Sequence[Passage], questions: Sequence[str], most: float = 2 / 3) -> set[int]:
    """Numbers of the passages whose overlap with a question exceeds `most` (paper 4.4, eq. 6), counted in words.

    A common subsequence of that length has all but a third of the question's words; only such pairs are compared.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(binary=True, token_pattern=r"\w+", dtype=np.int16)
    question_grams = counter.fit_transform(questions)
    number, words_of = counter.vocabulary_, counter.build_analyzer()
    ids = [[number[word] for word in words_of(question)] for question in questions]
    need = np.array([len(set(q)) - math.floor((1 - most) * len(q)) for q in ids])
    found: set[int] = set()
    for start in range(0, len(passages), 1024):
        block = passages[start : start + 1024]
        shared = (counter.transform(p.text for p in block) @ question_grams.T).toarray()
        for row, question in np.argwhere(shared >= need):
            if start + row not in found:
                text = [number.get(word, -1) for word in words_of(block[row].text)]
                if overlaps(text, ids[question], most):
                    found.add(start + int(row))
    return found


def filter_corpus(
    corpus: Annotated[Path, typer.Option(help="Folder of passages (docs/data.md).")] = Path("build/corpus"),
    out: Annotated[Path, typer.Option(help="Folder of the filtered corpus.")] = Path("build/filtered"),
    tests: Annotated[list[Path], typer.Option("--test", help="Question sets or folders to keep out.")] = SETS,
    grades: Annotated[Path | None, typer.Option(help="JSONL of {text, grade 0 to 5} for the quality model.")] = None,
    keep: Annotated[float, typer.Option(help="Share of the best passages to keep.")] = 0.8,
    knowledge: Annotated[float, typer.Option(help="Share of these for the knowledge base.")] = 1.0,
    embedder: EmbedderOption = None,
) -> None:
    """Filter a corpus as in the paper; write training text, a knowledge base of references and a report."""
    passages = [p for file in corpus_files(corpus) for p in read_rows(file, Passage)]
    report: list[dict[str, Any]] = []

    def step(name: str, kept: Sequence[Passage], **details: Any) -> list[Passage]:
        nonlocal passages
        report.append({"step": name, "removed": len(passages) - len(kept), "left": len(kept), **details})
        passages = list(kept)
        return passages

    step("corpus", passages)
    refused = [refused_by_rule(p.text) for p in passages]
    reasons = dict(Counter(filter(None, refused)))
    step("rules", [p for p, why in zip(passages, refused, strict=True) if not why], reasons=reasons)
    step("MinHash", without_duplicates(passages))
    if grades:
        rows, opened = read_jsonl(grades, ("text",)), open_embedder(embedder)

        def embed(texts: Sequence[str]) -> np.ndarray:
            with progress_bar("embedding", len(texts)) as advance:
                parts = []
                for start in range(0, len(texts), 64):
                    parts.append(opened.embed(list(texts[start : start + 64])))
                    advance(len(parts[-1]))
            return np.concatenate(parts)

        score, ordered = quality_scorer([r["text"] for r in rows], [r.get("grade", "") for r in rows], embed)
        order = np.argsort(-score([p.text for p in passages]), kind="stable")
        passages_by_quality = [passages[n] for n in order]
        step("quality", passages_by_quality[: math.ceil(keep * len(order))], graded=len(rows), **ordered)
    questions = [row.question for file in question_sets(tests) for row in open_rows(file)]
    hit = with_test_questions(passages, questions)
    step("test questions", [p for n, p in enumerate(passages) if n not in hit], questions=len(questions))
    checkpoint = ModelFolder.open().checkpoint
    count = Tokenizer.from_json(checkpoint.tokenizer_json, checkpoint.special_tokens).count
    best = passages[: math.ceil(knowledge * len(passages))]
    references = [
        {"key": f"{p.source}/{p.key}/{n}", "title": p.title, "text": text}
        for p in best
        for n, text in enumerate(split(p.text, p.title, count, REFERENCE_TOKENS))
    ]
    for source in sorted({p.source for p in passages}):
        write_rows(out / f"{source}.jsonl", [p for p in passages if p.source == source])
    write_rows(out / "knowledge_base" / "references.jsonl", references)
    words = sum(len(p.text.split()) for p in passages)
    write_json(out / "report" / "report.json", {"steps": report, "words": words, "references": len(references)})
    table = Table("step", "removed", "left", "details")
    for row in report:
        rest = ", ".join(f"{k}: {v}" for k, v in row.items() if k not in ("step", "removed", "left"))
        table.add_row(row["step"], f"{row['removed']:,}", f"{row['left']:,}", rest)
    console.print(table)
    console.print(f"{words:,} words of training text and {len(references):,} references in [bold]{out}[/bold]")
