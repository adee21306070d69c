"""What a client computes beside the decoder, written from docs/reference/runtime.md alone: `python reader.py`.

Needs numpy. Compares payloads, chunks, queries, slots and the course of every answer with cases.json and exits with 1
where something differs. The decoder's logits are compared by tests/protos/test_runtime_vectors.py.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "cases.json").read_text("utf-8"))
MANIFEST = json.loads((FOLDER / "bundle" / "manifest.json").read_text("utf-8"))
CODEC = dict(np.load(FOLDER / "bundle" / "codec.npz"))
MEMORY = MANIFEST["config"]["memory"]
HEAD_DIM = MANIFEST["config"]["head_dim"]


def numbers(code: bytes, bits: int, count: int) -> list[int]:
    """`count` numbers of `bits` bits from a little-endian bit string."""
    whole = int.from_bytes(bytes(code), "little")
    return [whole >> n * bits & (1 << bits) - 1 for n in range(count)]


def decompressed(payload: bytes) -> tuple[int, np.ndarray, np.ndarray]:
    """Tokens of the reference, keys and values [budget, d]; rows that it does not fill are zero."""
    assert payload[:4] == b"M3EM", "magic"
    version, tokens = int.from_bytes(payload[4:6], "little"), int.from_bytes(payload[6:8], "little")
    ids = [MANIFEST[name] for name in ("model_id", "codec_id", "memory_format_id")]
    assert version == 1, "version"
    assert payload[8:56] == b"".join(bytes.fromhex(i)[:16] for i in ids), "identity"
    together = json.loads(bytes(CODEC["header"]))["together"]
    mean, basis, words, coarse = (CODEC[n][0].astype(np.float32) for n in ("mean", "basis", "codewords", "coarse"))
    bits, coarse_bits = int(math.log2(words.shape[1])), int(math.log2(coarse.shape[1]))
    coarse_bytes = -(-2 * coarse_bits // 8)
    code_bytes = coarse_bytes + -(-len(words) * bits // 8)
    kept = [heads[2] for heads in MEMORY["heads"]]
    first = np.cumsum([0, *kept])
    sides = np.zeros((2, first[-1], HEAD_DIM), np.float32)
    at = 56
    for block in range(2 * len(kept) // together):
        groups = range(block * together, (block + 1) * together)
        for token in range(min(tokens, kept[groups[0] // 2])):
            code, at = payload[at : at + code_bytes], at + code_bytes
            parts = [words[m, n] for m, n in enumerate(numbers(code[coarse_bytes:], bits, len(words)))]
            halves = [coarse[m, n] for m, n in enumerate(numbers(code[:coarse_bytes], coarse_bits, 2))]
            found = mean + (np.concatenate(parts) + np.concatenate(halves)) @ basis
            vectors = found.reshape(together, HEAD_DIM)
            for group, vector in zip(groups, vectors, strict=True):
                sides[group % 2, first[group // 2] + token] = vector
    assert at == len(payload), "length"
    return tokens, sides[0], sides[1]


def tokens_as_text() -> Callable[[Sequence[int]], str]:
    """The tokenizer of this bundle: one token a byte, spelled by GPT-2's table, and special ones that are left out."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in shown}
    letters |= {chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in shown)}
    model = json.loads((FOLDER / "bundle" / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    byte_of = {number: letters[letter] for letter, number in model.items()}
    return lambda ids: bytes(byte_of[i] for i in ids if i in byte_of).decode("utf-8", "replace").strip()


def query(
    tokens: list[int], content: list[int], start: int, end: int, text: Callable[[Sequence[int]], str]
) -> dict[str, str] | None:
    """Text and what stood before it, of the chunk [start, end) of a prompt; None without content."""
    if not any(content[start:end]):
        return None
    turns: list[list[int]] = []
    place = end - 1
    while place >= 0:
        turn: list[int] = []
        while place >= 0 and content[place]:
            turn.insert(0, tokens[place])
            place -= 1
        turns += [turn] if turn else []
        place -= 1
    limit = MEMORY["chunk_tokens"]
    said = turns[0][-limit:]
    other = turns[min(len(turns), 3) - 1] if len(turns) > 1 else []
    before = other[max(0, len(other) - (limit - len(said))) :]
    own, earlier = text(said), text(before)
    return {"text": own, "before": earlier} if own else {"text": earlier, "before": ""} if earlier else None


def check_case(case: dict[str, Any], text: Callable[[Sequence[int]], str]) -> None:
    """The grid, the queries, what is read, and where the answer ends."""
    prompt, size = case["prompt"], MEMORY["chunk_tokens"]
    reads: list[int] = []
    starts = range(0, len(prompt["tokens"]), size)
    assert [chunk["start"] for chunk in case["chunks"]] == list(starts), "grid"
    for chunk in case["chunks"]:
        start, end = chunk["start"], min(chunk["start"] + size, len(prompt["tokens"]))
        assert chunk["tokens"] == prompt["tokens"][start:end], "tokens"
        assert chunk["query"] == query(prompt["tokens"], prompt["content"], start, end, text), "query"
        reads = reads if chunk["recalled"] is None else chunk["recalled"]
        assert chunk["reads"] == reads, "reads"
    said = [token for token, content in zip(prompt["tokens"], prompt["content"], strict=True) if content]
    swaps = [step for step in case["steps"] if "query" in step]
    due = range(size, len(case["tokens"]), size) if case["memory"] else ()
    assert [step["after_tokens"] for step in swaps] == list(due), "swaps"
    for step in swaps:
        assert step["query"]["text"] == text((said + case["tokens"][: step["after_tokens"]])[-size:]), "query"
        reads = reads if step["recalled"] is None else step["recalled"]
        assert step["reads"] == reads, "reads"
    for step in case["steps"]:
        assert int(np.argmax(step["logits"])) == case["tokens"][step["after_tokens"]], "greedy"
    assert int(np.argmax(case["chunks"][-1]["logits"])) == case["tokens"][0], "greedy"
    ends = case["tokens"][-1] in MANIFEST["special_tokens"]["stop"]
    assert ends == (case["reason"] == "end"), "end"
    assert case["reason"] != "length" or len(case["tokens"]) == case["max_tokens"], "length"


def main() -> None:
    """All comparisons; prints what differs."""
    for expected in CASES["memories"]:
        tokens, keys, values = decompressed(bytes.fromhex(expected["payload"]))
        assert tokens == expected["tokens"], "tokens of a memory"
        for side, rows in (("keys", keys), ("values", values)):
            np.testing.assert_allclose(rows.sum(axis=1), expected["sums"][side], atol=1e-3)
    assert CASES["text_start"] == len(CASES["prefix"]) + MEMORY["reference_tokens"], "text start"
    mixing = {name: np.array(vector) for name, vector in CASES["mixing"].items()}
    mixed = 0.4 * mixing["own"] + 0.6 * mixing["both"]
    np.testing.assert_allclose(mixed / np.linalg.norm(mixed), mixing["vector"], atol=1e-5)
    for row in CASES["asking"]:
        lead = min(row["lead_tokens"], row["chunk_tokens"] - 1)
        due = [n for n in range(1, 65) if (n + lead) % row["chunk_tokens"] == 0]
        assert due == row["after_tokens"], "asking"
    text = tokens_as_text()
    for case in CASES["cases"]:
        check_case(case, text)
    print("all vectors agree")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as difference:
        print(f"differs: {difference}", file=sys.stderr)
        sys.exit(1)
