"""Choice of the continuations in a step of beam search, from the logits: log-softmax, top-k, and the next beams.

total(h, y) = total(h) + logit(h, y) - log sum_y' exp(logit(h, y'))

`_summarise` reads the logits once, and computes the maximum and the sum of exponentials of each block of 128 ids. The k
best continuations of a sentence lie in the k blocks with the largest maxima, so `_choose` reads only these blocks
again. Among equal totals, a lower hypothesis comes first, then a lower id. There are no atomic operations, so the
results of two runs are equal to the bit. NaN counts as the greatest number, and is no possible continuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.tokenizers.tokenizer import END_ID

# With a larger beam, `_advance` would need more registers than a thread has.
MAX_BEAM = 16
# `_choose` keeps the maxima of the blocks of a sentence in shared memory, 4 bytes each: up to 64 KB. A program may have
# 99 KB on RTX 30, 40 and 50. With twice as many maxima, registers would be spilled on all GPUs, too.
MAX_MAXIMA = 16_384
# Number of ids in a block. vocab_size / 128 maxima per hypothesis, and 128 logits per candidate, are searched.
BLOCK = 128
# Number of blocks of a program of `_summarise`, and its number of warps.
BLOCKS, WARPS = 32, 4
# Number of elements per warp in `_choose`. An element is an int64, so 32 of them take 64 registers of a thread.
WARP_ELEMENTS, MAX_WARPS = 1024, 16
# Number of positions that `_advance` reorders at once.
POSITIONS = 64
LOWEST_KEY = tl.constexpr(-(2**63))


class Banned(NamedTuple):
    """Banned ids on a device.

    is_banned: (vocab_size,) uint8. blocks: int32, the blocks that contain `</s>` or a banned id. Their maxima are
    computed again, because `</s>` is sometimes the only allowed id.
    """

    is_banned: Tensor
    blocks: Tensor

    @staticmethod
    def of(ids: Sequence[int], vocab_size: int, device: torch.device) -> Banned:
        """ids: banned ids, without `</s>`."""
        is_banned = torch.zeros(vocab_size, dtype=torch.uint8)
        is_banned[list(ids)] = 1
        blocks = torch.tensor(sorted({index // BLOCK for index in (*ids, END_ID)}), dtype=torch.int32)
        return Banned(is_banned.to(device), blocks.to(device))


class Beams(NamedTuple):
    """Hypotheses of all sentences. `advance` overwrites these tensors, which are contiguous, and int32 if not stated.

    clock: (2,) int64, see `step_attention.self_attention`. The number of earlier positions is also the number of tokens
        of the unfinished hypotheses.
    limits: (sentences,), maximum number of tokens, not counting `</s>`.
    tokens, totals: (sentences, beam), last token and log p (fp32) of each unfinished hypothesis; -inf for a place in
        the beam without a hypothesis, and for all places of a finished sentence.
    ancestors: (positions, sentences * beam), see `step_attention.self_attention`.
    history: (positions, sentences * beam), token * beam + parent: the token that a step has added to each hypothesis,
        and the place in the beam, before this step, of the hypothesis that it continues.
    done: (sentences,) bool, True = finished. finished_count: (sentences,), number of finished hypotheses.
    finished_totals, finished_ends: (sentences, places), log p (fp32) of the finished hypotheses in the order in which
        they ended, and tokens * beam + hypothesis: the number of tokens, and the place in the beam of the hypothesis to
        which `</s>` was added.
    """

    clock: Tensor
    limits: Tensor
    tokens: Tensor
    totals: Tensor
    ancestors: Tensor
    history: Tensor
    done: Tensor
    finished_count: Tensor
    finished_totals: Tensor
    finished_ends: Tensor


def serves(beam: int, vocab_size: int) -> bool:
    """Return True if the kernels support beams of this size with so many ids: 131,072 with a beam of 9 to 16."""
    maxima = triton.next_power_of_2(beam) * triton.next_power_of_2(triton.cdiv(vocab_size, BLOCK))
    return beam <= MAX_BEAM and maxima <= MAX_MAXIMA


def best_continuations(logits: Tensor, totals: Tensor, banned: Banned, clock: Tensor, limits: Tensor, count: int
                       ) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations of each sentence as three tensors (sentences, count), best first.

    Args:
        logits: (sentences * beam, vocab_size). Rows that begin at multiples of 16 bytes are read faster.
        totals, clock, limits: see `Beams`. A sentence that has reached its limit continues with `</s>` only.
    Returns:
        log p (fp32), -inf if there are no more continuations; place in the beam of the continued hypothesis, and id
        (int32).
    """
    (rows, vocab_size), (sentences, beam) = logits.shape, totals.shape
    blocks, places = triton.cdiv(vocab_size, BLOCK), triton.next_power_of_2(count)
    maxima, sums = totals.new_empty(2, rows, blocks)
    best, (parents, ids) = totals.new_empty(sentences, count), limits.new_empty(2, sentences, count)
    beam_rows, columns = triton.next_power_of_2(beam), max(triton.next_power_of_2(blocks), places)
    warps = min(max(max(beam_rows * columns, places * BLOCK) // WARP_ELEMENTS, WARPS), MAX_WARPS)
    with torch.cuda.device_of(logits):                                          # Triton launches on the current device
        _summarise[rows, triton.cdiv(blocks, BLOCKS)](
            logits, maxima, sums, logits.stride(0), vocab_size, blocks, BLOCK=BLOCK, BLOCKS=BLOCKS, num_warps=WARPS)
        _choose[(sentences,)](
            logits, maxima, sums, totals, *banned, limits, clock, best, parents, ids, logits.stride(0), vocab_size,
            len(banned.blocks), END=END_ID, BEAM=beam, ROWS=beam_rows, COUNT=count, PLACES=places, BLOCK=BLOCK,
            BLOCKS=blocks, COLUMNS=columns, num_warps=warps)
    return best, parents, ids


def advance(beams: Beams, continuations: tuple[Tensor, Tensor, Tensor], finished_per_sentence: int) -> None:
    """Record the hypotheses that `</s>` finishes, and make the next beams from the other continuations.

    The rules are those of `search.beams.Beams.advance`. The clock stays as it is. continuations: 2 * beam of each
    sentence, from `best_continuations`.
    """
    (sentences, beam), count = beams.tokens.shape, continuations[0].shape[1]
    with torch.cuda.device_of(beams.clock):
        _advance[(sentences,)](
            *continuations, beams.clock, beams.tokens, beams.totals, beams.ancestors, beams.history, beams.done,
            beams.finished_count, beams.finished_totals, beams.finished_ends, sentences * beam,
            beams.finished_ends.shape[1], finished_per_sentence, END=END_ID, BEAM=beam,
            ROWS=triton.next_power_of_2(beam), COUNT=count, PLACES=triton.next_power_of_2(count), POSITIONS=POSITIONS,
            num_warps=1)


@triton.jit  # type: ignore[untyped-decorator]
def _key(value: tl.tensor, index: tl.tensor) -> Any:
    """Return int64 numbers in the order of the values, fp32. Among equal values, a lower index has a larger number."""
    bits = tl.where(value == value, value.to(tl.int32, bitcast=True), 0x7FC00000)
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def _value_of(key: tl.tensor) -> Any:
    bits = (key >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _index_of(key: tl.tensor) -> Any:
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _greatest(keys: tl.tensor, COUNT: tl.constexpr, PLACES: tl.constexpr) -> Any:
    """Return the COUNT greatest keys, which all differ, in descending order, (PLACES,)."""
    place, best = tl.arange(0, PLACES), tl.full([PLACES], LOWEST_KEY, tl.int64)
    for n in range(COUNT):
        greatest = tl.max(tl.max(keys, 1), 0)
        best = tl.where(place == n, greatest, best)
        keys = tl.where(keys == greatest, LOWEST_KEY, keys)
    return best


@triton.jit  # type: ignore[untyped-decorator]
def _summarise(logits: tl.tensor, maxima: tl.tensor, sums: tl.tensor, stride: tl.tensor, vocab_size: tl.tensor,
               blocks: tl.tensor, BLOCK: tl.constexpr, BLOCKS: tl.constexpr) -> None:
    """Compute the maximum of some blocks of a row, and the sum of 2^(log2(e) (logit - maximum))."""
    row, block = tl.program_id(0), tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)     # there may be 2^16 rows or more
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    # The bound of the load is the stride, which is a multiple of 16 more often than the vocabulary's size.
    logit = tl.load(logits + row.to(tl.int64) * stride + token, token < stride, -float("inf")).to(tl.float32)
    logit = tl.where(token < vocab_size, logit, -float("inf"))
    greatest = tl.max(logit, 1)
    # The maximum of a block may be -inf, and -inf - -inf would be NaN.
    scaled = tl.maximum(greatest * 1.4426950408889634, -1e38)
    total = tl.sum(tl.exp2(logit * 1.4426950408889634 - scaled[:, None]), 1)
    tl.store(maxima + row * blocks + block, greatest, block < blocks)
    tl.store(sums + row * blocks + block, total, block < blocks)


@triton.jit  # type: ignore[untyped-decorator]
def _allowed(token: tl.tensor, is_banned: tl.tensor, must_end: tl.tensor, vocab_size: tl.tensor,
             END: tl.constexpr) -> Any:
    """Return which tokens may come next."""
    exists = token < vocab_size
    return tl.where(must_end == 0, exists, token == END) & (tl.load(is_banned + token, exists, 1) == 0)


@triton.jit  # type: ignore[untyped-decorator]
def _choose(logits: tl.tensor, maxima: tl.tensor, sums: tl.tensor, past_totals: tl.tensor, is_banned: tl.tensor,
            banned_blocks: tl.tensor, limits: tl.tensor, clock: tl.tensor, totals: tl.tensor, parents: tl.tensor,
            ids: tl.tensor, stride: tl.tensor, vocab_size: tl.tensor, banned_count: tl.tensor, END: tl.constexpr,
            BEAM: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
            BLOCKS: tl.constexpr, COLUMNS: tl.constexpr) -> None:
    """Choose the COUNT best blocks of the sentence whose index is the program id, and then the best continuations."""
    sentence = tl.program_id(0)
    must_end = (tl.load(limits + sentence) <= tl.load(clock)).to(tl.int32)
    row, block, offset = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :], tl.arange(0, BLOCK)[None, :]
    exists, place = (row < BEAM) & (block < BLOCKS), (sentence * BEAM + row) * BLOCKS + block
    greatest = tl.load(maxima + place, exists, -float("inf"))
    scaled = tl.maximum(greatest * 1.4426950408889634, -1e38)                   # as in `_summarise`
    peak = tl.max(scaled, 1)
    total = tl.sum(tl.load(sums + place, exists, 0.0) * tl.exp2(scaled - peak[:, None]), 1)
    hypothesis = tl.arange(0, ROWS)
    past = tl.load(past_totals + sentence * BEAM + hypothesis, hypothesis < BEAM, -float("inf"))
    past = tl.where(hypothesis < BEAM, past - (peak + tl.log2(total)) * 0.6931471805599453, -float("inf"))
    greatest = tl.where(must_end == 1, -float("inf"), greatest)
    begin = logits + sentence.to(tl.int64) * BEAM * stride
    for n in range(banned_count):
        this = tl.load(banned_blocks + n)
        allowed = _allowed(this * BLOCK + offset, is_banned, must_end, vocab_size, END) & (row < BEAM)
        logit = tl.load(begin + row * stride + this * BLOCK + offset, allowed, -float("inf")).to(tl.float32)
        greatest = tl.where(block == this, tl.max(logit, 1)[:, None], greatest)
    index = _index_of(_greatest(_key(greatest + past[:, None], row * COLUMNS + block), COUNT, PLACES))
    parent, is_candidate = (index // COLUMNS)[:, None], (tl.arange(0, PLACES) < COUNT)[:, None]
    token = (index % COLUMNS)[:, None] * BLOCK + offset
    allowed = _allowed(token, is_banned, must_end, vocab_size, END) & is_candidate & (parent < BEAM)
    total = tl.load(begin + parent * stride + token, allowed, -float("inf")).to(tl.float32)
    total += tl.sum(tl.where(parent == hypothesis[None, :], past[None, :], 0.0), 1)[:, None]
    keys = tl.where(is_candidate, _key(total, parent * (COLUMNS * BLOCK) + token), LOWEST_KEY)
    best = _greatest(keys, COUNT, PLACES)
    index, n = _index_of(best), tl.arange(0, PLACES)
    # If there are fewer than COUNT continuations, the rest may lie outside of the beam or the vocabulary.
    tl.store(totals + sentence * COUNT + n, _value_of(best), n < COUNT)
    tl.store(parents + sentence * COUNT + n, tl.minimum(index // (COLUMNS * BLOCK), BEAM - 1), n < COUNT)
    tl.store(ids + sentence * COUNT + n, tl.minimum(index % (COLUMNS * BLOCK), vocab_size - 1), n < COUNT)


# `rows` changes with the batch. Specialised, it would make Triton compile up to three kernels.
@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _advance(new_totals: tl.tensor, parents: tl.tensor, ids: tl.tensor, clock: tl.tensor, tokens: tl.tensor,
             totals: tl.tensor, ancestors: tl.tensor, history: tl.tensor, done: tl.tensor, counts: tl.tensor,
             finished_totals: tl.tensor, finished_ends: tl.tensor, rows: tl.tensor, finished_places: tl.tensor,
             finished_per_sentence: tl.tensor, END: tl.constexpr, BEAM: tl.constexpr, ROWS: tl.constexpr,
             COUNT: tl.constexpr, PLACES: tl.constexpr, POSITIONS: tl.constexpr) -> None:
    """Advance the sentence whose index is the program id."""
    sentence, position, n = tl.program_id(0), tl.load(clock).to(tl.int32), tl.arange(0, PLACES)
    total = tl.load(new_totals + sentence * COUNT + n, n < COUNT, -float("inf"))
    parent = tl.load(parents + sentence * COUNT + n, n < COUNT, 0)
    token = tl.load(ids + sentence * COUNT + n, n < COUNT, 0)
    possible = total > -float("inf")                                            # False for NaN
    finishes = ((token == END) & possible & (n < BEAM)).to(tl.int32)
    count = tl.load(counts + sentence)
    place = sentence * finished_places + count + tl.cumsum(finishes, 0) - 1
    tl.store(finished_totals + place, total, finishes == 1)
    tl.store(finished_ends + place, position * BEAM + parent, finishes == 1)
    continues = ((token != END) & possible).to(tl.int32)
    continuing, count = tl.sum(continues, 0), count + tl.sum(finishes, 0)
    is_done = (count >= finished_per_sentence) | (continuing == 0)
    tl.store(counts + sentence, count)
    tl.store(done + sentence, is_done.to(done.dtype.element_ty))
    # The new places in the beam: those that continue come first, otherwise the order stays.
    rank = tl.where(continues == 1, tl.cumsum(continues, 0) - 1, continuing + n - tl.cumsum(continues, 0))
    row = sentence * BEAM + rank
    tl.store(tokens + row, token, rank < BEAM)
    tl.store(totals + row, tl.where((continues == 1) & (is_done == 0), total, -float("inf")), rank < BEAM)
    tl.store(history + position * rows + row, token * BEAM + parent, rank < BEAM)
    hypothesis = tl.arange(0, ROWS)
    continued = sentence * BEAM + tl.sum(tl.where(rank[None, :] == hypothesis[:, None], parent[None, :], 0), 1)
    new_row = sentence * BEAM + hypothesis
    tl.store(ancestors + position * rows + new_row, (tl.load(clock + 1) + continued).to(tl.int32), hypothesis < BEAM)
    if BEAM > 1:
        for begin in range(0, position, POSITIONS):
            earlier = (begin + tl.arange(0, POSITIONS))[:, None]
            exists = (earlier < position) & (hypothesis < BEAM)[None, :]
            ancestor = tl.load(ancestors + earlier * rows + continued[None, :], exists, 0)
            tl.debug_barrier()                                                  # all loads come before the first store
            tl.store(ancestors + earlier * rows + new_row[None, :], ancestor, exists)
