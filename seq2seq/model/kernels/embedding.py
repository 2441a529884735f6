"""Embedding of tokens: dropout(scale * embedding[token] + encoding[position]), and the gradients of both matrices.

One kernel computes the rows, and one converts their gradients to fp32, in which PyTorch's operator sums those of a
token or a position (see `layers.Lookup`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.model.kernels import dropped
from seq2seq.model.kernels.dropout import dropout
from seq2seq.model.kernels.row_sums import tile

TILE = {"elements": 2048, "per_thread": 16}


def embed(embedding: Tensor, encodings: Tensor, tokens: Tensor, positions: Tensor, scale: float, probability: float,
          seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the embedded tokens, (tokens, d_model), twice, as `residual_norm.residual_norm` does.

    A row whose token or position does not exist is NaN, so that the trainer skips the step. PyTorch raises an error.

    Args:
        embedding: (vocab_size, d_model). encodings: (max_positions, d_model). Both are contiguous.
        tokens, positions: (tokens,) int64.
        seed: selects mask number 0, see `dropout`; not used without dropout.
    """
    results: tuple[Tensor, Tensor] = _Embed.apply(embedding, encodings, tokens, positions, scale, probability, seed)
    return results


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Tensor, encodings: Tensor, tokens: Tensor, positions: Tensor, scale: float,
                probability: float, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        assert embedding.is_contiguous() and encodings.is_contiguous()
        out, ctx.dropped = embedding.new_empty(len(tokens), embedding.shape[1]), dropped(probability)
        ids = tokens.new_empty(2, len(tokens))
        if len(tokens):
            constants = tile(out.shape[1], **TILE, whole_rows=True)
            with torch.cuda.device_of(embedding):                               # Triton launches on the current device
                _embed[(triton.cdiv(len(out), constants["ROWS"]),)](
                    embedding, encodings, tokens, positions, seed, out, ids, len(out), len(embedding), len(encodings),
                    scale, DROPPED=ctx.dropped, **constants)
        ctx.save_for_backward(ids, seed)
        ctx.sizes, ctx.dtype, ctx.scale = (len(embedding), len(encodings)), embedding.dtype, scale
        ctx.set_materialize_grads(False)
        return out.view_as(out), out

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        ids, seed = ctx.saved_tensors
        first, *second = (each.contiguous() for each in given if each is not None)
        precise = torch.empty_like(first, dtype=torch.float32)
        if len(first):
            constants = tile(first.shape[1], **TILE, whole_rows=True)
            with torch.cuda.device_of(first):
                _gradient_of_rows[(triton.cdiv(len(first), constants["ROWS"]),)](
                    first, second[0] if second else None, seed, precise, len(first), ctx.scale,
                    DROPPED=ctx.dropped, **constants)
        sums = [torch.ops.aten.embedding_dense_backward(precise, indices, size, -1, False) if needed else None
                for indices, size, needed in zip(ids, ctx.sizes, ctx.needs_input_grad, strict=False)]
        of_encodings = None if sums[1] is None else (sums[1] / ctx.scale).to(ctx.dtype)
        return None if sums[0] is None else sums[0].to(ctx.dtype), of_encodings, *[None] * 5


@triton.jit  # type: ignore[untyped-decorator]
def _embed(embedding: tl.tensor, encodings: tl.tensor, tokens: tl.tensor, positions: tl.tensor, seed: tl.tensor,
           out: tl.tensor, ids: tl.tensor, rows: tl.tensor, vocab_size: tl.tensor, max_positions: tl.tensor,
           scale: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, DROPPED: tl.constexpr
           ) -> None:
    """ids: (2, rows), gets the tokens and the positions; 0 for rows where one of them does not exist. For such an id,
    PyTorch's sum of gradients would write outside of the matrix. The gradient of the row is NaN, wherever it is added.
    """
    local, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row, begin = tl.program_id(0) * ROWS + local, tl.program_id(0).to(tl.int64) * (ROWS * WIDTH)
    exists = (row < rows)[:, None] & (column < WIDTH)[None, :]
    token, position = tl.load(tokens + row, row < rows, 0), tl.load(positions + row, row < rows, 0)
    is_id = (token >= 0) & (token < vocab_size) & (position >= 0) & (position < max_positions)
    tl.store(ids + row, tl.where(is_id, token, 0), row < rows)
    tl.store(ids + rows + row, tl.where(is_id, position, 0), row < rows)
    known = exists & is_id[:, None]
    values = tl.load(embedding + (token[:, None] * WIDTH + column[None, :]), known, float("nan")).to(tl.float32) * scale
    values += tl.load(encodings + (position[:, None] * WIDTH + column[None, :]), known, 0.0).to(tl.float32)
    if DROPPED:
        values = dropout(values, seed, 0, row, tl.arange(0, COLUMNS // 8), (WIDTH + 7) // 8, DROPPED)
    tl.store(out + begin + (local[:, None] * WIDTH + column[None, :]), values.to(out.dtype.element_ty), exists)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_of_rows(first: tl.tensor, second: tl.tensor, seed: tl.tensor, out: tl.tensor, rows: tl.tensor,
                      scale: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                      DROPPED: tl.constexpr) -> None:
    """first, second: gradients of the two results; second may be None. out: fp32."""
    local, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row, begin = tl.program_id(0) * ROWS + local, tl.program_id(0).to(tl.int64) * (ROWS * WIDTH)
    exists, place = (row < rows)[:, None] & (column < WIDTH)[None, :], local[:, None] * WIDTH + column[None, :]
    change = tl.load(first + begin + place, exists, 0.0).to(tl.float32)
    if second is not None:
        change += tl.load(second + begin + place, exists, 0.0).to(tl.float32)
    if DROPPED:
        change = dropout(change, seed, 0, row, tl.arange(0, COLUMNS // 8), (WIDTH + 7) // 8, DROPPED)
    tl.store(out + begin + place, change * scale, exists)
