"""Writes protos/vectors/*.json with the production code: `python -m tests.protos.make_vectors`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

import google_crc32c
import numpy as np

from memory3.codec.codec import ExactCodec, MemoryCodec
from memory3.codec.payload import HEADER, ExplicitMemory, MemoryFormat
from memory3.codec.scalar import SCALAR_BITS, ScalarCodec, ScalarTables
from memory3.config import MemoryConfig, MemoryHead
from memory3.text.words import query_words
from memory_service.write.document import content_hash_of, text_hash_of
from testing.programs import ROOT
from tests.memory_model.tiny import tiny_config

FOLDER = ROOT / "protos" / "vectors"

_TEXTS = (
    "",
    "  \n\t",
    "What is the population of Benin?",
    "populations POPULATION popula popul",
    "don't snake_case v2.10",
    "na\u00efve caf\u00e9 composed",
    "nai\u0308ve cafe\u0301 decomposed",
    "İSTANBUL I ı i",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ Σ. ΑΣΑ",
    "STRASSE Straße ẞ",
    "ǅ Ǆ ﬁne",
    "Ⅷ ½ ² ٣٤٥ ᠑",
    "東京タワーは333メートル",
    "ひらがな・カタカナ 々 ー",
    "한국어 문장입니다",
    "𐐀𐐁𐐂𐐃𐐄𐐅𐐆𐐇 𝒜𝓁𝑔𝑒𝒷𝓇𝒶",
    "हिन्दी में",
    "किताब की क़ीमत। தமிழ் புத்தகத்தின் শহর ක්‍රමය ा",
    "ภาษาไทย",
    "รหัสผ่านmango2876 น้ำ ไป ๑๒๓๔ ๆ",
    "ລາວ မြန်မာ ភាសាខ្មែរ",
    "المخبز مخبز بالمخبز للمخبز والدي والد كِتَاب كتـــاب",
    "إياد اياد مدرسة مدرسه على علي الله",
    "שָׁלוֹם עולם",
    "emoji \U0001f469\u200d\U0001f4bb between",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break",
    "repeated repeated word",
)
_BENIN = {"title": "Benin", "metadata": {"lang": "en", "area": "112622"}, "text": "Benin lies in Africa.\n"}
_DOCUMENTS: tuple[dict[str, Any], ...] = (
    {"title": "", "metadata": {}, "text": "A text.", "overlap_tokens": 0},
    {**_BENIN, "overlap_tokens": 0},
    {**_BENIN, "overlap_tokens": 12},
    {"title": "Caf\u00e9", "metadata": {"e": ""}, "text": "composed \u00e9", "overlap_tokens": 0},
    {"title": "Cafe\u0301", "metadata": {"e": ""}, "text": "decomposed e\u0301", "overlap_tokens": 0},
    # Units of UTF-16 would put U+10400 before U+FF5E; bytes of UTF-8 do not.
    {
        "title": "東京",
        "metadata": {"\U00010400": "1", "\uff5e": "2", "": "3", "aa": "b", "a": ""},
        "text": "塔",
        "overlap_tokens": 0,
    },
)
_PREPARED: tuple[dict[str, Any], ...] = (
    {"title": "T", "metadata": {}, "references": [{"text": "one", "embedding": "", "payload": ""}]},
    {
        "title": "T",
        "metadata": {"k": "v"},
        "references": [
            {"text": "one", "embedding": "0000803f00000000", "payload": "4d33454d"},
            {"text": "zweï", "embedding": "", "payload": ""},
        ],
    },
)


class _Marked:
    """Codes that can be checked by eye: two numbers of the keys and the first one of the values. It only encodes."""

    head_dim, code_bytes, together = 4, 3, 2
    codec_id = hashlib.sha256(b"marked").hexdigest()

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """See MemoryCodec."""
        return vectors[:, [0, 1, self.head_dim]].astype(np.uint8)


def _blocks(payload: bytes, tokens: int, heads: Sequence[MemoryHead], codec: MemoryCodec) -> list[list[str]]:
    """The codes of each block in hexadecimal."""
    at, blocks = HEADER.size, []
    for group in range(0, 2 * len(heads), codec.together):
        size = min(tokens, heads[group // 2].tokens) * codec.code_bytes
        codes = range(at, at + size, codec.code_bytes)
        blocks.append([payload[code : code + codec.code_bytes].hex() for code in codes])
        at += size
    return blocks


def words() -> list[dict[str, Any]]:
    """Texts and the hashes of their distinct words."""
    return [{"text": text, "hashes": query_words(text)} for text in _TEXTS]


def content_hashes() -> list[dict[str, Any]]:
    """Documents, as text and prepared, and their content hashes."""
    found = []
    for document in _DOCUMENTS:
        made = text_hash_of(document["title"], document["metadata"], document["text"], document["overlap_tokens"])
        found.append({"document": document, "content_hash": made.hex()})
    for prepared in _PREPARED:
        parts = [
            part
            for one in prepared["references"]
            for part in (one["text"].encode(), bytes.fromhex(one["embedding"]), bytes.fromhex(one["payload"]))
        ]
        made = content_hash_of(prepared["title"], prepared["metadata"], parts)
        found.append({"prepared": prepared, "content_hash": made.hex()})
    return found


def payloads() -> list[dict[str, Any]]:
    """Payloads of two codecs with what a reader finds in them, and some that it must refuse."""
    heads = (MemoryHead(0, 1, 2), MemoryHead(3, 0, 8))
    memory = MemoryConfig(heads=heads, reference_tokens=8)
    sizes = {"layers": 4, "query_heads": 2, "kv_heads": 2, "head_dim": 4, "mlp_width": 8, "vocabulary": 16}
    config = tiny_config(**sizes, memory=memory)
    found = []
    codecs: tuple[MemoryCodec, ...] = ExactCodec(4, dtype="float16"), cast(MemoryCodec, _Marked())
    for codec in codecs:
        form = MemoryFormat(config, hashlib.sha256(b"a model").hexdigest(), codec)
        for tokens in (1, 5):
            rows = np.zeros((memory.budget, 4), np.float32)
            for head, first in zip(heads, memory.offsets, strict=True):
                valid = min(tokens, head.tokens)
                rows[first : first + valid] = 10 * head.layer + np.arange(4 * valid).reshape(valid, 4)
            (payload,) = form.encode([ExplicitMemory(rows, rows + 100, tokens)])
            found.append(
                {
                    "heads": [[h.layer, h.head, h.tokens] for h in heads],
                    "reference_tokens": 8,
                    "code_bytes": codec.code_bytes,
                    "together": codec.together,
                    **vars(form.identity),
                    "payload": payload.hex(),
                    "crc32c": google_crc32c.value(payload),
                    "tokens": tokens,
                    "blocks": _blocks(payload, tokens, heads, codec),
                }
            )
        damaged = {
            "cut": payload[:-1],
            "longer": payload + b"\0",
            "magic": b"M3EX" + payload[4:],
            "empty": b"",
            "version": payload[:4] + b"\2" + payload[5:],
            "no tokens": payload[:6] + b"\0\0" + payload[8:],
            "another model": payload[:8] + bytes(16) + payload[24:],
        }
        found[-1]["refused"] = {why: wrong.hex() for why, wrong in damaged.items()}
    return found


def scalar_codecs() -> list[dict[str, Any]]:
    """Scalar codecs of 4 and 8 bits, some of their codes, and the vectors of these."""
    found = []
    for bits in SCALAR_BITS:
        offset, step = np.arange(-4, 4, dtype=np.float32), np.array([0.25, 0.5, 1, 2] * 2, np.float32)
        codec = ScalarCodec(ScalarTables(offset, step, bits, together=2))
        codes = np.arange(3 * codec.code_bytes, dtype=np.uint8).reshape(3, -1) * 11
        found.append(
            {
                "bits": bits,
                "together": codec.together,
                "head_dim": codec.head_dim,
                "codec_id": codec.codec_id,
                "offset": offset.tolist(),
                "step": step.tolist(),
                "codes": [code.tobytes().hex() for code in codes],
                "vectors": codec.decode(codes).tolist(),
            }
        )
    return found


def contents() -> dict[str, str]:
    """The files by name. Characters beyond ASCII are escaped, so that no editor normalises them."""
    made = {"words": words(), "content_hashes": content_hashes(), "payloads": payloads()}
    made["scalar_codecs"] = scalar_codecs()
    return {f"{name}.json": json.dumps(value, indent=1) + "\n" for name, value in made.items()}


if __name__ == "__main__":
    for name, text in contents().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)
