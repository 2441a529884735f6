"""Residual connection, dropout and layer norm: s = x + dropout(y + shift), h = gain (s - mean) / sigma + bias.

mean and sigma^2 = variance + eps are those of a row of s. `shift` is the bias of the projection that computed y. Post-
norm continues with h alone, pre-norm with the sum s and with h. One kernel computes a direction; it reads and writes
each tensor once. With n = (s - mean) / sigma and the gradients d of h and e of s, the gradient of s is

    e + (gain d - mean(gain d) - n mean(gain d n)) / sigma,

which is the gradient of x and, after dropout, that of y. The gradients of gain, bias and shift are the sums over the
rows of d n, of d, and of the gradient of y (`row_sums`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.model.kernels import dropped
from seq2seq.model.kernels.dropout import dropout
from seq2seq.model.kernels.row_sums import PROGRAMS, STAGES, second_stage, tile

# Elements of a tile, and elements of a thread.
FORWARD = {"elements": 2048, "per_thread": 16}
BACKWARD = {"elements": 1024, "per_thread": 8}


def residual_norm(x: Tensor, y: Tensor, shift: Tensor | None, gain: Tensor, bias: Tensor, eps: float = 1e-5,
                  pre_norm: bool = False, probability: float = 0.0, seed: Tensor | None = None, number: int = 0
                  ) -> tuple[Tensor, Tensor]:
    """Return (s, h) with pre-norm, and (h, h) with post-norm; see the module docstring.

    Post-norm returns h twice, for the next residual connection and for the next sublayer, so that the kernel of the
    backward pass adds the two gradients.

    Args:
        x, y: (rows, width), contiguous. shift, gain, bias: (width,).
        probability: of dropout. seed, number: they select the mask, see `dropout`; not used without dropout.
    """
    results: tuple[Tensor, Tensor] = _ResidualNorm.apply(x, y, shift, gain, bias, eps, pre_norm,
                                                         pre_norm or torch.is_grad_enabled(), probability, seed, number)
    return results


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, shift: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
                pre_norm: bool, keep_sum: bool, probability: float, seed: Tensor | None, number: int
                ) -> tuple[Tensor, Tensor]:
        assert x.is_contiguous() and y.is_contiguous() and x.shape == y.shape
        rows, width = x.shape
        ctx.dropped, constants = dropped(probability), tile(width, **FORWARD, whole_rows=True)
        out, scale = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
        # The backward pass needs n. It could compute (h - bias) / gain, so that post-norm would not have to write s: 2
        # of the 18 bytes of an element. But where the gain is 0, the gradients of gain and s would then be wrong, and
        # where it is small, rounding errors of h would be multiplied by 1 / gain.
        total, mean = (torch.empty_like(x), torch.empty_like(scale)) if keep_sum else (None, None)
        if rows:
            with torch.cuda.device_of(x):                                       # Triton launches on the current device
                _norm_forward[(triton.cdiv(rows, constants["ROWS"]),)](
                    x, y, shift, gain, bias, seed, total, out, mean, scale, rows, number, eps,
                    DROPPED=ctx.dropped, **constants)
        ctx.save_for_backward(total, mean, scale, gain, seed)
        ctx.pre_norm, ctx.number, ctx.shifted = pre_norm, number, shift is not None
        ctx.set_materialize_grads(False)
        return total if total is not None and pre_norm else out.view_as(out), out

    @staticmethod
    def backward(ctx: Any, of_stream: Tensor | None, of_out: Tensor | None) -> tuple[Tensor | None, ...]:
        total, mean, scale, gain, seed = ctx.saved_tensors
        given = [None if each is None else each.contiguous() for each in (of_stream, of_out)]
        rows, width = total.shape
        constants = tile(width, **BACKWARD, whole_rows=True)
        programs = max(1, min(PROGRAMS, triton.cdiv(rows, constants["ROWS"])))
        partial, of_x = scale.new_empty(programs, 3, width), torch.empty_like(total)
        of_y = torch.empty_like(total) if ctx.dropped else of_x
        with torch.cuda.device_of(total):
            _norm_backward[(programs,)](total, mean, scale, gain, seed, *given, of_x, of_y, partial, rows, ctx.number,
                                   PRE_NORM=ctx.pre_norm, DROPPED=ctx.dropped, STAGES=STAGES, **constants)
        of_gain, of_bias, of_shift = second_stage(partial, gain.dtype)
        return of_x, of_y, of_shift if ctx.shifted else None, of_gain, of_bias, *[None] * 6


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _norm_forward(x: tl.tensor, y: tl.tensor, shift: tl.tensor, gain: tl.tensor, bias: tl.tensor, seed: tl.tensor,
             total: tl.tensor, out: tl.tensor, mean: tl.tensor, scale: tl.tensor, rows: tl.tensor, number: tl.tensor,
             eps: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
             DROPPED: tl.constexpr) -> None:
    """total: s; total and mean may be None. scale: 1 / sigma."""
    local = tl.arange(0, ROWS)
    row, inside = tl.program_id(0) * ROWS + local, (tl.arange(0, COLUMNS) < WIDTH)[None, :]
    begin = tl.program_id(0).to(tl.int64) * (ROWS * WIDTH)                      # offsets may exceed 32 bits
    # Parameters are read once per row, from the cache, so that each thread reads the columns that it needs.
    column = tl.broadcast_to(tl.arange(0, COLUMNS)[None, :], [ROWS, COLUMNS])
    exists, place = (row[:, None] < rows) & inside, local[:, None] * WIDTH + column
    change = tl.load(y + begin + place, exists, 0.0).to(tl.float32)
    if shift is not None:
        change += tl.load(shift + column, exists, 0.0).to(tl.float32)
    if DROPPED:
        change = dropout(change, seed, number, row, tl.arange(0, COLUMNS // 8), (WIDTH + 7) // 8, DROPPED)
    summed = tl.load(x + begin + place, exists, 0.0).to(tl.float32) + change
    if total is not None:
        tl.store(total + begin + place, summed.to(total.dtype.element_ty), exists)
    middle = tl.sum(tl.where(inside, summed, 0.0), 1) / WIDTH
    if mean is not None:
        tl.store(mean + row, middle, row < rows)
    centred = tl.where(inside, summed - middle[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    tl.store(scale + row, factor, row < rows)
    normal = centred * factor[:, None]
    result = (normal * tl.load(gain + column, exists, 0.0).to(tl.float32)
              + tl.load(bias + column, exists, 0.0).to(tl.float32))
    tl.store(out + begin + place, result.to(out.dtype.element_ty), exists)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _norm_backward(total: tl.tensor, mean: tl.tensor, scale: tl.tensor, gain: tl.tensor, seed: tl.tensor,
              of_stream: tl.tensor, of_out: tl.tensor, of_x: tl.tensor, of_y: tl.tensor, partial: tl.tensor,
              rows: tl.tensor, number: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
              STAGES: tl.constexpr, PRE_NORM: tl.constexpr, DROPPED: tl.constexpr) -> None:
    """of_stream and of_out, the gradients of the two results, may be None. partial: sums of the gradients of gain, bias
    and shift, (programs, 3, WIDTH)."""
    column, local = tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    inside = column < WIDTH
    g = tl.load(gain + column, inside, 0.0).to(tl.float32)
    zeros = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gain, sum_bias, sum_shift = zeros, zeros, zeros
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row, begin = block * ROWS + local, tl.cast(block, tl.int64) * (ROWS * WIDTH)
        exists, place = (row[:, None] < rows) & inside[None, :], local[:, None] * WIDTH + column[None, :]
        factor = tl.load(scale + row, row < rows, 0.0)[:, None]
        summed = tl.load(total + begin + place, exists, 0.0).to(tl.float32)
        normal = (summed - tl.load(mean + row, row < rows, 0.0)[:, None]) * factor
        given, change = zeros, zeros
        if of_out is not None:
            given = tl.load(of_out + begin + place, exists, 0.0).to(tl.float32)
        if of_stream is not None:
            change = tl.load(of_stream + begin + place, exists, 0.0).to(tl.float32)
        if not PRE_NORM:
            given, change = given + change, zeros
        sum_gain += given * normal
        sum_bias += given
        weighed = given * g[None, :]
        # Both sums in one reduction, because the warps wait for each other in every reduction.
        first, second = tl.split(tl.sum(tl.join(weighed * normal, weighed), 1) / WIDTH)
        change += (weighed - normal * first[:, None] - second[:, None]) * factor
        tl.store(of_x + begin + place, change.to(of_x.dtype.element_ty), exists)
        if DROPPED:
            change = dropout(change, seed, number, row, tl.arange(0, COLUMNS // 8), (WIDTH + 7) // 8, DROPPED)
            tl.store(of_y + begin + place, change.to(of_y.dtype.element_ty), exists)
        sum_shift += change
    place = partial + tl.program_id(0) * (3 * WIDTH) + column
    tl.store(place, tl.sum(sum_gain, 0), inside)
    tl.store(place + WIDTH, tl.sum(sum_bias, 0), inside)
    tl.store(place + 2 * WIDTH, tl.sum(sum_shift, 0), inside)
