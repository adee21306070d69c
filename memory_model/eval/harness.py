r"""EleutherAI's lm-evaluation-harness with and without memory: the model `memory3`.

    python -m memory_model.eval.harness run --model memory3 --model_args memory=retrieved \
        --include_path docs/examples/harness --tasks heldout_countries --apply_chat_template

`model_args`: adapter (file, or `none` for the plain model), codec, memory (`none`, `retrieved`, or a JSON list
of at most five texts that every request reads), knowledge_base and embedder (for `retrieved`), candidates,
batch_size, max_tokens, threads. It runs on the CPU. Needs the extra `harness`, which itself knows nothing of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from memory_model.chat import ChatTemplate
from memory_model.cli.options import EMBEDDER, FACTBOOK, VECTORS, progress_bars
from memory_model.errors import InvalidInput
from memory_model.eval.reading import Asked, Reader, fixed, retrieved
from memory_model.eval.retrieval import CANDIDATES, query_of
from memory_model.eval.subject import Subject, open_embedder, open_knowledge_base


@register_model("memory3")
class Memory3LM(LM):
    """One model with one source of memories; its options are the harness's `model_args`."""

    def __init__(
        self, adapter: str | None = None, codec: str | None = None, memory: str = "none",
        knowledge_base: str = str(FACTBOOK), embedder: str = str(EMBEDDER), candidates: int = CANDIDATES,
        batch_size: int | str | None = 8, max_tokens: int = 1024, threads: int = 0,
        subject: Subject | None = None, **ignored: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        unknown = set(ignored) - {
            "device",
            "max_batch_size",
            "trust_remote_code",
        }  # the harness adds these itself
        if unknown:
            raise InvalidInput(f"memory3 has no model_args {', '.join(sorted(unknown))}")
        if threads:
            torch.set_num_threads(int(threads))
        subject = subject or Subject.open(adapter, Path(codec) if codec else None)
        read = subject.loaded.config.memory.memories_per_chunk
        source = None
        if memory == "retrieved":
            with progress_bars() as progress:
                task = progress.add_task("embedding the knowledge base", total=None)
                base = open_knowledge_base(
                    Path(knowledge_base), subject.loaded, open_embedder(Path(embedder), EMBEDDER), VECTORS,
                    lambda total: progress.update(task, total=total), lambda n: progress.advance(task, n),
                )  # fmt: skip
            source = retrieved(base, read, int(candidates))
        elif memory != "none":
            source = fixed(Path(memory), read)
        size = int(batch_size) if batch_size and str(batch_size).isdigit() else 8  # "auto" is 8
        self.reader = Reader(subject, source, batch_size=size, max_tokens=int(max_tokens))
        self.template = ChatTemplate(subject.loaded.chat_template, subject.loaded.tokenizer)
        self._said: dict[str, str] = {}

    @property
    def tokenizer_name(self) -> str:
        """What the harness names its cache of requests by."""
        return self.reader.subject.loaded.model_id

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's source, for the harness's records."""
        return self.template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the model's template spells it; what was said is remembered to recall with."""
        text = self.template.text(chat_history, add_generation_prompt)
        said = "\n".join(m["content"] for m in chat_history if m["role"] != "system")
        chunk = self.reader.subject.loaded.config.memory.chunk_tokens
        self._said[text] = query_of(said, self.reader.tokenizer, chunk)
        return text

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """See the harness: (log likelihood in nats, is greedy) of each (context, continuation)."""
        asked = [self.reader.asked(c, a, self._said.get(c)) for c, a in (r.args for r in requests)]
        with progress_bars() as progress:
            task = progress.add_task("likelihoods", total=len(asked))
            return self.reader.likelihoods(asked, lambda n: progress.advance(task, n))

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log likelihood (nats) of whole texts, in windows; each recalls with what stands before it.

        The first window of a text has nothing before it, so it reads no retrieved memory: recalling with the
        text itself would give its own words away.
        """
        tokenizer, chunk = self.reader.tokenizer, self.reader.subject.loaded.config.memory.chunk_tokens
        asked: list[Asked] = []
        owner: list[int] = []
        for number, request in enumerate(requests):
            ids, done = tokenizer.encode(request.args[0]), 0
            windows = get_rolling_token_windows(ids, tokenizer.bos_id, self.reader.max_tokens, 1)
            for context, predicted in map(make_disjoint_window, windows):
                before = tokenizer.decode(ids[max(0, done - chunk) : done]).strip()
                asked.append(Asked(list(context), list(predicted), before))
                owner.append(number)
                done += len(predicted)
        totals = [0.0] * len(requests)
        with progress_bars() as progress:
            task = progress.add_task("windows", total=len(asked))
            scores = self.reader.likelihoods(asked, lambda n: progress.advance(task, n))
        for number, (total, _) in zip(owner, scores, strict=True):
            totals[number] += total
        return totals

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Greedy texts; raises InvalidInput for a task that wants sampling."""
        with progress_bars() as progress:
            return [self._generated(*r.args) for r in progress.track(requests, description="answers")]

    def _generated(self, context: str, options: dict[str, Any]) -> str:
        if options.get("do_sample") and float(options.get("temperature", 1.0)) > 0:
            raise InvalidInput("memory3 answers greedily: set do_sample: false in the task")
        until: Sequence[str] | str = options.get("until") or ()
        marks = [until] if isinstance(until, str) else list(until)
        longest = int(options.get("max_gen_toks", 128))
        return self.reader.generate(self.reader.asked(context, query=self._said.get(context)), longest, marks)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
