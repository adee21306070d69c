"""Two of the paper's remarks as experiments; their results are in docs/log.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from memory3.config import parse_budget
from memory3.tokenizer import Tokenizer
from memory_model.data.rows import Row, open_rows
from memory_model.eval.retrieval import KnowledgeBase
from memory_model.eval.scores import Mean
from memory_model.eval.subject import Subject
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_base
from memory_model.nn import fused
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.generate import answer_nll, read
from memory_model.nn.writing import received_attention, stack_memories
from memory_model.terminal import ModelOption, console

LimitOption = Annotated[int, typer.Option(help="Questions per set.")]


def rows_of(name: str) -> list[Row]:
    """The answerable rows of one of `data/`'s sets."""
    return [row for row in open_rows(Path("data") / f"{name}.json") if row.answerable]


def texts_of(rows: Sequence[Row]) -> list[str]:
    """All references of rows, those that answer first."""
    texts = [(row.title, row.knowledge) for row in rows]
    texts += [(row.title, text) for row in rows for text in row.distractors or ()]
    return list(dict.fromkeys(f"{title}\n{text}".strip() for title, text in texts))


def answer_ids(tokenizer: Tokenizer, answer: str) -> list[int]:
    """What the model says to answer so."""
    return [*tokenizer.encode_next(answer), tokenizer.end_of_turn_id]


def shown(values: Sequence[float]) -> str:
    """Their mean and its standard error."""
    return f"{(mean := Mean.of(values)).mean:.3f} ± {mean.error:.3f}"


@torch.inference_mode()
def own_scores(subject: Subject, question: str, memory: MemoryBatch, most: int = 8) -> Tensor:
    """Scores [2, N] of N memories by the attention queries of a question, of which `most` are sparse ones."""
    model, ids, P = subject.loaded.model, subject.loaded.tokenizer.encode(question), len(subject.prefix)
    table, scores = model.config.memory, torch.zeros(2, len(memory.keys))

    def search(layer: int, attention: Any, inputs: Any) -> None:
        q, k, _ = attention.project(inputs[0])
        rotated = attention.rotate(q, *inputs[1:3]).float()
        for start, head in zip(table.offsets, table.heads, strict=True):
            if head.layer == layer:
                own = slice(head.head * model.config.group, (head.head + 1) * model.config.group)
                rows = slice(start, start + head.tokens)
                real = torch.ones(1, len(ids), dtype=torch.bool)
                received = received_attention(q[None, None, own, P:], k[None, None, head.head, P:], real)[0, 0]
                logits = torch.einsum("gqd,ntd->gqnt", rotated[own, P:], memory.keys[:, rows]) / q.shape[-1] ** 0.5
                logits.masked_fill_(~memory.valid[:, rows], float("-inf"))
                scores[0] += logits[:, received.topk(min(most, len(ids))).indices].amax(-1).sum((0, 1))
                scores[1] += logits.flatten(2).softmax(-1).view_as(logits).sum((0, 1, 3))

    layers = [(layer, model.blocks[layer].self_attn) for layer in table.memory_layers]
    hooks = [attention.register_forward_pre_hook(partial(search, layer)) for layer, attention in layers]
    read(model, torch.tensor([ids]), subject.prefix, None, None)
    for hook in hooks:
        hook.remove()
    return scores


def self_retrieval(
    limit: LimitOption = 40,
    references: Annotated[int, typer.Option(help="References per set; all are searched together.")] = 150,
    model: ModelOption = None,
) -> None:
    """Search memories with the model's own attention queries (remark in 3.1) and compare recall@5 with the embedder.

    sparse: MaxSim of eight query tokens per head; attention: every token's share of a softmax over all memories.
    """
    subject, search = Subject.open(model), open_embedder(None, ModelFolder.open(model).embedder)
    sets = {name: rows_of(name) for name in ("heldout_questions", "introductions_test", "squad_dev")}
    texts = list(dict.fromkeys(text for rows in sets.values() for text in texts_of(rows)[:references]))
    texts = [text for text in texts if subject.loaded.tokenizer.count(text) <= 128]
    base = KnowledgeBase.of(texts, search)
    console.print(f"recall@5 of {len(texts)}: sparse, attention, vectors, vectors and words")
    with subject.computing():
        memory = stack_memories([subject.loaded.writer.write(texts)], subject.loaded.config)
        memory = MemoryBatch(memory.keys[0, 0], memory.values[0, 0], memory.valid[0, 0])
        for name, every in sets.items():
            rows = [row for row in every if texts_of([row])[0] in texts][:limit]
            scores = [own_scores(subject, row.question, memory).topk(5).indices.tolist() for row in rows]
            asked, right = [row.question for row in rows], [texts.index(texts_of([row])[0]) for row in rows]
            found = [*zip(*scores, strict=True), *(base.nearest(asked, candidates=n) for n in (0, 50))]
            hits = [[float(n in near) for n, near in zip(right, way, strict=True)] for way in found]
            console.print(f"{name}, {len(rows)} questions: {', '.join(map(shown, hits))}")


@torch.inference_mode()
def short_sighted(model: Decoder, ids: Sequence[int], readers: int, answers: int, sight: int) -> Tensor:
    """Losses [1 + layers * K] of the last tokens: whole, then with each KV head whose `readers` see only so far.

    Each layer adds a row for each of its heads, so that one pass computes all.
    """
    T, K = len(ids), model.config.kv_heads
    cos, sin = model.rotary(torch.arange(T))
    distance = torch.arange(T - readers, T)[:, None] - torch.arange(T)
    near = (distance >= 0) & ((distance <= sight) | (torch.arange(T) == 0))
    context_BTD, x_BTD = model.embed_tokens(torch.tensor([ids])).float().split((T - readers, readers), dim=1)
    for layer in model.blocks:
        attention, before, outs = layer.self_attn, list[Tensor](), list[Tensor]()
        x_BTD = torch.cat((x_BTD, x_BTD[:1].expand(K, -1, -1)))
        mask = (distance >= 0).repeat(len(x_BTD), K, 1, 1)
        mask[torch.arange(-K, 0), torch.arange(K)] = near
        for part, span, sees in ((context_BTD, slice(T - readers), None), (x_BTD, slice(T - readers, T), mask)):
            sides = attention.project(layer.input_layernorm(part).flatten(0, 1))
            q, k, v = (side.unflatten(1, part.shape[:2]).transpose(0, 1) for side in sides)
            q, k = (attention.rotate(side, cos[span], sin[span]) for side in (q, k))
            if before:
                k, v = (torch.cat((x.expand(len(y), -1, -1, -1), y), 2) for x, y in zip(before, (k, v), strict=True))
            before = [k, v]
            read_on = part + attention.o_proj(fused.attend(q, k, v, sees).transpose(1, 2).flatten(2))
            outs.append(read_on + layer.mlp(layer.post_attention_layernorm(read_on)))
        context_BTD, x_BTD = outs
    states, right = x_BTD[:, -answers - 1 : -1], torch.tensor(ids[-answers:]).expand(len(x_BTD), -1)
    return F.cross_entropy(model.head(model.norm(states)).mT, right, reduction="none").mean(1)


def seen_heads(
    limit: LimitOption = 24,
    sight: Annotated[int, typer.Option(help="Attention span of a limited head, in tokens.")] = 100,
    model: ModelOption = None,
) -> None:
    """Select heads of the plain model by attention span (remark in 3.3); compare them with the model folder's heads.

    On every other question, each KV head in turn is limited to `sight` tokens, and the heads that raise the loss most
    are selected. On the other questions, the effect of five memories in these heads on the untuned model is measured.
    """
    folder = ModelFolder.open(model)
    loaded = load_base(folder, memory=parse_budget("all", folder.config()))
    tokenizer, budget = loaded.tokenizer, loaded.config.memory
    own, every = ({(h.layer, h.head) for h in heads} for heads in (folder.memory.heads, budget.heads))
    rises, asked = [], []
    for row in rows_of("squad_dev")[:limit]:
        texts = random.Random(0).sample(texts_of([row])[:5], 5)
        said = answer_ids(tokenizer, row.right_answer)
        alone, whole = (
            loaded.chat.prompt([{"role": "user", "content": "\n\n".join([*before, row.question])}]).ids
            for before in ([], texts)
        )
        asked.append((alone, whole, said, texts, len(said) + tokenizer.count(row.question) + 5))  # 5: the header
    for _, whole, said, _, readers in asked[::2]:
        losses = short_sighted(loaded.model, [*whole, *said], readers, len(said), sight)
        rises.append((losses[1:] - losses[0]).tolist())
    rise = dict(zip(sorted(every), zip(*rises, strict=True), strict=True))
    ranked = sorted(rise, key=lambda head: -sum(rise[head]))
    seen = set(ranked[: len(own)])
    console.print(*(f"{x[0]}.{x[1]}{'*' * (x in own)} {shown(rise[x])}" for x in ranked[:16]), sep="\n")
    console.print(f"{len(seen & own)} of {len(own)} are the folder's (*)")
    some = set(random.Random(0).sample(sorted(every), len(own)))
    found: dict[str, list[float]] = {}
    for alone, _, said, texts, _ in asked[1::2]:
        memory = stack_memories([loaded.writer.write(texts)], loaded.config)
        for name, heads in {"none": (), "seen": seen, "folder's": own, "random": some, "all": every}.items():
            kept = torch.cat([torch.full((h.tokens,), (h.layer, h.head) in heads) for h in budget.heads])
            reduced = replace(memory, valid=memory.valid & kept)
            found.setdefault(name, []).extend(answer_nll(loaded.model, [alone], [said], loaded.writer.prefix, reduced))
    for name, nll in found.items():
        gap = [a - b for a, b in zip(nll, found["none"], strict=True)]
        console.print(f"{name}: {shown(nll)}, against none {shown(gap)}")
