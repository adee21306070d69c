r"""EleutherAI's lm-evaluation-harness with and without memory: the model `memory3`.

    python -m experiments.harness run --model memory3 --model_args memory=retrieved \
        --include_path docs/examples/harness --tasks heldout_countries --apply_chat_template

`model_args`: model (folder), adapter (file, or `none` for the base model), codec, memory (`none`, `retrieved`, or a
JSON list of at most five texts that every request reads), knowledge_base and embedder (for `retrieved`), candidates,
max_tokens, threads; `--device cuda:0` where torch sees a GPU. Needs the extra `harness`, which knows nothing of memory.
Contexts are cut on the left where they are too long, as harnesses do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from experiments.answers.scoring import greedy
from memory3.errors import InvalidInput
from memory_model.data.factbook import FACTBOOK
from memory_model.eval.report import open_knowledge_base
from memory_model.eval.retrieval import CANDIDATES, ReferenceIndex, query_of
from memory_model.eval.subject import PLAIN, Subject
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.tensor_files import read_json
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.generate import read
from memory_model.nn.writing import pad_ids, writing_device
from memory_model.terminal import progress_bar, use_threads


@dataclass(frozen=True)
class Request:
    """Context and continuation as token ids, and the text to recall with."""

    context: list[int]
    continuation: list[int]
    query: str


@register_model("memory3")
class Memory3LM(LM):
    """One model with one source of memories. Its options are `model_args`; `none` may arrive as None."""

    def __init__(
        self,
        model: str | None = None,
        adapter: str | None = "",
        codec: str | None = None,
        memory: str | None = None,
        knowledge_base: str = str(FACTBOOK),
        embedder: str | None = None,
        candidates: int = CANDIDATES,
        batch_size: int | str = 8,
        max_tokens: int = 1024,
        threads: int = 0,
        subject: Subject | None = None,
        device: str = "",
        max_batch_size: int = 0,
    ) -> None:
        """The harness gives device, cuda:0 by default: without a GPU it is the CPU. max_batch_size changes nothing."""
        super().__init__()
        use_threads(threads)
        memory = None if memory == "none" else memory
        folder, codes, opened = (Path(p) if p else None for p in (model, codec, embedder))
        tuned = PLAIN if adapter is None else adapter or None
        self.subject = subject or Subject.open(folder, tuned, codes)
        if memory and not self.subject.prefix:
            raise InvalidInput("the plain model reads no memories: use memory=none")
        self.loaded, self.tokenizer = self.subject.loaded, self.subject.loaded.tokenizer
        self._device = writing_device(device or "auto") if torch.cuda.is_available() else torch.device("cpu")
        self.loaded.model.to(self._device)
        self.batch = int(batch_size) if str(batch_size).isdigit() else 8  # "auto" is 8
        self.max_tokens, self.candidates = max_tokens, candidates
        self.chunk = self.loaded.config.memory.chunk_tokens
        self.reads = self.loaded.config.memory.memories_per_chunk
        self.base: ReferenceIndex | None = None
        self.fixed: list[str] = []
        if memory == "retrieved":
            searching = open_embedder(opened, self.loaded.folder.embedder)
            self.base = open_knowledge_base(self.subject, Path(knowledge_base), searching, opened)
        elif memory:
            self.fixed = read_json(Path(memory), list)
            if not all(isinstance(t, str) and t.strip() for t in self.fixed):
                raise InvalidInput(f"{memory} is no list of texts that are not empty")
            if not 1 <= len(self.fixed) <= self.reads:
                raise InvalidInput(f"{memory} holds {len(self.fixed)} references, 1 to {self.reads} are read")
        self._requests: dict[str, Request] = {}

    @property
    def tokenizer_name(self) -> str:
        """What the harness names its cache of requests by."""
        return self.loaded.model_id

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's source, for the harness's records."""
        return self.loaded.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation by the model's template; its tokens and content are kept.

        A last message of the assistant stays open, whatever add_generation_prompt says: the harness wants that too.
        """
        prompt = self.loaded.chat.prompt(chat_history)
        content_ids = [token for token, content in zip(prompt.ids, prompt.content, strict=True) if content]
        text = self.tokenizer.decode(prompt.ids, skip_special=False)
        self._requests[text] = Request(prompt.ids, [], self.tokenizer.decode(content_ids[-self.chunk :]).strip())
        return text

    def request(self, context: str, continuation: str = "") -> Request:
        """Tokens of a request. White space at the end of a context that is no chat belongs to the continuation."""
        if kept := self._requests.get(context):
            return Request(kept.context, self.loaded.chat.encode_content(continuation), kept.query)
        whole = self.tokenizer.encode(context + continuation)
        ids = self.tokenizer.encode(context.rstrip() if continuation else context)
        query = query_of(context, self.tokenizer, self.chunk)
        return Request(ids or [self.tokenizer.bos_id], whole[len(ids) :] if continuation else [], query)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """See the harness: (log likelihood in nats, is greedy) of each (context, continuation)."""
        return self.likelihoods([self.request(*r.args) for r in requests])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log likelihood (nats) of whole texts, in windows; each recalls with what stands before it.

        The first window of a text has nothing before it, so it reads no retrieved memory: recalling with the
        text itself would give its own words away.
        """
        texts = [list(self._windows(self.tokenizer.encode(r.args[0]))) for r in requests]
        scores = iter(self.likelihoods([window for windows in texts for window in windows]))
        return [sum((next(scores)[0] for _ in windows), 0.0) for windows in texts]

    def _windows(self, ids: list[int]) -> Iterator[Request]:
        done = 0
        rolling = get_rolling_token_windows(ids, self.tokenizer.bos_id, self.max_tokens, 1)
        for context, predicted in map(make_disjoint_window, rolling):
            before = self.tokenizer.decode(ids[max(0, done - self.chunk) : done]).strip()
            yield Request(context, predicted, before)
            done += len(predicted)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Greedy texts; raises InvalidInput for a task that requires sampling."""
        texts = []
        with progress_bar("answers", len(requests)) as advance:
            for request in requests:
                texts.append(self.generated(*request.args))
                advance()
        return texts

    def generated(self, context: str, options: dict[str, Any]) -> str:
        """Greedy text after a context, cut before the first of the options' `until`."""
        if options.get("do_sample") and float(options.get("temperature", 1.0)) > 0:
            raise InvalidInput("memory3 answers greedily: set do_sample: false in the task")
        until: Sequence[str] | str = options.get("until") or ()
        longest, asking = int(options.get("max_gen_toks", 128)), self.request(context)
        ids, memory = asking.context[-max(1, self.max_tokens - longest) :], self._memories([asking])
        model, stops = self.loaded.model, self.tokenizer.stop_ids
        text = self.tokenizer.decode(greedy(model, [ids], self.subject.prefix, memory, stops, longest)[0])
        ends = [text.find(mark) for mark in ([until] if isinstance(until, str) else until) if mark]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    @torch.inference_mode()
    def likelihoods(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        """For each request the log likelihood of its continuation (nats), and whether it is the greedy one."""
        result: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        numbered = [n for n, r in enumerate(requests) if r.continuation]
        numbered.sort(key=lambda n: len(requests[n].context))
        with progress_bar("likelihoods", len(numbered)) as advance:
            for start in range(0, len(numbered), self.batch):
                numbers = numbered[start : start + self.batch]
                batch = [requests[n] for n in numbers]
                contexts = [r.context[-max(1, self.max_tokens - len(r.continuation)) :] for r in batch]
                ids, _ = pad_ids([[*c, *r.continuation] for c, r in zip(contexts, batch, strict=True)])
                ids, memory = ids.to(self._device), self._memories(batch)
                states = read(self.loaded.model, ids, self.subject.prefix, memory, torch.zeros_like(ids))
                for n, row, context in zip(numbers, states, contexts, strict=True):
                    given = torch.tensor(requests[n].continuation, device=self._device)
                    states = row[len(context) - 1 : len(context) + len(given) - 1]
                    found = self.loaded.model.head(states).float().log_softmax(-1)
                    likelihood = float(found.gather(1, given[:, None]).sum())
                    result[n] = likelihood, bool((found.argmax(-1) == given).all())
                advance(len(batch))
        return result

    def _memories(self, batch: Sequence[Request]) -> MemoryBatch | None:
        found = [self.fixed] * len(batch)
        if self.base is not None:
            queries = [r.query for r in batch if r.query]  # an empty query finds nothing
            near = iter(self.base.nearest(queries, self.reads, candidates=self.candidates))
            found = [[self.base.references[n] for n in next(near)] if r.query else [] for r in batch]
        if not any(found):
            return None
        memory = self.subject.bank.read(found)
        return MemoryBatch(*(side.to(self._device) for side in (memory.keys, memory.values, memory.valid)))


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
