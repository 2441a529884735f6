"""First layer of the feed-forward sublayer: activation(v) with v = u + bias and u = rows @ weight.T.

relu(v) = max(v, 0); gelu(v) = v Phi(v), Phi being the distribution function of the normal distribution; silu(v) =
v sigmoid(v). The matrix product computes relu itself. Otherwise a kernel adds the bias and computes the activation. In
the backward pass, a kernel computes the gradient of u and, as sums over its rows (`row_sums`), that of the bias.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.model.kernels.row_sums import first_stage, second_stage, tile

FORWARD = {"elements": 2048, "per_thread": 16}              # of a tile, and of a thread


def activated(rows: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return activation(rows @ weight.T + bias), (…, outputs). rows: (…, inputs). activation: "relu", "gelu" or
    "silu"."""
    result: Tensor = _Activated.apply(rows.flatten(0, -2), weight, bias, activation)
    return result.unflatten(0, rows.shape[:-1])


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        if activation == "relu":
            # The derivative is 1 where the output is positive, so the output, which the next product saves, suffices.
            saved = out = torch._addmm_activation(bias, rows, weight.T)
        else:
            saved = rows @ weight.T
            out = torch.empty_like(saved)
            constants = tile(len(weight), **FORWARD, whole_rows=False)
            grid = triton.cdiv(len(rows), constants["ROWS"]), triton.cdiv(len(weight), constants["COLUMNS"])
            if len(rows):
                with torch.cuda.device_of(out):                                 # Triton launches on the current device
                    _activation_forward[grid](saved, bias, out, len(rows), ACTIVATION=activation, **constants)
        ctx.save_for_backward(rows, weight, bias, saved)
        ctx.activation = activation
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        rows, weight, bias, saved = ctx.saved_tensors
        (constants, grid, partial), of_u = first_stage(saved), torch.empty_like(saved)
        with torch.cuda.device_of(saved):
            _activation_backward[grid](saved, bias, gradient.contiguous(), of_u, partial, len(rows),
                                       ACTIVATION=ctx.activation, **constants)
        return of_u @ weight, of_u.T @ rows, second_stage(partial, bias.dtype), None


@triton.jit  # type: ignore[untyped-decorator]
def _activation_forward(u: tl.tensor, bias: tl.tensor, out: tl.tensor, rows: tl.tensor, WIDTH: tl.constexpr,
             COLUMNS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr) -> None:
    local = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.broadcast_to(tl.arange(0, COLUMNS)[None, :], [ROWS, COLUMNS])
    begin = tl.program_id(0).to(tl.int64) * (ROWS * WIDTH)                      # offsets may exceed 32 bits
    exists, place = (tl.program_id(0) * ROWS + local < rows) & (column < WIDTH), local * WIDTH + column
    v = tl.load(u + begin + place, exists, 0.0).to(tl.float32) + tl.load(bias + column, exists, 0.0).to(tl.float32)
    v = v * 0.5 * (1 + tl.erf(v * 0.7071067811865476)) if ACTIVATION == "gelu" else v * tl.sigmoid(v)
    tl.store(out + begin + place, v.to(out.dtype.element_ty), exists)


@triton.jit  # type: ignore[untyped-decorator]
def _activation_backward(saved: tl.tensor, bias: tl.tensor, given: tl.tensor, of_u: tl.tensor, partial: tl.tensor,
              rows: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
              ACTIVATION: tl.constexpr) -> None:
    """saved: the output of relu, or u. partial: sums of the gradient of the bias, (programs, WIDTH)."""
    column, local = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    inside = column < WIDTH
    b = tl.load(bias + column, inside, 0.0).to(tl.float32)
    summed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        begin = tl.cast(block, tl.int64) * (ROWS * WIDTH)
        exists = (block * ROWS + local < rows)[:, None] & inside[None, :]
        place = local[:, None] * WIDTH + column[None, :]
        v = tl.load(saved + begin + place, exists, 0.0).to(tl.float32)
        change = tl.load(given + begin + place, exists, 0.0).to(tl.float32)
        if ACTIVATION == "relu":
            change = tl.where(v <= 0, 0.0, change)
        else:
            v += b[None, :]
            if ACTIVATION == "gelu":
                change *= 0.5 * (1 + tl.erf(v * 0.7071067811865476)) + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
            else:
                change *= tl.sigmoid(v) * (1 + v * (1 - tl.sigmoid(v)))
        tl.store(of_u + begin + place, change.to(of_u.dtype.element_ty), exists)
        summed += change
    tl.store(partial + tl.program_id(0) * WIDTH + column, tl.sum(summed, 0), inside)
