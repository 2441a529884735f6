"""Attention over packed sentences: query q attends to the keys first[q] <= k < end[q].

    o_q = sum_k p_qk v_k    with    p_qk = exp(s_qk - l_q),  s_qk = q k / sqrt(head_size),  l_q = log sum_k exp(s_qk)
    dv_k = sum_q p_qk do_q      ds_qk = p_qk (do_q v_k - do_q o_q)      dq_q = sum_k ds_qk k / sqrt(head_size)

Self-attention, causal attention, windows and cross-attention over packed sentences all have this form. Blocks are cut
from the packed tokens, not from sentences, so that short sentences share a block, and the grid depends only on the
number of tokens. The backward pass has one kernel for queries and one for keys, which add nothing with atomics: the
results are the same in every run. Scores are not stored: the backward pass computes them again from l, as
FlashAttention does (Dao 2023, arXiv:2307.08691).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.model.kernels.softmax import LOWEST, add_keys

# The fastest of eleven tiles on an H200, in the forward pass (51 to 85 microseconds per layer of 25,000 tokens) and in
# the backward pass (131 to 250).
BLOCK, STAGES = 64, 2
WARPS = {16: 4, 32: 4, 64: 4, 128: 8}                   # by head size; with 4, the registers do not suffice for 128
SEARCH_BLOCK = 128                                                              # tokens per program
NO_LIMIT = 2**30                                                                # distance that no sentence exceeds
# The interval of a query without keys, [NO_FIRST, 0), also leaves the bounds of its block as they are.
NO_FIRST = tl.constexpr(2**31 - 1)
LOG_2 = tl.constexpr(math.log(2))                                               # exponentials are powers of 2


def find_intervals(own: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], tokens: int, before: int | None,
                   after: int | None) -> Tensor:
    """Return the interval of tokens of the other side that each token belongs to, (2, tokens) int32: first and end.

    Args:
        own, other: begins and lengths of the sentences on each side, (sentences,) int32 each. A token that is in no
            sentence, or whose interval would be empty, gets the interval [2^31 - 1, 0).
        tokens: number of tokens on the own side.
        before, after: how far the interval extends before and after the token's own position; None: no limit.
    """
    sentences, intervals = len(own[0]), own[0].new_empty(2, tokens, dtype=torch.int32)
    assert len(other[0]) == sentences, "both sides must have the same sentences"
    if tokens:
        with torch.cuda.device_of(intervals):                                   # Triton launches on the current device
            _find_intervals[(triton.cdiv(tokens, SEARCH_BLOCK),)](
                *own, *other, intervals, tokens, sentences, sentences.bit_length(),
                NO_LIMIT if before is None else before, NO_LIMIT if after is None else after, BLOCK=SEARCH_BLOCK)
    return intervals


def attend(stacks: tuple[Tensor, ...], keys_of: Tensor, queries_of: Tensor) -> Tensor:
    """Compute attention by intervals.

    Args:
        stacks: for self-attention, one tensor with query, key and value, (tokens, 3, heads, head_size); for
            cross-attention, two tensors: the query, (queries, 1, heads, head_size), and key and value, (keys, 2, heads,
            head_size). The head size is 16, 32, 64 or 128.
        keys_of: interval of keys of each query, (2, queries) int32. queries_of: interval of queries of each key,
            (2, keys) int32, which must describe the same pairs. Both are from `find_intervals`.
    Returns:
        (queries, heads, head_size), 0 for a query without keys.
    """
    return cast(Tensor, _IntervalAttention.apply(keys_of, queries_of, *stacks))


class _IntervalAttention(torch.autograd.Function):
    """Arguments: as in `attend`."""

    @staticmethod
    def forward(ctx: Any, keys_of: Tensor, queries_of: Tensor, *stacks: Tensor) -> Tensor:
        stacks = tuple(stack.contiguous() for stack in stacks)
        query, key, value = (part for stack in stacks for part in stack.unbind(1))
        queries, heads, size = query.shape
        out, log_sums = query.new_empty(query.shape), query.new_empty(heads, queries, dtype=torch.float32)
        if queries:
            with torch.cuda.device_of(query):
                _attention_forward[(triton.cdiv(queries, BLOCK), heads)](
                    query, key, value, keys_of, out, log_sums, queries, query.stride(0), key.stride(0), _scale(size),
                    SIZE=size, BLOCK=BLOCK, num_warps=WARPS[size], num_stages=STAGES)
        ctx.save_for_backward(keys_of, queries_of, out, log_sums, *stacks)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        keys_of, queries_of, out, log_sums, *stacks = ctx.saved_tensors
        gradients = [torch.empty_like(stack) for stack in stacks]
        query, key, value = (part for stack in stacks for part in stack.unbind(1))
        of_query, of_key, of_value = (part for stack in gradients for part in stack.unbind(1))
        (queries, heads, size), keys, products = query.shape, len(key), torch.empty_like(log_sums)
        gradient = gradient.contiguous()
        strides = query.stride(0), key.stride(0), _scale(size)
        tile = {"SIZE": size, "BLOCK": BLOCK, "num_warps": WARPS[size], "num_stages": STAGES}
        with torch.cuda.device_of(query):
            if queries:
                _attention_backward_of_queries[(triton.cdiv(queries, BLOCK), heads)](
                    query, key, value, keys_of, out, log_sums, gradient, products, of_query, queries, *strides, **tile)
            if keys:
                _attention_backward_of_keys[(triton.cdiv(keys, BLOCK), heads)](
                    query, key, value, queries_of, log_sums, gradient, products, of_key, of_value, queries, keys,
                    *strides, **tile)
        return None, None, *gradients


def _scale(size: int) -> float:
    return size**-0.5 / math.log(2)


@triton.jit(do_not_specialize=["tokens", "sentences", "steps", "before", "after"])  # type: ignore[untyped-decorator]
def _find_intervals(own_begins: tl.tensor, own_lengths: tl.tensor, begins: tl.tensor, lengths: tl.tensor,
                    intervals: tl.tensor, tokens: tl.tensor, sentences: tl.tensor, steps: tl.tensor, before: tl.tensor,
                    after: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Find the intervals of a block of tokens. steps: number of times that the search halves its range."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = token < tokens
    # The last sentence that begins at the token or before it. If some of them are empty, this is not one of those.
    sentence, beyond = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32) + sentences
    for _ in range(steps):
        middle = (sentence + beyond) // 2
        begun = tl.load(own_begins + middle) <= token
        sentence, beyond = tl.where(begun, middle, sentence), tl.where(begun, beyond, middle)
    position = token - tl.load(own_begins + sentence)
    begin, length = tl.load(begins + sentence), tl.load(lengths + sentence)
    first, end = begin + tl.maximum(position - before, 0), begin + tl.minimum(position + after + 1, length)
    found = (position < tl.load(own_lengths + sentence)) & (first < end)
    tl.store(intervals + token, tl.where(found, first, NO_FIRST), exists)
    tl.store(intervals + tokens + token, tl.where(found, end, 0), exists)


@triton.jit  # type: ignore[untyped-decorator]
def _from(tensor: tl.tensor, row: tl.tensor, stride: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """Return a pointer to a row of this program's head. tokens * features may exceed 32 bits."""
    return tensor + row * stride.to(tl.int64) + tl.program_id(1) * SIZE


@triton.jit  # type: ignore[untyped-decorator]
def _rows(begin: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr, SIZE: tl.constexpr) -> tl.tensor:
    """Return the offsets of the rows `begin` to `begin + BLOCK`, (BLOCK, SIZE), in 32 bits."""
    return (begin + tl.arange(0, BLOCK)[:, None]) * stride + tl.arange(0, SIZE)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _own_block(intervals: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> Any:
    """Return the first token of this program, its tokens, which of them exist, and the intervals of all."""
    own = tl.program_id(0) * BLOCK
    token = own + tl.arange(0, BLOCK)
    exists = token < count
    first, end = tl.load(intervals + token, exists, NO_FIRST), tl.load(intervals + count + token, exists, 0)
    return own, token, exists, first, end


@triton.jit(do_not_specialize=["queries"])  # type: ignore[untyped-decorator]
def _attention_forward(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, keys_of: tl.tensor, out: tl.tensor, log_sums: tl.tensor,
    queries: tl.tensor, query_stride: tl.tensor, key_stride: tl.tensor, scale: tl.tensor, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute the output and the logarithm (to base 2) of the sum of exponentials of a block of queries of a head."""
    own, row, exists, first, end = _own_block(keys_of, queries, BLOCK)
    q = tl.load(_from(query, own, query_stride, SIZE) + _rows(0, query_stride, BLOCK, SIZE), exists[:, None], 0.0)
    greatest = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    summed = tl.zeros([BLOCK, SIZE], tl.float32)
    start, last = tl.min(first, 0), tl.max(end, 0)
    key, value = _from(key, start, key_stride, SIZE), _from(value, start, key_stride, SIZE)
    for begin in range(0, last - start, BLOCK):
        column = start + begin + tl.arange(0, BLOCK)
        place, inside = _rows(begin, key_stride, BLOCK, SIZE), (column < last)[:, None]
        k, v = tl.load(key + place, inside, 0.0), tl.load(value + place, inside, 0.0)
        seen = (column[None, :] >= first[:, None]) & (column[None, :] < end[:, None])
        greatest, total, summed = add_keys(q, k, v, seen, greatest, total, summed, scale)
    total = tl.where(total > 0, total, 1.0)                                     # 0 for a query without keys
    stride = tl.num_programs(1) * SIZE
    tl.store(_from(out, own, stride, SIZE) + _rows(0, stride, BLOCK, SIZE), (summed / total[:, None]).to(
        out.dtype.element_ty), exists[:, None])
    tl.store(log_sums + tl.program_id(1) * queries + row, greatest + tl.log2(total), exists)


@triton.jit(do_not_specialize=["queries"])  # type: ignore[untyped-decorator]
def _attention_backward_of_queries(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, keys_of: tl.tensor, out: tl.tensor, log_sums: tl.tensor,
    gradient: tl.tensor, products: tl.tensor, of_query: tl.tensor, queries: tl.tensor, query_stride: tl.tensor,
    key_stride: tl.tensor, scale: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:
    """Compute dq of a block of queries of a head, and store the products do_q o_q for `_attention_backward_of_keys`."""
    own, row, exists, first, end = _own_block(keys_of, queries, BLOCK)
    q = tl.load(_from(query, own, query_stride, SIZE) + _rows(0, query_stride, BLOCK, SIZE), exists[:, None], 0.0)
    stride = tl.num_programs(1) * SIZE
    packed = _rows(0, stride, BLOCK, SIZE)
    g = tl.load(_from(gradient, own, stride, SIZE) + packed, exists[:, None], 0.0)
    o = tl.load(_from(out, own, stride, SIZE) + packed, exists[:, None], 0.0)
    product = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(products + tl.program_id(1) * queries + row, product, exists)
    log_sum = tl.load(log_sums + tl.program_id(1) * queries + row, exists, 0.0)
    summed = tl.zeros([BLOCK, SIZE], tl.float32)
    start, last = tl.min(first, 0), tl.max(end, 0)
    key, value = _from(key, start, key_stride, SIZE), _from(value, start, key_stride, SIZE)
    for begin in range(0, last - start, BLOCK):
        column = start + begin + tl.arange(0, BLOCK)
        place, inside = _rows(begin, key_stride, BLOCK, SIZE), (column < last)[:, None]
        k, v = tl.load(key + place, inside, 0.0), tl.load(value + place, inside, 0.0)
        seen = (column[None, :] >= first[:, None]) & (column[None, :] < end[:, None])
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        weight = tl.where(seen, tl.exp2(score - log_sum[:, None]), 0.0)
        change = weight * (tl.dot(g, tl.trans(v), input_precision="ieee") - product[:, None])
        summed += tl.dot(change.to(k.dtype), k, input_precision="ieee")
    summed *= scale * LOG_2
    out = _from(of_query, own, query_stride, SIZE) + _rows(0, query_stride, BLOCK, SIZE)
    tl.store(out, summed.to(of_query.dtype.element_ty), exists[:, None])


@triton.jit(do_not_specialize=["queries", "keys"])  # type: ignore[untyped-decorator]
def _attention_backward_of_keys(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, queries_of: tl.tensor, log_sums: tl.tensor, gradient: tl.tensor,
    products: tl.tensor, of_key: tl.tensor, of_value: tl.tensor, queries: tl.tensor, keys: tl.tensor,
    query_stride: tl.tensor, key_stride: tl.tensor, scale: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:
    """Compute dk and dv of a block of keys of a head."""
    own, column, exists, first, end = _own_block(queries_of, keys, BLOCK)
    place = _rows(0, key_stride, BLOCK, SIZE)
    k = tl.load(_from(key, own, key_stride, SIZE) + place, exists[:, None], 0.0)
    v = tl.load(_from(value, own, key_stride, SIZE) + place, exists[:, None], 0.0)
    key_sum, value_sum = tl.zeros([BLOCK, SIZE], tl.float32), tl.zeros([BLOCK, SIZE], tl.float32)
    start, last = tl.min(first, 0), tl.max(end, 0)
    query = _from(query, start, query_stride, SIZE)
    gradient = _from(gradient, start, tl.num_programs(1) * SIZE, SIZE)
    for begin in range(0, last - start, BLOCK):
        row = start + begin + tl.arange(0, BLOCK)
        inside = row < last
        q = tl.load(query + _rows(begin, query_stride, BLOCK, SIZE), inside[:, None], 0.0)
        g = tl.load(gradient + _rows(begin, tl.num_programs(1) * SIZE, BLOCK, SIZE), inside[:, None], 0.0)
        log_sum = tl.load(log_sums + tl.program_id(1) * queries + row, inside, 0.0)
        product = tl.load(products + tl.program_id(1) * queries + row, inside, 0.0)
        seen = (row[None, :] >= first[:, None]) & (row[None, :] < end[:, None])
        score = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
        weight = tl.where(seen, tl.exp2(score - log_sum[None, :]), 0.0)
        value_sum += tl.dot(weight.to(g.dtype), g, input_precision="ieee")
        change = weight * (tl.dot(v, tl.trans(g), input_precision="ieee") - product[None, :])
        key_sum += tl.dot(change.to(q.dtype), q, input_precision="ieee")
    key_sum *= scale * LOG_2
    place = _rows(0, key_stride, BLOCK, SIZE)
    tl.store(_from(of_key, own, key_stride, SIZE) + place, key_sum.to(of_key.dtype.element_ty), exists[:, None])
    tl.store(_from(of_value, own, key_stride, SIZE) + place, value_sum.to(of_value.dtype.element_ty), exists[:, None])
