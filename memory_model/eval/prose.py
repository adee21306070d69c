"""How well a model still predicts ordinary prose, without memory: what tuning must not cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from memory_model.chat import text_start
from memory_model.data import factbook
from memory_model.errors import InvalidInput
from memory_model.eval.conditions import EVALUATOR
from memory_model.eval.scores import Mean, Paired
from memory_model.eval.sections import ARTICLES, PROSE, Measured, file_key, is_kept, keep, since, today
from memory_model.eval.subject import Subject

WINDOW_TOKENS = 512


def windows(
    texts: Sequence[str], encode: Callable[[str], list[int]], count: int, window: int = WINDOW_TOKENS
) -> list[list[int]]:
    """The first `count` full token windows of the texts, one after the other, two line breaks between them.

    Raises InvalidInput when the texts do not fill one window.
    """
    tokens = encode("\n\n".join(texts))
    whole = min(count, len(tokens) // window)
    if not whole:
        raise InvalidInput(f"the prose has {len(tokens)} tokens, one window needs {window}: give more text")
    return [tokens[n * window : (n + 1) * window] for n in range(whole)]


@torch.inference_mode()
def window_loss(subject: Subject, window: Sequence[int]) -> float:
    """Mean negative log likelihood (nats a token) of all tokens of a window but the first.

    The text follows the subject's prefix (a plain model: BOS) and stands where text stands when memories are
    read, after the interval of reference positions.
    """
    loaded = subject.loaded
    prefix = subject.prefix or (loaded.tokenizer.bos_id,)
    model, P = loaded.model, len(prefix)
    first = text_start(prefix, loaded.config.memory)
    ids = torch.tensor([[*prefix, *window]])
    positions = torch.cat((torch.arange(P), torch.arange(first, first + len(window))))[None]
    hidden, _ = model.hidden(ids, positions)
    return float(F.cross_entropy(model.head(hidden[0, P:-1]).float(), torch.tensor(window[1:])))


def measure_prose(
    tuned: Subject, base: Subject, data: Path, out: Path, count: int, progress: Callable[[int], None]
) -> None:
    """The section of prose into `out`, unless it is there: the articles of `data` that no training has.

    progress: called with the number of windows, two times `count` in all.
    """
    texts = [document["text"] for document in factbook.read_jsonl(data / ARTICLES)]
    cut = windows(texts, tuned.loaded.tokenizer.encode, count)
    key = {"evaluator": EVALUATOR, **{k: tuned.about()[k] for k in ("model_id", "codec_id")}}
    key |= {"data": file_key(data / ARTICLES), "rows": len(cut), "precision": "float32"}
    if is_kept(out, f"{PROSE}/test", key):
        return
    started, losses = time.monotonic(), dict[str, list[float]]()
    for name, subject in (("tuned", tuned), ("base", base)):
        for window in cut:
            losses.setdefault(name, []).append(window_loss(subject, window))
            progress(1)
    means = {name: {"nll": Mean.of(values)} for name, values in losses.items()}
    pairs = {"tuned - base": {"nll": Paired.of(losses["tuned"], losses["base"])}}
    keep(out, Measured(PROSE, "test", key, today(), since(started), len(cut), means, pairs))
