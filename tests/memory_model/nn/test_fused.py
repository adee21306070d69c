"""Functions with a backward pass of their own agree with their plain forms, values and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.nn import fused

EXACT, HALF = {"atol": 1e-5, "rtol": 1e-5}, {"atol": 3e-2, "rtol": 3e-2}
"""float32 differs by the order of sums; bfloat16 by some of its steps of 2^-8."""


def agree(ours: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: list[Tensor], **close: float) -> None:
    """Outputs and gradients of all inputs, for a random gradient of the output."""
    found = []
    for function in (ours, plain):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape).to(out.dtype))
        found.append([out, *(leaf.grad for leaf in leaves)])
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masks", [0, 1, 3], ids=["causal", "one mask", "a mask for each key head"])
def test_attention_is_that_of_pytorch(kind: torch.dtype, masks: int) -> None:
    torch.manual_seed(0)
    T, S = (5, 11) if masks else (300, 300)
    q, k, v = (torch.randn(2, heads, length, 8).to(kind) for heads, length in ((6, T), (3, S), (3, S)))
    mask = (torch.rand(2, masks or 1, T, S) < (0.7 if masks else 1)) & torch.ones(T, S).tril(S - T).bool()
    mask = mask | torch.eye(T, S, dtype=torch.bool)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = [x.repeat_interleave(2, dim=1) for x in (k, v)]
        seen = mask.repeat_interleave(2, dim=1) if masks > 1 else mask
        return F.scaled_dot_product_attention(q, *wide, attn_mask=seen)

    close = HALF if kind != torch.float32 else EXACT
    agree(lambda *x: fused.attend(*x, mask if masks else None), plain, [q, k, v], **close)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_low_rank_layer_is_the_sum_of_its_products(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 7, 12).to(kind), torch.randn(10, 12).to(kind), torch.randn(10).to(kind)
    a, b = torch.randn(3, 12), torch.randn(10, 3)

    def plain(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        added = F.linear(F.linear(x, a.to(kind)), b.to(kind))
        return F.linear(x, weight, bias) + added * 0.5

    close = EXACT if kind == torch.float32 else {"atol": 0.15, "rtol": 3e-2}
    agree(lambda x, a, b: fused.low_rank_linear(x, weight, bias, a, b, 0.5), plain, [x, a, b], **close)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gated_low_rank_is_that_of_the_product_and_keeps_no_product(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up, weight = (torch.randn(2, 7, 12).to(kind), torch.randn(2, 7, 12).to(kind), torch.randn(10, 12).to(kind))
    a, b = torch.randn(3, 12), torch.randn(10, 3)

    def plain(gate: Tensor, up: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return fused.low_rank_linear(F.silu(gate) * up, weight, None, a, b, 0.5)

    def ours(gate: Tensor, up: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return fused.gated_low_rank(gate, up, weight, None, a, b, 0.5)

    agree(ours, plain, [gate, up, a, b], atol=0.0, rtol=0.0)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):  # type: ignore[func-returns-value]
        ours(gate.requires_grad_(), up.requires_grad_(), a, b)
    wide = {x.data_ptr() for x in kept if x.numel() == gate.numel()}
    assert wide == {gate.data_ptr(), up.data_ptr()}


def test_changes_below_half_a_step_of_bfloat16_weights_are_not_lost() -> None:
    x, weight = torch.ones(1, 256).bfloat16(), torch.tensor([1.0, -1.0]).repeat(128)[None].bfloat16()
    found = fused.low_rank_linear(x, weight, None, torch.ones(1, 256), torch.tensor([[2.0**-10]]), 1.0)
    assert float(found) == 0.25


def test_norm_and_rotation_are_their_formulas() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 8), torch.rand(8)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight

    agree(lambda x, w: fused.rms_norm(x, w, 1e-5, torch.float32), norm, [x, weight], **EXACT)
    angle = torch.rand(5, 4).repeat(1, 2) * 6

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-b, a), dim=-1) * angle.sin()

    agree(lambda x: fused.rotate(x, angle.cos(), angle.sin()), turn, [x], **EXACT)
