"""Functions with a backward pass of their own, for training in bfloat16: fewer passes over memory, less kept.

Each computes what its plain form in PyTorch does, to the rounding of its type; tests hold them to it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CAUSAL_BLOCK = 128
"""Queries that meet the keys up to the last of them at once."""


def attend(q_BHTd: Tensor, k_BKSd: Tensor, v_BKSd: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention [B, H, T, d].

    mask: bool [1 or B, 1 or H, T, S], True where a query may look; None: causal, T = S. PyTorch's kernel, but on a
    processor in bfloat16: its backward pass there takes five times as long.
    """
    if q_BHTd.device.type != "cpu" or q_BHTd.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(
            q_BHTd, k_BKSd, v_BKSd, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    if mask is not None:
        return _own_attention(q_BHTd, k_BKSd, v_BKSd, mask)
    outs = []
    for start in range(0, q_BHTd.shape[2], _CAUSAL_BLOCK):
        queries = q_BHTd[:, :, start : start + _CAUSAL_BLOCK]
        end = start + queries.shape[2]
        seen = causal(queries.shape[2], end, q_BHTd.device)[None, None]
        outs.append(_own_attention(queries, k_BKSd[:, :, :end], v_BKSd[:, :, :end], seen))
    return torch.cat(outs, dim=2) if len(outs) > 1 else outs[0]


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Bool [queries, keys] for the last of `keys` tokens: True where a query may look."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _own_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    out: Tensor = _Attention.apply(q, k, v, mask)
    return out


class _Attention(torch.autograd.Function):
    """Scores and softmax in float32, the products with values and of the backward pass in bfloat16."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        (B, H, T, d), (K, S) = q.shape, k.shape[1:3]
        G = H // K
        ctx.shape = B, H, T, d
        q, k, v = q.reshape(B * K, G * T, d), k.reshape(B * K, S, d), v.reshape(B * K, S, d)
        masked = torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(~mask, float("-inf"))
        grouped = masked.unflatten(1, (K, G)) if mask.shape[1] > 1 else masked[:, :, None]
        scores = torch.empty(B, K, G, T, S).copy_(grouped).view(B * K, G * T, S)
        scores.baddbmm_(q.float(), k.float().transpose(1, 2), alpha=d**-0.5)
        p = scores.softmax(-1).to(q.dtype)
        ctx.save_for_backward(q, k, v, p)
        return torch.bmm(p, v).view(B, H, T, d)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, p = ctx.saved_tensors
        B, H, T, d = ctx.shape
        out = grads[0].reshape(q.shape)
        scores = torch.bmm(out, v.transpose(1, 2))
        scores = torch._softmax_backward_data(scores, p, -1, p.dtype).mul_(d**-0.5)
        dq, dk = torch.bmm(scores, k), torch.bmm(scores.transpose(1, 2), q)
        dv = torch.bmm(p.transpose(1, 2), out)
        return dq.view(B, H, T, d), dk.view(B, -1, *dk.shape[1:]), dv.view(B, -1, *dv.shape[1:]), None


def low_rank_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, factors: tuple[Tensor, Tensor], rounded: tuple[Tensor, Tensor],
    scale: float,
) -> Tensor:  # fmt: skip
    """W x + bias + scale * b (a x) in x's type; gradients for x, a [rank, in] and b [out, rank], none for W.

    rounded: the factors in x's type, which a caller keeps as long as they do not change.
    """
    flat: Tensor = _LowRank.apply(x.flatten(0, -2), weight, bias, *factors, *rounded, scale)
    return flat.view(*x.shape[:-1], -1)


class _LowRank(torch.autograd.Function):
    """Keeps x, and its product with a; sums in place into what the wide product made."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, _a: Tensor, _b: Tensor, a: Tensor, b: Tensor,
        scale: float,
    ) -> Tensor:  # fmt: skip
        thin = F.linear(x, a)
        ctx.save_for_backward(x, weight, a, b, thin)
        ctx.scale = scale
        return F.linear(x, weight, bias).addmm_(thin, b.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, thin = ctx.saved_tensors
        (out,) = grads
        thin_grad = torch.mm(out, b).mul_(ctx.scale)
        dx = torch.mm(out, weight).addmm_(thin_grad, a) if ctx.needs_input_grad[0] else None
        da, db = torch.mm(thin_grad.t(), x), torch.mm(out.t(), thin).mul_(ctx.scale)
        return dx, None, None, da.float(), db.float(), None, None, None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm [..., D] as `dtype`, computed in float32."""
    out: Tensor = _RMSNorm.apply(x, weight, epsilon, dtype)
    return out


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
    out: Tensor = _Rotation.apply(x, cos, sin)
    return out


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
