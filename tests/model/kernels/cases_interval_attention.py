"""Attention by intervals in Triton's interpreter, on the CPU, against dense attention.

test_triton_kernels.py runs these cases in a process of its own: TRITON_INTERPRET=1 must be set before Triton is
imported.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from seq2seq.model.attention import intervals_of
from seq2seq.model.kernels import interval_attention
from seq2seq.model.kernels.interval_attention import attend, find_intervals
from seq2seq.model.packing import Sentences

HEADS = 2
# Ragged lengths of queries and keys, each with some sentences that are empty on one side or on both.
RAGGED = (3, 61, 0, 1, 5, 17, 2, 0, 7, 0), (5, 11, 3, 67, 0, 2, 19, 0, 1, 0)
LONG = (257, 1, 2, 64), (101, 3, 257, 65)
# causal, window
KINDS = {"full": (False, None), "causal": (True, None), "window": (False, 3), "causal window": (True, 5),
         "cross": (False, None)}


def _launch(dtype, size):
    sentences = torch.tensor([0, 512], dtype=torch.int32), torch.tensor([512, 1], dtype=torch.int32)
    intervals = find_intervals(sentences, sentences, 1024, None, 0)
    for parts in ((3,), (1, 2)):
        stacks = tuple(torch.zeros(1024, count, 8, size, dtype=dtype, requires_grad=True) for count in parts)
        attend(stacks, intervals, intervals).sum().backward()


# To compile, see test_triton_kernels.py.
LAUNCHES = {f"attention {dtype} {size}": partial(_launch, dtype, size)
            for dtype in (torch.bfloat16, torch.float16) for size in (16, 32, 64, 128)}


def sentences_of(lengths, tail, device="cpu"):
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    return Sentences.from_offsets(offsets, max(1, *lengths), sum(lengths) + tail, tail > 0)


def sides_of(kind, lengths, tail=0, device="cpu"):
    own = sentences_of(lengths[0], tail, device)
    return (own, sentences_of(lengths[1], 2 * tail, device)) if kind == "cross" else (own, own)


def seen_pairs(sides, causal, window):
    """(queries, keys) bool, computed from the number of each token's sentence and its position there."""
    numbers, positions = [], []
    for side in sides:
        lengths = side.lengths.tolist()
        tail = len(side.positions) - sum(lengths)
        numbers.append(torch.tensor([number for number, length in enumerate(lengths) for _ in range(length)]
                                    + [-1] * tail, dtype=torch.int64))
        positions.append(torch.tensor([position for length in lengths for position in range(length)] + [0] * tail,
                                      dtype=torch.int64))
    distance = positions[0][:, None] - positions[1]
    seen = (numbers[0][:, None] == numbers[1]) & (numbers[1] >= 0)
    if causal:
        seen &= distance >= 0
    return seen if window is None else seen & (distance.abs() <= window)


def random_stacks(sides, size, dtype=torch.float32, seed=1):
    random = torch.Generator().manual_seed(seed)
    queries, keys = (len(side.positions) for side in sides)
    shapes = [(queries, 3)] if sides[0] is sides[1] else [(queries, 1), (keys, 2)]
    device = sides[0].begins.device
    return tuple(torch.randn(*shape, HEADS, size, generator=random).to(device, dtype).requires_grad_()
                 for shape in shapes)


def dense(stacks, seen):
    query, key, value = (part for stack in stacks for part in stack.unbind(1))
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[2])
    weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
    return torch.einsum("hqk,khd->qhd", weights, value)


def outputs_and_gradients(function, stacks, arriving):
    out = function(stacks)
    return [out.detach(), *torch.autograd.grad(out, stacks, arriving.to(out.dtype))]


def results(kind, lengths, tail=0, size=16, dtype=torch.float32, device="cpu"):
    """Return output and gradients, those of dense attention in float64, and the pairs of `seen_pairs`."""
    causal, window = KINDS[kind]
    sides = sides_of(kind, lengths, tail, device)
    stacks, seen = random_stacks(sides, size, dtype), seen_pairs(sides, causal, window).to(device)
    arriving = torch.randn(len(sides[0].positions), HEADS, size, generator=torch.Generator().manual_seed(2))
    arriving = arriving.to(device, dtype)
    intervals = intervals_of(*sides, causal, window)
    found = outputs_and_gradients(lambda stacks: attend(stacks, *intervals), stacks, arriving)
    precise = tuple(stack.detach().double().requires_grad_() for stack in stacks)
    return found, outputs_and_gradients(lambda stacks: dense(stacks, seen), precise, arriving), seen


def check(kind, lengths, tail=0, size=16, dtype=torch.float32):
    """Compare output and gradients with those of dense attention in float64."""
    found, expected, seen = results(kind, lengths, tail, size, dtype)
    tolerances = [1e-6, 5e-6, 5e-6] if dtype == torch.float32 else [4e-3] * 3
    for one, other, tolerance in zip(found, expected, tolerances, strict=False):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)
    return found, seen


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_equals_dense_attention(kind):
    check(kind, RAGGED)


@pytest.mark.parametrize("kind", KINDS)
def test_tails_attend_to_nothing_and_get_gradients_of_exactly_0(kind):
    (out, *gradients), seen = check(kind, RAGGED, tail=70)
    assert not out[~seen.any(1)].any() and out[seen.any(1)].ne(0).any(-1).all()
    queries, keys, values = (part for gradient in gradients for part in gradient.unbind(1))
    for part, used in ((queries, seen.any(1)), (keys, seen.any(0)), (values, seen.any(0))):
        assert not part[~used].any() and (~used).any()
    assert keys[seen.any(0)].any() and values[seen.any(0)].ne(0).any(-1).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_long_sentences_and_every_head_size(kind, size):
    check(kind, LONG, tail=3, size=size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "cross"])
def test_lengths_around_the_multiples_of_a_block(kind):
    lengths = (64, 1, 257, 31, 65, 128, 2, 63, 129, 16, 255)
    check(kind, (lengths, lengths[::-1]))


@pytest.mark.parametrize("kind", ["causal", "cross"])
def test_fp16_equals_dense_attention_to_rounding(kind):
    check(kind, RAGGED, size=32, dtype=torch.float16)


def test_two_runs_are_equal_to_the_bit():
    (first, _), (second, _) = (check("window", RAGGED, size=32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("arriving", [
    lambda shape: torch.ones(1, 1, 1).expand(shape),
    lambda shape: torch.randn(*reversed(shape), generator=torch.Generator().manual_seed(3)).permute(2, 1, 0),
], ids=["expanded", "transposed"])
def test_gradients_need_not_be_contiguous(arriving):
    sides = sides_of("cross", RAGGED)
    stacks, seen = random_stacks(sides, 16), seen_pairs(sides, False, None)
    gradient = arriving((len(sides[0].positions), HEADS, 16))
    assert not gradient.is_contiguous()
    found = outputs_and_gradients(lambda stacks: attend(stacks, *intervals_of(*sides, False, None)), stacks, gradient)
    expected = outputs_and_gradients(lambda stacks: dense(stacks, seen), stacks, gradient)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-6, atol=5e-6)


def test_stacks_need_not_be_contiguous():
    sides = sides_of("full", ((3, 5), ()))
    (stack,) = random_stacks(sides, 16)
    strided = stack.detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert not strided.is_contiguous()
    assert torch.equal(attend((strided,), *intervals_of(*sides, False, None)),
                       attend((stack,), *intervals_of(*sides, False, None)))


@pytest.mark.parametrize("lengths", [((0, 0), (0, 0)), ((0, 0), (2, 3)), ((2, 3), (0, 0))],
                         ids=["nothing", "no queries", "no keys"])
def test_a_side_without_tokens(lengths):
    (out, *gradients), _ = check("cross", lengths)
    assert not out.any() and not any(gradient.any() for gradient in gradients)


def test_large_scores_do_not_overflow():
    sides = sides_of("causal", ((3, 61, 7), ()))
    stack = (1000 * random_stacks(sides, 16)[0].detach()).requires_grad_()
    out = attend((stack,), *intervals_of(*sides, True, None))
    assert out.isfinite().all() and torch.autograd.grad(out.sum(), stack)[0].isfinite().all()


def test_many_sentences_find_their_intervals():
    lengths = np.random.default_rng(1).integers(0, 4, 1_013).tolist()
    sentences = sentences_of(lengths, 300)
    keys_of, queries_of = intervals_of(sentences, sentences, False, None)
    begins = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    assert keys_of[0, : sum(lengths)].tolist() == begins.tolist()
    assert keys_of[1, : sum(lengths)].tolist() == (begins + np.repeat(lengths, lengths)).tolist()
    assert set(keys_of[0, sum(lengths) :].tolist()) == {2**31 - 1} and not keys_of[1, sum(lengths) :].any()
    assert torch.equal(keys_of, queries_of)


@triton.jit
def _store_place(result, row, stride, SIZE: tl.constexpr):
    tl.store(result, interval_attention._from(result, row, stride, SIZE).to(tl.int64) - result.to(tl.int64))


def test_the_place_of_a_row_may_exceed_32_bits():
    place = torch.zeros(1, dtype=torch.int64)
    _store_place[(1, 2)](place, 10_000_000, 3_072, SIZE=16)                     # the last program is of the second head
    assert place.item() == 8 * (10_000_000 * 3_072 + 16)                        # in bytes
