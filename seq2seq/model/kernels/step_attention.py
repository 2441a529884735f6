"""Attention of a decoding step: of a beam over its packed source, and of each hypothesis over its past.

att(q) = sum_n softmax_n(q k_n / sqrt(head_size)) v_n

Cross-attention reads the keys and values of a source sentence once for all hypotheses of its beam. Self-attention finds
the keys and values of a hypothesis in the KV cache by `ancestors`, so reordering a beam moves neither.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.model.kernels.softmax import LOWEST, add_keys

MAX_HEAD_SIZE = 128
# Number of keys in a block. A single warp needs no barriers between warps. In fp32, which has no tensor cores here, the
# registers of one warp do not suffice.
BLOCK, WARPS, WARPS_FP32 = 32, 1, 8
# Rows of the matrix products of a program: at least 16. In self-attention, hypotheses of a beam share most of
# their past, so 4 of them in a program hit the same cache lines; but small batches need more programs than that.
QUERIES, GROUP, MIN_PROGRAMS = 16, 4, 1024


def cross_attention(query: Tensor, memory: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """Return the attention of each hypothesis over the source of its sentence, (sentences * beam, heads, head_size).

    query: (sentences * beam, heads, head_size), with a beam of at most QUERIES. memory: (source_tokens, 2, heads,
    head_size), keys and values of all source tokens, packed. first, end: (sentences,) int32; the tokens first <= n <
    end belong to a sentence. Without tokens, the results are zeros.
    """
    (rows, heads, size), out, sentences = query.shape, torch.empty_like(query), len(first)
    with torch.cuda.device_of(query):                                           # Triton launches on the current device
        _attend_to_source[(heads * sentences,)](
            query, memory, first, end, out, _scale(size), BEAM=rows // sentences, HEADS=heads, SIZE=size,
            WIDTH=_width(size), QUERIES=QUERIES, BLOCK=BLOCK, **_warps(query))
    return out


def self_attention(projected: Tensor, cache: Tensor, ancestors: Tensor, clock: Tensor, beam: int,
                   window: int | None = None) -> Tensor:
    """Write the keys and values of a position to the cache, and return its attention, (rows, heads, head_size).

    projected: (rows, 3, heads, head_size), query, key and value of the new position of each hypothesis. Each sentence
        has `beam` consecutive rows.
    cache: (places, 2, heads, head_size), keys and values. Row r writes to the place clock[1] + r.
    ancestors: (positions, rows) int32, place of the keys and values of each earlier position of a hypothesis.
    clock: (2,) int64, number of earlier positions, and the first new place.
    window: maximum number of earlier positions to attend to; None: no limit.
    """
    rows, _, heads, size = projected.shape
    out = projected.new_empty(rows, heads, size)
    group = GROUP if beam > 1 and heads * rows // beam * triton.cdiv(beam, GROUP) >= MIN_PROGRAMS else 1
    with torch.cuda.device_of(projected):
        _attend_to_past[heads * rows // beam, triton.cdiv(beam, group)](
            projected, cache, ancestors, clock, out, rows, 1 << 30 if window is None else window, _scale(size),
            BEAM=beam, HEADS=heads, SIZE=size, WIDTH=_width(size), QUERIES=QUERIES, GROUP=group, BLOCK=BLOCK,
            **_warps(projected))
    return out


def _scale(size: int) -> float:
    """Return the factor of the scores. Exponentials have the base 2."""
    return math.log2(math.e) / math.sqrt(size)


def _width(size: int) -> int:
    """Return the number of features that a program loads. Blocks have powers of two, matrix products at least 16."""
    return max(16, triton.next_power_of_2(size))


def _warps(tensor: Tensor) -> dict[str, Any]:
    return {"num_warps": WARPS_FP32 if tensor.dtype == torch.float32 else WARPS, "num_stages": 2}


@triton.jit  # type: ignore[untyped-decorator]
def _attend_to_source(query: tl.tensor, memory: tl.tensor, first: tl.tensor, end: tl.tensor, out: tl.tensor,
                      scale: tl.tensor, BEAM: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
                      WIDTH: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Attend with a head and all hypotheses of a sentence. Program id: sentence * HEADS + head."""
    # Only the first dimension of a grid may exceed 65,535.
    head, sentence = tl.program_id(0) % HEADS * SIZE, tl.program_id(0) // HEADS
    feature, hypothesis = tl.arange(0, WIDTH)[None, :], tl.arange(0, QUERIES)[:, None]
    exists, place = (hypothesis < BEAM) & (feature < SIZE), (sentence * BEAM + hypothesis) * (HEADS * SIZE) + feature
    q = tl.load(query + head + place, exists, 0.0)
    greatest, total = tl.full([QUERIES], LOWEST, tl.float32), tl.zeros([QUERIES], tl.float32)
    summed, last = tl.zeros([QUERIES, WIDTH], tl.float32), tl.load(end + sentence)
    for begin in range(tl.load(first + sentence), last, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        key = memory + head + token[:, None].to(tl.int64) * (2 * HEADS * SIZE) + feature
        is_key = (token < last)[:, None] & (feature < SIZE)
        k, v = tl.load(key, is_key, 0.0), tl.load(key + HEADS * SIZE, is_key, 0.0)
        greatest, total, summed = add_keys(q, k, v, (token < last)[None, :], greatest, total, summed, scale)
    attended = summed / tl.where(total == 0, 1.0, total)[:, None]               # NaN stays NaN
    tl.store(out + head + place, attended.to(out.dtype.element_ty), exists)


# `rows` changes with the batch. Specialised, it would make Triton compile up to three kernels.
@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _attend_to_past(projected: tl.tensor, cache: tl.tensor, ancestors: tl.tensor, clock: tl.tensor, out: tl.tensor,
                    rows: tl.tensor, window: tl.tensor, scale: tl.tensor, BEAM: tl.constexpr, HEADS: tl.constexpr,
                    SIZE: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, GROUP: tl.constexpr,
                    BLOCK: tl.constexpr) -> None:
    """Attend with a head and up to GROUP hypotheses of a sentence. Program ids: as above, and the part of the beam.

    A block has the keys of BLOCK // GROUP positions of GROUP hypotheses. Each hypothesis attends to its own ones.
    """
    feature, query, begin_group = tl.arange(0, WIDTH)[None, :], tl.arange(0, QUERIES), tl.program_id(1) * GROUP
    head, begin_row = tl.program_id(0) % HEADS * SIZE, tl.program_id(0) // HEADS * BEAM
    position = tl.load(clock).to(tl.int32)
    hypothesis = begin_group + query
    exists = ((query < GROUP) & (hypothesis < BEAM))[:, None] & (feature < SIZE)
    row = (begin_row + hypothesis)[:, None]
    new = projected + head + row * (3 * HEADS * SIZE) + feature
    q = tl.load(new, exists, 0.0)
    new_key, new_value = tl.load(new + HEADS * SIZE, exists, 0.0), tl.load(new + 2 * HEADS * SIZE, exists, 0.0)
    place = cache + head + (tl.load(clock + 1) + row) * (2 * HEADS * SIZE) + feature
    tl.store(place, new_key, exists)
    tl.store(place + HEADS * SIZE, new_value, exists)
    # The new key is the first one of the softmax.
    greatest, total = tl.sum(q.to(tl.float32) * new_key.to(tl.float32), 1) * scale, tl.full([QUERIES], 1.0, tl.float32)
    summed, column = new_value.to(tl.float32), tl.arange(0, BLOCK)
    other = begin_group + column % GROUP
    for begin in range(tl.maximum(position - window, 0), position, BLOCK // GROUP):
        earlier = begin + column // GROUP
        seen = (earlier < position) & (other < BEAM)
        ancestor = tl.load(ancestors + earlier * rows + begin_row + other, seen, 0).to(tl.int64)
        key = cache + head + ancestor[:, None] * (2 * HEADS * SIZE) + feature
        is_key = seen[:, None] & (feature < SIZE)
        k, v = tl.load(key, is_key, 0.0), tl.load(key + HEADS * SIZE, is_key, 0.0)
        own = seen[None, :] & (other[None, :] == hypothesis[:, None])
        greatest, total, summed = add_keys(q, k, v, own, greatest, total, summed, scale)
    tl.store(out + head + row * (HEADS * SIZE) + feature, (summed / total[:, None]).to(out.dtype.element_ty), exists)
