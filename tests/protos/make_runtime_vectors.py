"""Writes protos/vectors/runtime with the torch reference: `python -m tests.protos.make_runtime_vectors`.

A tiny bundle with random weights, and cases: prompts, chunks with their queries and memories, expected logits and
tokens. docs/reference/runtime.md says how a client computes them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_client.generate.prompt import cut, requests_recall
from edge_client.generate.sampling import StreamText
from edge_client.retrieval import OWN_SHARE
from memory3.codec.codec import ProductCodec
from memory3.codec.payload import HEADER, MAGIC, MemoryFormat
from memory3.codec.tables import ProductTables
from memory3.config import MEMORY_FORMAT_VERSION, weight_shapes
from memory3.text.chat import ChatTemplate, prefix_ids, text_start
from memory3.text.refusal import Refusal
from memory3.text.tokenizer import Tokenizer
from memory_model.export.bundle import export_bundle
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel
from memory_model.nn.decoder import Decoder
from testing.programs import ROOT
from tests.edge_client.tiny_bundle import TEMPLATE, byte_tokenizer, tiny_bert, tiny_config
from tests.memory_model.tiny import chunk_memories

FOLDER = ROOT / "protos" / "vectors" / "runtime"
SMALLEST_LEAD = 1e-3
"""Between the two likeliest tokens of every greedy step: rounding must not decide."""
_TOKENS_OF_MEMORIES = (32, 9, 1, 20)


@dataclass(frozen=True)
class Case:
    """An answer to make. recalled: numbers of memories for each query of the prompt, then for each generated chunk;
    None: the recall failed."""

    name: str
    messages: list[dict[str, str]]
    max_tokens: int
    recalled: list[list[int] | None] = field(default_factory=list)
    memory: bool = True
    stop: tuple[str, ...] = ()
    refusal: Refusal = field(default_factory=Refusal)


READILY, ALONE = Refusal("Zero.", 20.0), Refusal("Zero.", 0.0, 20.0)
_LONG = "Which of the two is the higher one, and since when has that been known to people who live there?"
CASES = (
    Case("without memory", [{"role": "user", "content": "Hello there"}], 12, memory=False, refusal=READILY),
    Case("one chunk of content", [{"role": "user", "content": "Oslo?"}], 12, [[1, 2], [0], [0]]),
    Case(
        "several chunks and turns",
        [
            {"role": "system", "content": "Answer briefly, and in English."},
            {"role": "user", "content": "How high is Mount Elbrus?"},
            {"role": "assistant", "content": "5,642 m."},
            {"role": "user", "content": _LONG},
        ],
        40,
        [[0, 1, 2, 3], [1], [], [2, 3], None, [3], [0], [1, 0], [2], [0, 3], [1, 2], None, [3, 1, 0], [0]],
    ),
    Case("a stop string", [{"role": "user", "content": "Rome"}], 30, [[0, 3], [1], [1]], stop=("www",)),
    Case("an end token", [{"role": "user", "content": "Lima 59"}], 60, [[2], [1], [0], [3], [2]]),
    Case("a refusal", [{"role": "user", "content": "Oslo?"}], 12, [[1, 2]], refusal=READILY),
    Case("a refusal beside one memory", [{"role": "user", "content": "Oslo?"}], 12, [[2]], refusal=ALONE),
)


@cache
def loaded() -> LoadedModel:
    """3 layers, 4 query and 2 KV heads of 16; unequal memory heads; chunks of 16, references of 32 tokens."""
    config = replace(tiny_config(), name="conformance", head_dim=16, hidden=32)
    rng = np.random.default_rng(17)
    state = {}
    for name, shape in weight_shapes(config).items():
        drawn = rng.standard_normal(shape, np.float32)
        state[name] = torch.from_numpy(1 + 0.2 * drawn if len(shape) == 1 else drawn * shape[1] ** -0.5)
    model = Decoder(config)
    model.load_state_dict(state, strict=False)
    model.eval().requires_grad_(False)
    tokenizer = Tokenizer.from_json(byte_tokenizer())
    model_id = hashlib.sha256(b"conformance").hexdigest()
    folder = ModelFolder(Path(), config.name, "", model_id, {}, config.memory, licence="Apache-2.0")
    return LoadedModel(model, tokenizer, byte_tokenizer(), config, model_id, TEMPLATE, folder)


@cache
def memory_format() -> MemoryFormat:
    """A product codec with everything that one can have: means, a coarse stage, 5 bits a part, keys with values."""
    config, rng = loaded().config, np.random.default_rng(18)
    d = 2 * config.head_dim

    def table(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32).astype(np.float16).astype(np.float32)

    tables = ProductTables(table(d), 0.2 * table(d, d), table(4, 32, d // 4), table(2, 8, d // 2), together=2)
    return MemoryFormat(config, loaded().model_id, ProductCodec(tables))


@cache
def payloads() -> tuple[bytes, ...]:
    """Memories of random codes."""
    rng, form = np.random.default_rng(19), memory_format()
    ids = [bytes.fromhex(i)[:16] for i in astuple(form.identity)]
    return tuple(
        HEADER.pack(MAGIC, MEMORY_FORMAT_VERSION, tokens, *ids) + rng.bytes(form.payload_bytes(tokens) - HEADER.size)
        for tokens in _TOKENS_OF_MEMORIES
    )


class Reference:
    """A text in one pass of the torch decoder: no caches, each token with the memories it reads."""

    def __init__(self) -> None:
        self.config = loaded().config
        self.prefix = prefix_ids(loaded().tokenizer, self.config.memory)
        self.memories = memory_format().decode(payloads())
        self.tokens: list[int] = []
        self.reads: list[tuple[int, ...]] = []

    def read(self, tokens: Sequence[int], memories: Sequence[int]) -> np.ndarray:
        """Append tokens that read these memories; logits float32 [V] behind the last."""
        self.tokens += tokens
        self.reads += [tuple(memories)] * len(tokens)
        P, first = len(self.prefix), text_start(self.prefix, self.config.memory)
        different = sorted(set(self.reads))
        memory = chunk_memories([[self.memories[m] for m in chosen] for chosen in different], self.config)
        chunk = torch.tensor([[-1] * P + [different.index(read) for read in self.reads]])
        positions = torch.tensor([[*range(P), *range(first, first + len(self.tokens))]])
        with torch.inference_mode():
            ids = torch.tensor([[*self.prefix, *self.tokens]])
            hidden = loaded().model.hidden(ids, positions, memory=memory, chunk_BT=chunk)
            return loaded().model.head(hidden[0, -1]).numpy()


def answered(case: Case) -> dict[str, Any]:
    """A case with its expected chunks, logits and tokens."""
    model, reference = loaded(), Reference()
    tokenizer, size = model.tokenizer, model.config.memory.chunk_tokens
    chat = ChatTemplate(model.chat_template, tokenizer)
    prompt = chat.prompt(case.messages)
    recalled, chunks = list(case.recalled), []
    read: list[int] = []
    for chunk in cut(prompt, tokenizer, size):
        found = recalled.pop(0) if case.memory and chunk.query is not None else None
        read = read if found is None else found
        logits = reference.read(chunk.tokens, read)
        query = None if chunk.query is None else {"text": str(chunk.query), "earlier": list(chunk.query.earlier)}
        chunks.append(
            {
                "start": chunk.start,
                "tokens": chunk.tokens,
                "query": query,
                "recalled": found,
                "reads": read,
                "logits": _rounded(logits),
            }
        )
    logits[case.refusal.first_token(chat)] += case.refusal.bias_for(len(read))
    said = [t for t, content in zip(prompt.ids, prompt.content, strict=True) if content]
    stream, ends = StreamText(tokenizer, case.stop), tokenizer.stop_ids
    shown, tokens = "", list[int]()
    steps: list[dict[str, Any]] = []
    while True:
        second, first = np.sort(logits)[-2:]
        assert first - second > SMALLEST_LEAD, f"{case.name}: two tokens are equally likely, choose another prompt"
        token = int(logits.argmax())
        tokens.append(token)
        if token not in ends:
            shown += stream.push(token)
        reason = (
            "end" if token in ends else "stop" if stream.stopped else "length" if len(tokens) == case.max_tokens else ""
        )
        if reason:
            break
        said.append(token)
        swap: dict[str, Any] = {}
        if case.memory and requests_recall(len(tokens), size):
            found = recalled.pop(0)
            read = read if found is None else found
            text = tokenizer.decode(said[-size:]).strip()
            swap = {"query": {"text": text, "earlier": []}, "recalled": found, "reads": read}
        logits = reference.read([token], read)
        if swap or len(tokens) <= 2:
            steps.append({"after_tokens": len(tokens), **swap, "logits": _rounded(logits)})
    shown += stream.flush()
    return {
        "name": case.name,
        "messages": case.messages,
        "memory": case.memory,
        "max_tokens": case.max_tokens,
        "stop": list(case.stop),
        "refusal": asdict(case.refusal),
        "prompt": {"tokens": prompt.ids, "content": [int(c) for c in prompt.content]},
        "chunks": chunks,
        "steps": steps,
        "tokens": tokens,
        "text": shown,
        "reason": reason,
    }


def _rounded(numbers: Iterable[float]) -> list[float]:
    return [round(float(number), 5) for number in numbers]


def contents() -> dict[str, Any]:
    """What cases.json holds."""
    form, config = memory_format(), loaded().config
    prefix = prefix_ids(loaded().tokenizer, config.memory)
    memories = []
    for payload, memory in zip(payloads(), form.decode(payloads()), strict=True):
        sums = {side: _rounded(getattr(memory, side).sum(axis=1)) for side in ("keys", "values")}
        memories.append({"payload": payload.hex(), "tokens": memory.tokens, "sums": sums})
    own, both = np.array([0.6, 0.8, 0.0]), np.array([0.0, 0.6, 0.8])
    mixed = OWN_SHARE * own + (1 - OWN_SHARE) * both
    mixed /= np.linalg.norm(mixed)
    return {
        "prefix": prefix,
        "text_start": text_start(prefix, config.memory),
        "memories": memories,
        "mixing": {"own": own.tolist(), "both": both.tolist(), "vector": _rounded(mixed.tolist())},
        "asking": [
            {
                "chunk_tokens": 16,
                "lead_tokens": lead,
                "after_tokens": [n for n in range(1, 65) if requests_recall(n, 16, lead)],
            }
            for lead in (0, 4, 15, 16, 40)
        ],
        "cases": [answered(case) for case in CASES],
    }


def write_bundle(folder: Path) -> None:
    """The bundle that the cases belong to."""
    with tempfile.TemporaryDirectory() as made:
        codec = Path(made) / "codec.npz"
        memory_format().codec.save(codec)
        export_bundle(
            loaded(),
            Path(made) / "bundle",
            "float32",
            codec=codec,
            embedder=tiny_bert(Path(made) / "bert"),
            embedder_precision="float32",
            quiet=True,
        )
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(made) / "bundle", folder)


if __name__ == "__main__":
    write_bundle(FOLDER / "bundle")
    (FOLDER / "cases.json").write_text(json.dumps(contents()).replace('{"name"', '\n{"name"') + "\n")
    print(FOLDER)
