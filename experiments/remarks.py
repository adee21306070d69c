"""The paper's remarks, tried: what a model retrieves itself, which references are worth keeping, which heads read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

from memory_model.cli.options import EmbedderOption, ModelOption, console, open_embedder, progress_bar
from memory_model.config import parse_budget
from memory_model.eval.conditions import Evaluation
from memory_model.eval.retrieval import KnowledgeBase
from memory_model.eval.rows import Row, open_rows
from memory_model.eval.scores import Mean, Paired
from memory_model.eval.subject import Subject
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_base
from memory_model.nn import fused
from memory_model.nn.decoder import Decoder, Layer, MemoryBatch
from memory_model.nn.generate import answer_nll, read
from memory_model.nn.writing import received_attention, stack_memories

SQUAD, INTRODUCTIONS = Path("data/squad_dev.json"), Path("data/introductions_test.json")
DataOption = Annotated[list[Path], typer.Option(help="Question sets; may be given more than once.")]
LimitOption = Annotated[int, typer.Option(help="Questions of each set.")]


def text_of(row: Row) -> str:
    """The reference that answers a row."""
    return f"{row.title}\n{row.knowledge}".strip()


def texts_of(rows: Sequence[Row]) -> list[str]:
    """All references of rows, those that answer first."""
    beside = [f"{row.title}\n{text}".strip() for row in rows for text in row.distractors or ()]
    return list(dict.fromkeys([*map(text_of, rows), *beside]))


def shown(mean: Mean | Paired) -> str:
    """A mean with its standard error."""
    return f"{mean.mean if isinstance(mean, Mean) else mean.difference:.3f} ± {mean.error:.3f}"


@torch.inference_mode()
def own_scores(subject: Subject, question: str, memory: MemoryBatch, most: int = 8) -> Tensor:
    """Scores [3, N] of N memories by a question's attention queries, head by head; see `self_retrieval`.

    most: query tokens that search, by the attention they receive.
    """
    model, ids, P = subject.loaded.model, subject.loaded.tokenizer.encode(question), len(subject.prefix)
    table, scores = model.config.memory, torch.zeros(3, len(memory.keys))

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
                scores[1] += logits.amax(-1).sum((0, 1))
                scores[2] += logits.flatten(2).softmax(-1).view_as(logits).sum((0, 1, 3))

    layers = [(layer, model.blocks[layer].self_attn) for layer in table.memory_layers]
    hooks = [attention.register_forward_pre_hook(partial(search, layer)) for layer, attention in layers]
    read(model, torch.tensor([ids]), subject.prefix, None, None)
    for hook in hooks:
        hook.remove()
    return scores


def self_retrieval(
    data: DataOption = [Path("data/heldout_questions.json"), INTRODUCTIONS, SQUAD],  # noqa: B006
    limit: LimitOption = 40,
    references: Annotated[int, typer.Option(help="References that are searched, of each set.")] = 100,
    model: ModelOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Search memories by the model's own attention queries (remark in 3.1): recall@5 beside the embedder's.

    sparse: eight query tokens of each head, MaxSim (the remark's way); all: every token; attention: the share of a
    softmax over all memories at once.
    """
    subject, search = Subject.open(model), open_embedder(embedder, ModelFolder.open(model).embedder)
    table = Table("set", "sparse", "all", "attention", "vectors", "vectors and words", title="recall@5")
    for path in data:
        rows = [row for row in open_rows(path) if row.answerable]
        texts = [text for text in texts_of(rows) if subject.loaded.tokenizer.count(text) <= 128][:references]
        rows = [row for row in rows if text_of(row) in texts][:limit]
        with subject.half():
            memory = stack_memories([subject.loaded.writer.write(texts)], subject.loaded.config)
            memory = MemoryBatch(memory.keys[0, 0], memory.values[0, 0], memory.valid[0, 0])
            scores = [own_scores(subject, row.question, memory).topk(5).indices.tolist() for row in rows]
        base = KnowledgeBase.of(texts, search)
        found = [*zip(*scores, strict=True)] + [base.nearest([r.question for r in rows], candidates=n) for n in (0, 50)]
        right = [texts.index(text_of(row)) for row in rows]
        recalls = [Mean.of([float(n in near) for n, near in zip(right, way, strict=True)]) for way in found]
        table.add_row(f"{path.stem}: {len(rows)} of {len(texts)}", *map(shown, recalls))
    console.print(table)


def useful_references(
    data: DataOption = [SQUAD, INTRODUCTIONS],  # noqa: B006
    limit: LimitOption = 48,
    model: ModelOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Keep the half of the references that lowers the loss most (remark in 4.4); ask other questions with each half.

    A reference's utility is how much its memory lowers the loss of every other question's answer, over those that
    retrieve it. The rest of the questions retrieve from all references, that half, and a random half.
    """
    subject, search = Subject.open(model), open_embedder(embedder, ModelFolder.open(model).embedder)
    rows = [row for path in data for row in open_rows(path)[:limit] if row.answerable]
    texts, tokenizer = texts_of(rows), subject.loaded.tokenizer
    base, utility = KnowledgeBase.of(texts, search), [0.0] * len(texts)
    with subject.half(), progress_bar("utility", len(rows[::2])) as advance:
        for row, near in zip(rows[::2], base.nearest([row.question for row in rows[::2]]), strict=True):
            said = [*tokenizer.encode_next(row.right_answer), tokenizer.end_of_turn_id]
            prompts, answers = [subject.prompt(row.question)] * len(near), [said] * len(near)
            memories = subject.bank.read([[texts[n]] for n in near])
            without = answer_nll(subject.loaded.model, prompts[:1], answers[:1], subject.prefix, None)[0]
            for n, loss in zip(
                near, answer_nll(subject.loaded.model, prompts, answers, subject.prefix, memories), strict=True
            ):
                utility[n] += without - loss
            advance()
    console.print(f"of {len(texts)} references {sum(u > 0 for u in utility)} help, {sum(u < 0 for u in utility)} harm")
    every = sorted(range(len(texts)), key=lambda n: -utility[n])
    half = random.Random(0).sample(every, len(every) // 2)
    f1: list[list[float]] = []
    for name, numbers in (("all", every), ("useful", every[: len(half)]), ("random", half)):
        part = KnowledgeBase([texts[n] for n in numbers], base.vectors[numbers], search)
        with subject.half():
            scores = Evaluation(subject, rows[1::2], ["memory_retrieved"], knowledge_base=part).run()
        f1.append(scores["memory_retrieved"].f1)
        there = Mean.of([float(text_of(row) in part.references) for row in rows[1::2]])
        gap = Paired.of(f1[-1], f1[0])
        console.print(f"{name}: F1 {shown(Mean.of(f1[-1]))}, {shown(gap)} against all; {shown(there)} hold the answer")


@torch.inference_mode()
def short_sighted(model: Decoder, ids: Sequence[int], readers: int, answers: int, sight: int) -> Tensor:
    """Losses [1 + layers * K] of a text's last tokens: whole, then with each KV head cut off from distant tokens.

    readers: the last tokens, question and answer, which in that head see `sight` tokens before them and the first.
    Each layer adds a row for each of its heads, so that one pass computes all.
    """
    T, K = len(ids), model.config.kv_heads
    angles = model.rotary(torch.arange(T))
    distance = torch.arange(T - readers, T)[:, None] - torch.arange(T)
    near = (distance >= 0) & ((distance <= sight) | (torch.arange(T) == 0))
    context_BTD, x_BTD = model.embed_tokens(torch.tensor([ids])).float().split((T - readers, readers), dim=1)
    for layer in model.blocks:
        rows = len(x_BTD) + K
        x_BTD = torch.cat((x_BTD, x_BTD[:1].expand(K, -1, -1)))
        mask = (distance >= 0).repeat(rows, K, 1, 1)
        mask[torch.arange(rows - K, rows), torch.arange(K)] = near
        q0, k0, v0 = _sides(layer, context_BTD, [x[: T - readers] for x in angles])
        q, k, v = _sides(layer, x_BTD, [x[T - readers :] for x in angles])
        k, v = (torch.cat((old.expand(rows, -1, -1, -1), new), 2) for old, new in ((k0, k), (v0, v)))
        context_BTD = _onward(layer, context_BTD, fused.attend(q0, k0, v0, None))
        x_BTD = _onward(layer, x_BTD, fused.attend(q, k, v, mask))
    log_p = model.head(model.norm(x_BTD[:, -answers - 1 : -1])).float().log_softmax(-1)
    right = torch.tensor(ids[-answers:]).expand(len(x_BTD), -1)
    return -log_p.gather(2, right[..., None])[..., 0].mean(1)


def _sides(layer: Layer, x_BTD: Tensor, angles: Sequence[Tensor]) -> list[Tensor]:
    """Rotated q [B, H, T, d] and k, and v [B, K, T, d]."""
    q, k, v = layer.self_attn.project(layer.input_layernorm(x_BTD).flatten(0, 1))
    cos, sin = (x.repeat(len(x_BTD), 1) for x in angles)
    sides = layer.self_attn.rotate(q, cos, sin), layer.self_attn.rotate(k, cos, sin), v
    return [side.unflatten(1, x_BTD.shape[:2]).transpose(0, 1) for side in sides]


def _onward(layer: Layer, x_BTD: Tensor, out_BHTd: Tensor) -> Tensor:
    x_BTD = x_BTD + layer.self_attn.o_proj(out_BHTd.transpose(1, 2).flatten(2))
    return x_BTD + layer.mlp(layer.post_attention_layernorm(x_BTD))


def seen_heads(
    data: DataOption = [SQUAD],  # noqa: B006
    limit: LimitOption = 24,
    sight: Annotated[int, typer.Option(help="Tokens that a head sees before itself.")] = 100,
    model: ModelOption = None,
) -> None:
    """Find heads by sight (remark in 3.3) in the plain model; compare them with the model folder's own.

    On every other question each KV head in turn does not see beyond `sight` tokens; those without whose sight the loss
    rises most are chosen. On the rest: what five memories in these heads alone bring to the untuned model.
    """
    folder = ModelFolder.open(model)
    loaded = load_base(folder, memory=parse_budget("all", folder.config()))
    tokenizer, budget = loaded.tokenizer, loaded.config.memory
    own, every = ({(h.layer, h.head) for h in heads} for heads in (folder.memory.heads, budget.heads))
    rises, asked = [], []
    for row in [row for path in data for row in open_rows(path)[:limit] if row.answerable]:
        texts = random.Random(0).sample(texts_of([row])[:5], 5)
        said = [*tokenizer.encode_next(row.right_answer), tokenizer.end_of_turn_id]
        alone, whole = (
            loaded.chat.prompt([{"role": "user", "content": "\n\n".join([*before, row.question])}]).ids
            for before in ([], texts)
        )
        asked.append((alone, whole, said, texts, len(said) + tokenizer.count(row.question) + 5))  # 5: the header
    with progress_bar("sight", len(asked[::2])) as advance:
        for _, whole, said, _, readers in asked[::2]:
            losses = short_sighted(loaded.model, [*whole, *said], readers, len(said), sight)
            rises.append((losses[1:] - losses[0]).tolist())
            advance()
    rise = {head: Mean.of(values) for head, values in zip(sorted(every), zip(*rises, strict=True), strict=True)}
    ranked = sorted(rise, key=lambda head: -rise[head].mean)
    seen = set(ranked[: len(own)])
    console.print(*(f"{x[0]}.{x[1]}{'*' * (x in own)} {shown(rise[x])}" for x in ranked[:16]), sep="\n")
    console.print(f"{len(seen & own)} of {len(own)} are the folder's (*)")
    some = set(random.Random(0).sample(sorted(every), len(own)))
    found: dict[str, list[float]] = {}
    with progress_bar("memories", len(asked[1::2])) as advance:
        for alone, _, said, texts, _ in asked[1::2]:
            memory = stack_memories([loaded.writer.write(texts)], loaded.config)
            for name, heads in {"none": (), "seen": seen, "folder's": own, "random": some, "all": every}.items():
                kept = torch.cat([torch.full((h.tokens,), (h.layer, h.head) in heads) for h in budget.heads])
                reduced = replace(memory, valid=memory.valid & kept)
                losses = answer_nll(loaded.model, [alone], [said], loaded.writer.prefix, reduced)
                found.setdefault(name, []).extend(losses)
            advance()
    for name, nll in found.items():
        console.print(f"{name}: {shown(Mean.of(nll))}, {shown(Paired.of(nll, found['none']))} against none")
