"""Shapes, budgets and costs agree with the paper's printed numbers, and nonsense is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.__main__ import app
from memory3.config import MemoryConfig, MemoryHead, ModelConfig, parse_budget
from memory3.cost import knowledge_costs
from memory3.errors import InvalidInput
from testing.shapes import MEMORY3_2B, SMOLLM2_135M


def test_models_have_their_published_sizes_and_the_papers_its_memory() -> None:
    config = MEMORY3_2B
    assert config.parameters() - 2 * 60416 * 3200 == pytest.approx(2.4e9, rel=0.02)
    assert config.memory.vectors == 22 * 2 * 8 * 8
    assert config.memory.vectors * 14 == 39_424
    assert config.memory.memory_layers == tuple(range(22))
    assert SMOLLM2_135M.parameters() == 134_515_008


def test_the_order_of_the_table_does_not_change_the_memory_format() -> None:
    heads = (MemoryHead(18, 2, 128), MemoryHead(3, 1, 8))
    one, other = (SMOLLM2_135M.with_memory(MemoryConfig(h)) for h in (heads, heads[::-1]))
    assert one.memory_format_id == other.memory_format_id
    fewer = SMOLLM2_135M.with_memory(MemoryConfig((MemoryHead(18, 2, 127), MemoryHead(3, 1, 8))))
    assert fewer.memory_format_id != one.memory_format_id


@pytest.mark.parametrize("heads", ["30.0:8", "0.3:8", "0.0:0", "0.0:129", "0.0:8,0.0:16"])
def test_a_budget_outside_the_model_is_refused(heads: str) -> None:
    with pytest.raises(InvalidInput):
        parse_budget(heads, SMOLLM2_135M)


@pytest.mark.parametrize("heads", ["all", "paper", "0.0:8"])
def test_a_budget_replaces_the_heads_and_nothing_else(heads: str) -> None:
    before = MemoryConfig((MemoryHead(1, 1, 4),), reference_tokens=64, chunk_tokens=32, prefix="Text:")
    after = parse_budget(heads, SMOLLM2_135M.with_memory(before))
    assert after.heads != before.heads
    assert replace(after, heads=before.heads) == before
    assert parse_budget(heads, SMOLLM2_135M.with_memory(before), 96).reference_tokens == 96


@pytest.mark.parametrize("data", [{}, {"layers": 3}, {**SMOLLM2_135M.to_dict(), "wings": 2}])
def test_a_dictionary_that_is_no_config_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        ModelConfig.from_dict(data)


@given(
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 2), st.integers(1, 128)), max_size=12), st.integers(1, 128)
)
def test_valid_rows_are_the_first_rows_of_every_head(rows: list[tuple[int, int, int]], tokens: int) -> None:
    heads = {(layer, head): MemoryHead(layer, head, n) for layer, head, n in rows}
    memory = MemoryConfig(heads=tuple(heads.values()))
    valid = memory.valid_rows(tokens)
    assert len(valid) == sum(min(tokens, h.tokens) for h in memory.heads)
    for start, head in zip(memory.offsets, memory.heads, strict=True):
        inside = valid[(valid >= start) & (valid < start + head.tokens)]
        assert list(inside) == list(range(start, start + min(tokens, head.tokens)))


def test_the_interval_of_the_papers_model_is_the_papers_and_every_models_is_printed() -> None:
    assert knowledge_costs(MEMORY3_2B).interval == pytest.approx((0.494, 13_400), rel=2e-3)
    with pytest.raises(InvalidInput, match="no memory heads"):
        knowledge_costs(SMOLLM2_135M)
    done = CliRunner().invoke(app, ["cost"])
    assert done.exit_code == 0, done.output
    assert "cheapest from 0.819 to 1,910 uses" in done.output
