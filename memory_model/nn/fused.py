"""Functions with a backward pass of their own, for training in bfloat16: fewer passes over memory, less kept.

Each computes what its plain form in PyTorch does, to the rounding of its type; tests hold them to it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

_CAUSAL_BLOCK = 128
"""Queries that meet the keys up to the last of them at once."""


@cache
def product_type(device: str) -> torch.dtype:
    """What training computes in on a device: bfloat16, or float32 where that would be emulated, ten times slower."""
    if device.startswith("cuda"):
        narrow = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        narrow = any(there for name, there in torch.cpu.get_capabilities().items() if name.endswith("bf16"))
    return torch.bfloat16 if narrow else torch.float32


def products(device: str) -> torch.autocast:
    """Matrix products of float32 weights in the device's `product_type`, for the time of a `with`."""
    kind = product_type(device)
    return torch.autocast(device.partition(":")[0], kind, enabled=kind != torch.float32)


def attend(q_BHTd: Tensor, k_BKSd: Tensor, v_BKSd: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention [B, H, T, d].

    mask: bool [1 or B, 1 or K, T, S], True where a query may look; None: causal, the queries being the last T of S
    tokens. PyTorch's kernel, but on a processor in bfloat16: its backward pass there takes five times as long.
    """
    T, S = q_BHTd.shape[2], k_BKSd.shape[2]
    if q_BHTd.device.type != "cpu" or q_BHTd.dtype != torch.bfloat16:
        if mask is None and T != S:
            mask = causal(T, S, q_BHTd.device)[None, None]
        elif mask is not None and mask.shape[1] > 1:
            mask = mask.repeat_interleave(q_BHTd.shape[1] // mask.shape[1], dim=1)
        return F.scaled_dot_product_attention(
            q_BHTd, k_BKSd, v_BKSd, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    if mask is not None:
        return cast(Tensor, _Attention.apply(q_BHTd, k_BKSd, v_BKSd, mask))
    outs: list[Tensor] = []
    for start in range(0, T, _CAUSAL_BLOCK):
        queries = q_BHTd[:, :, start : start + _CAUSAL_BLOCK]
        length = queries.shape[2]
        end = S - T + start + length
        seen = causal(length, length, q_BHTd.device)[None, None]
        outs.append(_Attention.apply(queries, k_BKSd[:, :, :end], v_BKSd[:, :, :end], seen))
    return torch.cat(outs, dim=2) if len(outs) > 1 else outs[0]


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Bool [queries, keys] for the last of `keys` tokens: True where a query may look."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class _Attention(torch.autograd.Function):
    """Scores are rounded to bfloat16, softmax sums in float32; the mask is that of the last keys, all see the others.

    Gradients of a whole step come as near to those of float32 as with scores in float32 (relative error 0.05 to 0.07
    either way, of the shipped model).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        (B, H, T, d), (K, S) = q.shape, k.shape[1:3]
        ctx.shape = B, H, T, d
        q, k, v = q.reshape(B * K, -1, d), k.reshape(B * K, S, d), v.reshape(B * K, S, d)
        scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=d**-0.5)
        hidden = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        scores.view(B, K, -1, T, S)[..., S - mask.shape[-1] :].add_(hidden[:, :, None])
        p = scores.softmax(-1, torch.float32).to(q.dtype)  # its kernel for bfloat16 takes up to twice as long
        ctx.save_for_backward(q, k, v, p)
        return torch.bmm(p, v).view(B, H, T, d)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (q, k, v, p), (B, H, T, d) = ctx.saved_tensors, ctx.shape
        out = grads[0].reshape(q.shape)
        scores = torch._softmax_backward_data(torch.bmm(out, v.transpose(1, 2)), p, -1, p.dtype)
        dq = torch.bmm(scores, k).mul_(d**-0.5)
        dk = torch.bmm(scores.transpose(1, 2), q).mul_(d**-0.5)
        dv = torch.bmm(p.transpose(1, 2), out)
        return dq.view(B, H, T, d), dk.view(B, -1, *dk.shape[1:]), dv.view(B, -1, *dv.shape[1:]), None


def low_rank_linear(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Product with W + scale * b a, plus bias, in x's type; gradients for x, a and b.

    The sum of the weights is never rounded: in bfloat16 it would lose every change below half a step of W.
    """
    flat: Tensor = _LowRank.apply(x.flatten(0, -2), weight, bias, a, b, scale)
    return flat.view(*x.shape[:-1], -1)


class _LowRank(torch.autograd.Function):
    """One wide product each way, and thin ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        a, b = a.to(x.dtype), b.to(x.dtype)
        thin = torch.mm(x, a.t())
        ctx.save_for_backward(x, weight, a, b, thin)
        ctx.scale = scale
        return F.linear(x, weight, bias).addmm_(thin, b.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, thin = ctx.saved_tensors
        (out,) = grads
        da, db, thin_out = _factor_gradients(out, x, b, thin, ctx.scale)
        dx = torch.mm(out, weight).addmm_(thin_out, a, alpha=ctx.scale) if ctx.needs_input_grad[0] else None
        return dx, None, None, da, db, None


def gated_low_rank(
    gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> Tensor:
    """`low_rank_linear` of silu(gate) * up, which the backward pass computes again.

    These are the widest tensors of a layer: of four that autograd keeps, two are left, a third of all that is kept.
    """
    flat: Tensor = _GatedLowRank.apply(gate.flatten(0, -2), up.flatten(0, -2), weight, bias, a, b, scale)
    return flat.view(*gate.shape[:-1], -1)


class _GatedLowRank(torch.autograd.Function):
    """Rounds as autograd does: silu, then the product."""

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        x = F.silu(gate).mul_(up)
        a, b = a.to(x.dtype), b.to(x.dtype)
        thin = torch.mm(x, a.t())
        ctx.save_for_backward(gate, up, weight, a, b, thin)
        ctx.scale = scale
        return F.linear(x, weight, bias).addmm_(thin, b.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight, a, b, thin = ctx.saved_tensors
        (out,) = grads
        x = F.silu(gate)
        d_up = torch.mm(out, weight)
        da, db, thin_out = _factor_gradients(out, x * up, b, thin, ctx.scale)
        d_up.addmm_(thin_out, a, alpha=ctx.scale)
        d_gate = torch.ops.aten.silu_backward(d_up * up, gate)
        return d_gate, d_up.mul_(x), None, None, da, db, None


def _factor_gradients(out: Tensor, x: Tensor, b: Tensor, thin: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both factors, float32, and of the thin product between them."""
    thin_out = torch.mm(out, b)
    da, db = torch.mm(thin_out.t(), x).float(), torch.mm(out.t(), thin).float()
    return da.mul_(scale), db.mul_(scale), thin_out


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm [..., D] as `dtype`, computed in float32."""
    return cast(Tensor, _RMSNorm.apply(x, weight, epsilon, dtype))


class _RMSNorm(torch.autograd.Function):
    """Keeps x and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        x32 = x.float()
        scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return (x32 * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight, scale = ctx.saved_tensors
        x32, out = x.float(), grads[0].float()
        weight_grad = (out * x32 * scale).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        dx = out * weight
        share = torch.linalg.vecdot(dx, x32)[..., None] * scale.pow(3) / x.shape[-1]
        return dx.mul_(scale).addcmul_(x32, share, value=-1).to(x.dtype), weight_grad, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in half-rotation form, computed in float32; x [..., d], cos and sin broadcast to it."""
    return cast(Tensor, _Rotation.apply(x, cos, sin))


class _Rotation(torch.autograd.Function):
    """The backward pass turns back by the same angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    (cos_a, cos_b), (sin_a, sin_b) = cos.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    out_a, out_b = out.chunk(2, dim=-1)
    torch.mul(a, cos_a, out=out_a).addcmul_(b, sin_a, value=-1)
    torch.mul(b, cos_b, out=out_b).addcmul_(a, sin_b)
    return out.to(x.dtype)
