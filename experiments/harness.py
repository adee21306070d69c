r"""EleutherAI's lm-evaluation-harness with and without memory: the model `memory3`.

    python -m experiments.harness run --model memory3 --model_args memory=retrieved \
        --include_path docs/examples/harness --tasks heldout_countries --apply_chat_template

`model_args`: model (folder), adapter (file, or `none` for the base model), codec, memory (`none`, `retrieved`, or a
JSON list of at most five texts that every request reads), knowledge_base and embedder (for `retrieved`), candidates,
batch_size, max_tokens, threads. It runs on the CPU. Needs the extra `harness`, which itself knows nothing of memory.
Contexts are cut on the left where they are too long, as harnesses do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from memory_model.chat import ChatTemplate
from memory_model.cli.evaluation import open_knowledge_base
from memory_model.cli.options import FACTBOOK, open_embedder, progress_bars
from memory_model.errors import InvalidInput
from memory_model.eval.retrieval import CANDIDATES, query_of
from memory_model.eval.subject import Subject
from memory_model.models.folder import ModelFolder
from memory_model.models.tensor_files import read_json
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.generate import answer_scores, greedy

Source = Callable[[Sequence[str]], list[list[str]]]
"""Query texts to the references that each reads; an empty query reads none."""


@dataclass(frozen=True)
class Request:
    """Context and continuation as token ids, and the text to recall with."""

    context: list[int]
    continuation: list[int]
    query: str


@register_model("memory3")
class Memory3LM(LM):
    """One model with one source of memories; its options are the harness's `model_args`."""

    def __init__(
        self, model: str | None = None, adapter: str | None = None, codec: str | None = None, memory: str = "none",
        knowledge_base: str = str(FACTBOOK), embedder: str | None = None, candidates: int = CANDIDATES,
        batch_size: int | str | None = 8, max_tokens: int = 1024, threads: int = 0,
        subject: Subject | None = None, **ignored: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        added = {"device", "max_batch_size", "trust_remote_code"}  # by the harness itself
        if unknown := set(ignored) - added:
            raise InvalidInput(f"memory3 has no model_args {', '.join(sorted(unknown))}")
        if threads:
            torch.set_num_threads(int(threads))
        paths = [Path(p) if p else None for p in (model, codec)]
        self.subject = subject or Subject.open(paths[0], adapter, paths[1])
        if memory != "none" and not self.subject.prefix:
            raise InvalidInput("the plain model reads no memories: use memory=none")
        self.loaded, self.tokenizer = self.subject.loaded, self.subject.loaded.tokenizer
        self.chunk = self.loaded.config.memory.chunk_tokens
        self.source: Source | None = None
        if memory == "retrieved":
            opened = open_embedder(Path(embedder) if embedder else None, ModelFolder.open(paths[0]).embedder)
            self.source = self._retrieved(
                open_knowledge_base(self.subject, Path(knowledge_base), opened), candidates
            )
        elif memory != "none":
            self.source = self._fixed(Path(memory))
        self.batch = int(batch_size) if batch_size and str(batch_size).isdigit() else 8  # "auto" is 8
        self.max_tokens = int(max_tokens)
        self.template = ChatTemplate(self.loaded.chat_template, self.tokenizer)
        self._said: dict[str, str] = {}

    def _retrieved(self, base: Any, candidates: int) -> Source:
        read = self.loaded.config.memory.memories_per_chunk

        def find(queries: Sequence[str]) -> list[list[str]]:
            found = iter(base.nearest([q for q in queries if q], read, candidates=int(candidates)))
            return [[base.references[n] for n in next(found)] if q else [] for q in queries]

        return find

    def _fixed(self, path: Path) -> Source:
        texts, read = read_json(path, list), self.loaded.config.memory.memories_per_chunk
        if not all(isinstance(t, str) and t.strip() for t in texts):
            raise InvalidInput(f"{path} is no list of texts that are not empty")
        if not 1 <= len(texts) <= read:
            raise InvalidInput(f"{path} holds {len(texts)} references, 1 to {read} are read at once")
        return lambda queries: [list(texts) for _ in queries]

    @property
    def tokenizer_name(self) -> str:
        """What the harness names its cache of requests by."""
        return self.loaded.model_id

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's source, for the harness's records."""
        return self.template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the model's template spells it; what was said is remembered to recall with."""
        text = self.template.text(chat_history, add_generation_prompt)
        said = "\n".join(m["content"] for m in chat_history if m["role"] != "system")
        self._said[text] = query_of(said, self.tokenizer, self.chunk)
        return text

    def request(self, context: str, continuation: str = "") -> Request:
        """Tokens of a request. White space at the context's end belongs to the continuation."""
        whole = self.tokenizer.encode(context + continuation)
        ids = self.tokenizer.encode(context.rstrip() if continuation else context)
        query = self._said.get(context, query_of(context, self.tokenizer, self.chunk))
        return Request(ids or [self.tokenizer.bos_id], whole[len(ids) :] if continuation else [], query)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """See the harness: (log likelihood in nats, is greedy) of each (context, continuation)."""
        return self.likelihoods([self.request(*r.args) for r in requests])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log likelihood (nats) of whole texts, in windows; each recalls with what stands before it.

        The first window of a text has nothing before it, so it reads no retrieved memory: recalling with the
        text itself would give its own words away.
        """
        windows: list[Request] = []
        owner: list[int] = []
        for number, request in enumerate(requests):
            ids, done = self.tokenizer.encode(request.args[0]), 0
            rolling = get_rolling_token_windows(ids, self.tokenizer.bos_id, self.max_tokens, 1)
            for context, predicted in map(make_disjoint_window, rolling):
                before = self.tokenizer.decode(ids[max(0, done - self.chunk) : done]).strip()
                windows.append(Request(list(context), list(predicted), before))
                owner.append(number)
                done += len(predicted)
        totals = [0.0] * len(requests)
        for number, (total, _) in zip(owner, self.likelihoods(windows), strict=True):
            totals[number] += total
        return totals

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Greedy texts; raises InvalidInput for a task that requires sampling."""
        with progress_bars() as progress:
            return [self.generated(*r.args) for r in progress.track(requests, description="answers")]

    def generated(self, context: str, options: dict[str, Any]) -> str:
        """Greedy text after a context, cut before the first of the options' `until`."""
        if options.get("do_sample") and float(options.get("temperature", 1.0)) > 0:
            raise InvalidInput("memory3 answers greedily: set do_sample: false in the task")
        until: Sequence[str] | str = options.get("until") or ()
        longest, asked = int(options.get("max_gen_toks", 128)), self.request(context)
        ids = asked.context[-max(1, self.max_tokens - longest) :]
        memory = self._memories([asked])
        text = self.tokenizer.decode(
            greedy(self.loaded.model, [ids], self.subject.prefix, memory, self.tokenizer.stop_ids, longest)[0]
        )
        ends = [text.find(mark) for mark in ([until] if isinstance(until, str) else until) if mark]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    def likelihoods(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        """For each request the log likelihood of its continuation (nats), and whether it is the greedy one."""
        result: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        asked = [n for n, r in enumerate(requests) if r.continuation]
        asked.sort(key=lambda n: len(requests[n].context))
        with progress_bars() as progress:
            task = progress.add_task("likelihoods", total=len(asked))
            for start in range(0, len(asked), self.batch):
                numbers = asked[start : start + self.batch]
                batch = [requests[n] for n in numbers]
                contexts = [r.context[-max(1, self.max_tokens - len(r.continuation)) :] for r in batch]
                answers = [r.continuation for r in batch]
                prefix, memory = self.subject.prefix, self._memories(batch)
                scores = answer_scores(self.loaded.model, contexts, answers, prefix, memory)
                for n, (found, given) in zip(numbers, scores, strict=True):
                    likelihood = float(found.gather(1, given[:, None]).sum())
                    result[n] = likelihood, bool((found.argmax(-1) == given).all())
                progress.advance(task, len(batch))
        return result

    def _memories(self, batch: Sequence[Request]) -> MemoryBatch | None:
        found = self.source([r.query for r in batch]) if self.source else []
        if not any(found):
            return None
        return self.subject.bank.read(found)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
