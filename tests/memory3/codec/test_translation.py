"""Memories of one model become another's by maps of heads, and of one codec another's by coding again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memory3.codec.codec import ExactCodec
from memory3.codec.payload import MemoryFormat
from memory3.codec.translation import FOLDER, TokenMap, Translation, header_ids, ids_in, load_translations, turned
from memory3.config import MemoryConfig, MemoryHead, ModelConfig
from memory3.errors import CodecMismatch, CorruptFile, InvalidInput, ModelMismatch
from tests.edge_client.tiny_bundle import random_memory, tiny_config

WHOLE = MemoryConfig((MemoryHead(0, 1, 32), MemoryHead(2, 0, 32)), reference_tokens=32, chunk_tokens=16)


def config() -> ModelConfig:
    return tiny_config().with_memory(WHOLE)


def format_of(seed: int, dtype: str = "float32") -> MemoryFormat:
    return MemoryFormat(config(), f"{seed:02x}" * 32, ExactCodec(8, dtype))


def random_maps(seed: int = 0) -> TokenMap:
    rng = np.random.default_rng(seed)
    angle = np.outer(np.arange(3, 35), 1 / 100 ** np.linspace(0, 1, 4)).astype(np.float32)
    angle = np.stack(2 * [np.concatenate((angle, angle), axis=1)])
    return TokenMap(rng.standard_normal((33, 32)).astype(np.float32), np.cos(angle), np.sin(angle))


def test_a_tokens_vectors_are_mapped_together_and_keys_at_position_zero() -> None:
    maps, old = random_maps(), random_memory(config(), seed=1, tokens=20)
    translation = Translation(format_of(1), format_of(2), maps)
    (made,) = format_of(2).decode(translation(format_of(1).encode([old])))
    token = 7
    rows, cos, sin = [token, 32 + token], maps.cos[:, token], maps.sin[:, token]
    before = np.concatenate([turned(old.keys[rows], cos, -sin), old.values[rows]]).ravel()
    keys, values = (before @ maps.matrix[:-1] + maps.matrix[-1]).reshape(2, 2, 8)
    assert made.keys[rows] == pytest.approx(turned(keys, cos, sin), abs=1e-4)
    assert made.values[rows] == pytest.approx(values, abs=1e-4)
    assert (made.tokens, made.keys[20:32].any(), made.values[52:].any()) == (20, False, False), "no more tokens"


def test_turning_back_undoes_turning() -> None:
    maps = random_maps()
    x = np.random.default_rng(0).standard_normal((2, 32, 8))
    assert turned(turned(x, maps.cos, maps.sin), maps.cos, -maps.sin) == pytest.approx(x, abs=1e-5)


def test_a_translation_is_found_again_by_the_model_and_codec_that_it_leads_to(tmp_path: Path) -> None:
    path = Translation(format_of(1), format_of(2), random_maps()).save(tmp_path / FOLDER)
    Translation(format_of(3), format_of(2), random_maps(1)).save(tmp_path / FOLDER)
    payloads = format_of(1).encode([random_memory(config(), seed=n) for n in range(3)])
    found = {header_ids(one.old.identity): one for one in load_translations(tmp_path, format_of(2))}
    assert len(found) == 2
    expected = Translation(format_of(1), format_of(2), random_maps())(payloads)
    assert found[ids_in(payloads[0])](payloads) == expected
    with pytest.raises(ModelMismatch):
        found[header_ids(format_of(3).identity)](payloads)
    assert load_translations(tmp_path, format_of(4)) == []
    assert load_translations(tmp_path, format_of(2, "float16")) == []
    (path / "maps.npz").write_bytes(b"no archive")
    with pytest.raises(CorruptFile, match="fit it again"):
        load_translations(tmp_path, format_of(2))


def test_memories_of_another_codec_are_coded_again(tmp_path: Path) -> None:
    old, new = format_of(1), format_of(1, "float16")
    Translation(old, new).save(tmp_path / FOLDER)
    (translation,) = load_translations(tmp_path, new)
    payloads = old.encode([random_memory(config(), seed=1)])
    with pytest.raises(CodecMismatch):
        new.decode(payloads)
    assert translation(payloads) == new.encode(old.decode(payloads))


def test_what_has_no_map_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="different models need maps"):
        Translation(format_of(1), format_of(2))
    fewer = config().with_memory(replace(WHOLE, heads=WHOLE.heads[:1]))
    with pytest.raises(InvalidInput, match="keep other heads"):
        Translation(MemoryFormat(fewer, "01" * 32, ExactCodec(8)), format_of(2), random_maps())
    some = config().with_memory(replace(WHOLE, heads=(MemoryHead(0, 1, 8), MemoryHead(2, 0, 32))))
    formats = [MemoryFormat(some, f"{n:02x}" * 32, ExactCodec(8)) for n in (1, 2)]
    with pytest.raises(InvalidInput, match="keep some tokens"):
        Translation(*formats, random_maps())
    with pytest.raises(InvalidInput, match="NaN"):
        replace(random_maps(), matrix=np.full((33, 32), np.nan, np.float32))
