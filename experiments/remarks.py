"""The paper's remarks, tried: what a model retrieves itself, which references are worth keeping, which heads read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from torch import Tensor

from memory_model.cli.options import EmbedderOption, ModelOption, console, open_embedder, progress_bar
from memory_model.config import parse_budget
from memory_model.embedder import Embedder
from memory_model.eval.conditions import Evaluation
from memory_model.eval.retrieval import KnowledgeBase, query_of
from memory_model.eval.rows import Row, open_rows
from memory_model.eval.scores import Mean, Paired
from memory_model.eval.subject import Subject
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_base
from memory_model.nn import fused
from memory_model.nn.decoder import Decoder, Layer
from memory_model.nn.generate import answer_nll
from memory_model.nn.writing import received_attention, stack_memories

HELD_OUT, INTRODUCTIONS, SQUAD = (
    Path("data") / f"{name}.json" for name in ("heldout_questions", "introductions_test", "squad_dev")
)
FilesOption = Annotated[list[Path], typer.Option("--data", help="Question sets; may be given more than once.")]
LimitOption = Annotated[int, typer.Option("--limit", help="Questions of each set.")]
_HEADER = 5
"""Tokens between a question and its answer."""
_SPARSE = 8
"""Query tokens of a head that search (paper 3.3's selection)."""


def references_of(rows: Sequence[Row], most: int | None = None) -> list[str]:
    """Every text that the rows read, those that answer first."""
    texts = [f"{r.title}\n{r.knowledge}".strip() for r in rows]
    texts += [f"{r.title}\n{d}".strip() for r in rows for d in r.distractors or ()]
    return list(dict.fromkeys(texts))[:most]


def shown(mean: Mean | Paired, digits: int = 3) -> str:
    """A mean with its standard error."""
    value = mean.mean if isinstance(mean, Mean) else mean.difference
    return f"{value:.{digits}f} ± {mean.error:.{digits}f}"


# Remark on self-retrieval


@torch.inference_mode()
def head_queries(model: Decoder, ids: Sequence[int], prefix: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Of each memory head, in the budget's order: rotated queries [G, T, d] of a text, and which tokens search [n]."""
    found: list[tuple[Tensor, Tensor]] = []
    P = len(prefix)

    def keep(attention: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x, cos, sin = inputs[:3]
        q, k, _ = attention.project(x)
        rotated = attention.rotate(q, cos, sin)
        for head in attention.memory_heads:
            own = slice(head * model.config.group, (head + 1) * model.config.group)
            real = torch.ones(1, len(ids), dtype=torch.bool)
            received = received_attention(q[None, None, own, P:], k[None, None, head, P:], real)
            chosen = received[0, 0].topk(min(_SPARSE, len(ids))).indices
            found.append((rotated[own, P:].float(), chosen))

    layers = [model.blocks[layer].self_attn for layer in model.config.memory.memory_layers]
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    text = torch.tensor([[*prefix, *ids]])
    first = model.config.memory.reference_tokens
    positions = torch.cat((torch.arange(P), torch.arange(P + first, P + first + len(ids))))
    model.hidden(text, positions[None])
    for hook in hooks:
        hook.remove()
    return found


@torch.inference_mode()
def own_scores(queries: Sequence[tuple[Tensor, Tensor]], keys: Sequence[Tensor], valid: Sequence[Tensor]) -> Tensor:
    """Scores [3, N] of N references, whose heads' keys are [N, t, d]: see `self_retrieval`."""
    scores = torch.zeros(3, len(keys[0]))
    for (q_GTd, chosen), k_Ntd, valid_Nt in zip(queries, keys, valid, strict=True):
        logits = torch.einsum("gqd,ntd->gqnt", q_GTd, k_Ntd) / k_Ntd.shape[-1] ** 0.5
        logits = logits.masked_fill(~valid_Nt, float("-inf"))
        best = logits.amax(-1)
        share = logits.flatten(2).softmax(-1).view_as(logits).sum(-1)
        scores += torch.stack((best[:, chosen].sum((0, 1)), best.sum((0, 1)), share.sum((0, 1))))
    return scores


def self_retrieval(
    data: FilesOption = [HELD_OUT, INTRODUCTIONS, SQUAD],  # noqa: B006 - typer copies it
    limit: LimitOption = 40,
    references: Annotated[int, typer.Option(help="References that are searched, of each set.")] = 150,
    model: ModelOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Search memories by the model's own attention queries (remark in 3.1): recall@5 beside the embedder's.

    sparse: eight query tokens of each head, MaxSim (the remark's way); all: every token; attention: the share of a
    softmax over all memories at once.
    """
    subject, search = Subject.open(model), open_embedder(embedder, ModelFolder.open(model).embedder)
    loaded, memory = subject.loaded, subject.loaded.config.memory
    table = Table("set", "sparse", "all", "attention", "vectors", "vectors and words", title="recall@5")
    for path in data:
        rows = [row for row in open_rows(path) if row.answerable]
        texts = [t for t in references_of(rows, references) if loaded.tokenizer.count(t) <= memory.reference_tokens]
        asked = [(row, text) for row in rows for text in references_of([row], 1) if text in texts][:limit]
        hits: list[list[float]] = [[] for _ in range(5)]
        with subject.half():
            written = loaded.writer.write(texts)
            batch = stack_memories([written], loaded.config)
            spans = [slice(at, at + h.tokens) for at, h in zip(memory.offsets, memory.heads, strict=True)]
            keys, valid = ([x[0, 0][:, own] for own in spans] for x in (batch.keys, batch.valid))
            for row, text in asked:
                queries = head_queries(loaded.model, loaded.tokenizer.encode(row.question), subject.prefix)
                for hit, scores in zip(hits, own_scores(queries, keys, valid), strict=False):
                    hit.append(float(texts.index(text) in scores.topk(5).indices))
        base = KnowledgeBase.of(texts, search)
        questions = [query_of(row.question, loaded.tokenizer, memory.chunk_tokens) for row, _ in asked]
        for hit, candidates in zip(hits[3:], (0, 50), strict=True):
            found = base.nearest(questions, candidates=candidates)
            hit += [float(texts.index(text) in near) for (_, text), near in zip(asked, found, strict=True)]
        table.add_row(f"{path.stem}: {len(asked)} of {len(texts)}", *(shown(Mean.of(hit)) for hit in hits))
        console.print(table)


# Remark on references chosen by utility


def useful_references(
    data: FilesOption = [SQUAD, INTRODUCTIONS],  # noqa: B006 - typer copies it
    limit: LimitOption = 48,
    model: ModelOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Keep the half of the references that lowers the loss most (remark in 4.4); ask other questions with each half.

    A reference's utility is how much its memory lowers the loss of the judging half's answers, over those that
    retrieve it. The other questions then retrieve from all references, that half, and a random half.
    """
    subject = Subject.open(model)
    rows = [row for path in data for row in open_rows(path)[:limit] if row.answerable]
    judges, asked = rows[::2], rows[1::2]
    search = open_embedder(embedder, ModelFolder.open(model).embedder)
    with subject.half():
        texts = [t for t in references_of(rows) if subject.loaded.tokenizer.count(t) <= 128]
        base = KnowledgeBase.of(texts, search)
        utility = utilities(subject, judges, base)
        half = sorted(range(len(texts)), key=lambda n: -utility[n])[: len(texts) // 2]
        kept = {
            "all": list(range(len(texts))), "useful": half,
            "random": random.Random(0).sample(range(len(texts)), len(half)),
        }  # fmt: skip
        f1: dict[str, list[float]] = {}
        table = Table("references", "F1", "against all", "the right one is there", title=f"{len(asked)} questions")
        for name, numbers in kept.items():
            part = part_of(base, numbers, search)
            f1[name] = (
                Evaluation(subject, asked, ["memory_retrieved"], knowledge_base=part).run()["memory_retrieved"].f1
            )
            there = [float(references_of([row], 1)[0] in part.references) for row in asked]
            gap = Paired.of(f1[name], f1["all"])
            table.add_row(f"{name}: {len(numbers)}", shown(Mean.of(f1[name])), shown(gap), shown(Mean.of(there)))
            console.print(table)
    console.print(f"{sum(u > 0 for u in utility)} of {len(texts)} references help, {sum(u < 0 for u in utility)} harm")


def part_of(base: KnowledgeBase, numbers: Sequence[int], search: Embedder) -> KnowledgeBase:
    """Some of a knowledge base's references."""
    return KnowledgeBase([base.references[n] for n in numbers], base.vectors[list(numbers)], search)


def utilities(subject: Subject, judges: Sequence[Row], base: KnowledgeBase) -> list[float]:
    """By how many nats each reference's memory lowers the loss of the answers to those who retrieve it, in all."""
    loaded, found = subject.loaded, [0.0] * len(base.references)
    near = base.nearest([row.question for row in judges])
    with progress_bar("judging", len(judges)) as advance:
        for row, numbers in zip(judges, near, strict=True):
            said = [*loaded.tokenizer.encode_next(row.right_answer), loaded.tokenizer.end_of_turn_id]
            prompt, memories = subject.prompt(row.question), subject.bank.read([[base.references[n]] for n in numbers])
            without = answer_nll(loaded.model, [prompt], [said], subject.prefix, None)[0]
            many = [prompt] * len(numbers), [said] * len(numbers)
            for n, nll in zip(numbers, answer_nll(loaded.model, *many, subject.prefix, memories), strict=True):
                found[n] += without - nll
            advance()
    return found


# Remark on which heads


@torch.inference_mode()
def short_sighted(model: Decoder, ids: Sequence[int], readers: int, answers: int, sight: int) -> Tensor:
    """Losses [1 + layers * K] of a text's last tokens: whole, then with each KV head cut off from distant tokens.

    readers: the last tokens, question and answer, which in that head see `sight` tokens before them and the first.
    Each layer adds a row for each of its heads, so that one pass computes all.
    """
    T, K = len(ids), model.config.kv_heads
    angles = model.rotary(torch.arange(T))
    distance = torch.arange(T - readers, T)[:, None] - torch.arange(T)
    causal = distance >= 0
    near = causal & ((distance <= sight) | (torch.arange(T) == 0))
    context_BTD, x_BTD = model.embed_tokens(torch.tensor([ids])).float().split((T - readers, readers), dim=1)
    for layer in model.blocks:
        rows = len(x_BTD) + K
        x_BTD = torch.cat((x_BTD, x_BTD[:1].expand(K, -1, -1)))
        mask = causal.repeat(rows, K, 1, 1)
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
    B, T, _ = x_BTD.shape
    q, k, v = layer.self_attn.project(layer.input_layernorm(x_BTD).flatten(0, 1))
    cos, sin = (x.repeat(B, 1) for x in angles)
    sides = layer.self_attn.rotate(q, cos, sin), layer.self_attn.rotate(k, cos, sin), v
    return [side.unflatten(1, (B, T)).transpose(0, 1) for side in sides]


def _onward(layer: Layer, x_BTD: Tensor, out_BHTd: Tensor) -> Tensor:
    """What leaves a layer, of its input and its heads' outputs."""
    x_BTD = x_BTD + layer.self_attn.o_proj(out_BHTd.transpose(1, 2).flatten(2))
    return x_BTD + layer.mlp(layer.post_attention_layernorm(x_BTD))


def seen_heads(
    data: FilesOption = [SQUAD],  # noqa: B006 - typer copies it
    limit: LimitOption = 24,
    sight: Annotated[int, typer.Option(help="Tokens that a head sees before itself.")] = 100,
    model: ModelOption = None,
) -> None:
    """Find heads by sight (remark in 3.3) in the plain model; compare them with the model folder's own.

    On every other question each KV head in turn does not see beyond `sight` tokens; those without whose sight the loss
    rises most are chosen. On the others: what five memories in these heads alone bring to the untuned model.
    """
    folder = ModelFolder.open(model)
    loaded = load_base(folder, memory=parse_budget("all", folder.config()))
    tokenizer, budget, prefix = loaded.tokenizer, loaded.config.memory, loaded.writer.prefix
    own, every = ({(h.layer, h.head) for h in heads} for heads in (folder.memory.heads, budget.heads))
    rows = [row for path in data for row in open_rows(path) if row.answerable][:limit]
    read = {row.question: random.Random(0).sample(references_of([row])[:5], 5) for row in rows}
    said = {row.question: [*tokenizer.encode_next(row.right_answer), tokenizer.end_of_turn_id] for row in rows}

    def prompt(*texts: str) -> list[int]:
        return loaded.chat.prompt([{"role": "user", "content": "\n\n".join(texts)}]).ids

    rises = []
    with progress_bar("sight", len(rows[::2])) as advance:
        for question in (row.question for row in rows[::2]):
            answer = said[question]
            readers = tokenizer.count(question) + _HEADER + len(answer)
            text = [*prompt(*read[question], question), *answer]
            losses = short_sighted(loaded.model, text, readers, len(answer), sight)
            rises.append((losses[1:] - losses[0]).tolist())
            advance()
    by_head = {head: Mean.of(values) for head, values in zip(sorted(every), zip(*rises, strict=True), strict=True)}
    ranked = sorted(by_head, key=lambda head: -by_head[head].mean)
    seen = set(ranked[: len(own)])
    console.print(*(f"{x[0]}.{x[1]}{'*' * (x in own)} {shown(by_head[x])}" for x in ranked[:16]), sep="\n")
    console.print(f"{len(seen & own)} of {len(own)} are the folder's (*)")

    random_heads = set(random.Random(0).sample(sorted(every), len(own)))
    chosen = {"none": set(), "seen": seen, "the folder's": own, "random": random_heads, "all": every}
    found: dict[str, list[float]] = {name: [] for name in chosen}
    with progress_bar("memories", len(rows[1::2])) as advance:
        for question in (row.question for row in rows[1::2]):
            memory = stack_memories([loaded.writer.write(read[question])], loaded.config)
            for name, heads in chosen.items():
                kept = torch.cat([torch.full((h.tokens,), (h.layer, h.head) in heads) for h in budget.heads])
                reduced = replace(memory, valid=memory.valid & kept)
                found[name] += answer_nll(loaded.model, [prompt(question)], [said[question]], prefix, reduced)
            advance()
    for name, losses in found.items():
        console.print(f"{name}: {shown(Mean.of(losses))}, {shown(Paired.of(losses, found['none']))} against none")
