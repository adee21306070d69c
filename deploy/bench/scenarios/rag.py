"""Memory against the same knowledge as text in the prompt: our own RAG on the same runtime, and llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deploy.bench.answers.answering import AnswerSettings, answer, require_memories
from deploy.bench.answers.knowledge import prompts, service_for
from deploy.bench.answers.text_rag import TextRag
from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.llama import LlamaCpp
from deploy.bench.scenario import Keys, Scenario, Sheet, figure, subject, with_intervals
from memory3.files.bundle import Bundle

MEMORY, RAG, RAG_EVERY_CHUNK, PEER, ASKING = "memory", "RAG", "RAG every chunk", "llama.cpp RAG", "retrieval"


class RagSettings(AnswerSettings):
    """A whole answer in each way."""

    rounds: int = 9


def measure(settings: AnswerSettings) -> Keys:
    """Seconds of a whole answer in four ways, in turn."""
    bundle = Bundle.open(settings.bundle)
    llama, why_not = LlamaCpp.reading(bundle.manifest.name)
    questions = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    answer_tokens = settings.answer_tokens
    with service_for(settings, bundle) as address, settings.open(address) as model:
        rag = TextRag(model, questions, settings)

        def with_memory(number: int) -> float:
            answered = answer(model, questions[number], "overlap", answer_tokens)
            require_memories([answered])
            return answered.total_s

        variants: dict[str, Callable[[int], float]] = {
            MEMORY: with_memory,
            RAG: rag.once,
            RAG_EVERY_CHUNK: rag.every_chunk,
            ASKING: rag.retrieval_s,
        }
        if llama:
            read = settings.prompt_tokens + rag.read_tokens
            variants[PEER] = lambda _: llama.bench(
                prompt=read, generate=answer_tokens, threads=settings.threads, together=True
            )
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="answers")
        keys: Keys = {
            "model": bundle.manifest.name,
            "precision": model.engine.decoder.backend.precision,
            "provider": model.engine.decoder.backend.provider,
            "threads": settings.threads,
            "references": bundle.config.memory.memories_per_chunk,
            "reference_tokens": rag.read_tokens,
            "llama_cpp": llama.described() if llama else None,
        }
    ours = samples[MEMORY]

    def per_s(seconds: list[float]) -> list[float]:
        return [answer_tokens / s for s in seconds]

    measured = {
        "tokens_per_s_memory": median_interval(per_s(ours)),
        "tokens_per_s_rag": median_interval(per_s(samples[RAG])),
        "tokens_per_s_rag_every_chunk": median_interval(per_s(samples[RAG_EVERY_CHUNK])),
        "text_retrieval_ms": median_interval([1e3 * s for s in samples[ASKING]]),
        "ratio": ratio_interval(samples[RAG], ours),
        "ratio_every_chunk": ratio_interval(samples[RAG_EVERY_CHUNK], ours),
    }
    if not llama:
        return with_intervals({**keys, "ratio_vs_llama_cpp": None, "llama_cpp_missing": why_not}, **measured)
    alone = samples[PEER]
    whole = [searched + read_and_answered for searched, read_and_answered in zip(samples[ASKING], alone, strict=True)]
    return with_intervals(
        keys,
        **measured,
        tokens_per_s_llama_cpp=median_interval(per_s(whole)),
        ratio_vs_llama_cpp=ratio_interval(whole, ours),
        ratio_vs_llama_cpp_without_retrieval=ratio_interval(alone, ours),
    )


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a way."""
    llama = result["llama_cpp"]
    rows = [
        ("memory", figure(result, "tokens_per_s_memory"), "1"),
        ("text, once per query", figure(result, "tokens_per_s_rag"), figure(result, "ratio")),
        ("text, every chunk", figure(result, "tokens_per_s_rag_every_chunk"), figure(result, "ratio_every_chunk")),
    ]
    if llama:
        name = f"text, llama.cpp {llama['version']}, {llama['bits_per_weight']} bits a weight"
        rows.append((name, figure(result, "tokens_per_s_llama_cpp"), figure(result, "ratio_vs_llama_cpp")))
        without = figure(result, "ratio_vs_llama_cpp_without_retrieval")
        rows.append(("the same, without its retrieval", "", without))
    columns = ("knowledge as", "tokens/s end to end ↑", "speedup of memory ↑")
    note = (
        "From the question to the last token of the answer: retrieval, prefill, decoding. Text RAG reads"
        f" {result['references']} references from the same service as {result['reference_tokens']} tokens before the"
        " question; with every chunk, again after 64 tokens. "
        + ("llama-bench reads and writes as many tokens." if llama else f"{result['llama_cpp_missing']}.")
    )
    return [Sheet(subject(result), columns, rows, note)]


SCENARIO = Scenario(
    name="rag",
    summary="Memory against the same references as text in the prompt.",
    settings=RagSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 2},
)
