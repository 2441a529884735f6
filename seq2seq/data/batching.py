"""Packed batches: planning of an epoch's optimizer steps, and gathering of their tokens into flat arrays.

Token ids are stored in flat arrays with offsets (`EncodedCorpus`, memory-mapped by `preparation`). An epoch is
planned as index arrays, and a batch is gathered in one operation, without worker processes and without padding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.tokenizers.tokenizer import END_ID, START_ID

IGNORE_INDEX = -100
"""Target id of positions that only fill a fixed shape; loss and metrics ignore it."""

# Multiples that the numbers of tokens and sentences of a batch are rounded up to on a CPU.
ROUND_TOKENS, ROUND_SENTENCES = 64, 8
# Cost of one more group of similar length, in padded attention scores: small enough that a long tail of lengths is
# split off, large enough that image captions (2,048 tokens a step) stay together. From timings of three models on one
# core.
GROUP_PLACES = 700_000
# Most groups that a micro-batch is split into.
MOST_GROUPS = 32


@dataclass(frozen=True)
class Batch:
    """Packed batch: the sentence pairs concatenated.

    source: (source_tokens,) int64, every sentence closed by `</s>`.
    source_offsets: (sentences + 1,) int32, first token of each sentence. source_positions: (source_tokens,) int64, from
        0.
    longest_source: tokens of the longest source, known on the host to avoid waiting for the device.
    target_input: (target_tokens,) int64, begins with the start symbol.
    target_output: (target_tokens,) int64, target_input shifted by one; ends with `</s>`.
    target_offsets, target_positions, longest_target: likewise.
    target_count: number of target tokens that count in the loss.
    """

    source: Tensor
    source_offsets: Tensor
    source_positions: Tensor
    longest_source: int
    target_input: Tensor
    target_output: Tensor
    target_offsets: Tensor
    target_positions: Tensor
    longest_target: int
    target_count: int

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        if self.source.device == device:
            return self
        moved: dict[str, Any] = {
            field.name: (value.pin_memory() if device.type == "cuda" else value).to(device, non_blocking=True)
            for field in fields(self) if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True)
class EncodedSide:
    """Sentences of one language as ids, each closed by `</s>`.

    ids: (tokens,) uint16 or uint32, often memory-mapped. offsets: (sentences + 1,) int64.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence, (sentences,), `</s>` included; computed at each access."""
        return np.diff(self.offsets)

    def lengths_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the lengths of some sentences, (indices,), without computing those of the whole corpus."""
        lengths: np.ndarray = self.offsets[indices + 1] - self.offsets[indices]
        return lengths

    @staticmethod
    def from_lists(sentences: Sequence[Sequence[int]]) -> EncodedSide:
        """Build from the ids of each sentence; adds `</s>`."""
        offsets = np.zeros(len(sentences) + 1, np.int64)
        np.cumsum([len(sentence) + 1 for sentence in sentences], out=offsets[1:])
        ids = np.fromiter((token for sentence in sentences for token in (*sentence, END_ID)), np.int64, offsets[-1])
        return EncodedSide(ids, offsets)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return some sentences as flat arrays: ids (tokens,) int64, offsets (sentences + 1,), positions (tokens,)."""
        begins, lengths = self.offsets[indices], self.lengths_of(indices)
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        ids = self.ids[positions + np.repeat(begins, lengths)].astype(np.int64)
        return ids, offsets, positions


@dataclass(frozen=True)
class EncodedCorpus:
    """Sentence pairs as ids.

    weights: (pairs,) float, number of times that each pair is seen in an epoch; None: once.
    lines: (pairs,) int64, line number of each pair in its corpus; None if it is not needed.
    """

    source: EncodedSide
    target: EncodedSide
    weights: np.ndarray | None = None
    lines: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Shape:
    """Fixed size that batches are filled to, so that many batches share one compiled program or set of kernels.

    source_tokens, target_tokens, sentences: size of the filled batch.
    longest_source, longest_target: largest length of a sentence, in tokens.
    """

    source_tokens: int
    target_tokens: int
    sentences: int
    longest_source: int
    longest_target: int

    @staticmethod
    def for_corpus(corpus: EncodedCorpus, batch_tokens: int, accumulation: int, longest: int) -> Shape:
        """Return one shape for all micro-batches of `plan_epoch` with the same arguments.

        longest: largest length of a sentence, in tokens. A rare micro-batch that is too large is
            split by `split_to_shape`.
        """
        target = -(-batch_tokens // accumulation) + longest
        ratio = max(1.0, 1.1 * int(corpus.source.offsets[-1]) / int(corpus.target.offsets[-1]))
        source = int(target * ratio) + longest
        # Dummy sentences need a token on each side; a real target sentence has at least two.
        dummies = -(-source // longest) + 2
        return Shape(source + dummies, target + dummies, target // 2 + dummies, longest, longest)

    @staticmethod
    def rounded(corpus: EncodedCorpus, pairs: np.ndarray, longest: int) -> Shape:
        """Return the smallest of a few rounded shapes that `pairs` fit into; sentences have at most `longest` tokens.

        oneDNN generates code for every new size of a matrix product. Without rounding, that takes a fifth of a training
        step on a CPU, and the generated code occupies gigabytes.
        """
        source, target = corpus.source.lengths_of(pairs), corpus.target.lengths_of(pairs)
        longest_source, longest_target = (min(longest, _round_up(int(side.max()), 4)) for side in (source, target))
        shortest = min(longest_source, longest_target)
        # Room for the dummy sentences, so that each of them has at least a token on each side.
        room = -(-(ROUND_TOKENS + shortest) // (shortest - 1))
        source_tokens = _round_up(int(source.sum()) + room, ROUND_TOKENS)
        target_tokens = _round_up(int(target.sum()) + room, ROUND_TOKENS)
        sentences = _round_up(len(pairs) + room, ROUND_SENTENCES)
        return Shape(source_tokens, target_tokens, sentences, longest_source, longest_target)

    def dummies(self, source_tokens: int, target_tokens: int) -> int:
        """Return the number of dummy sentences that fill up a batch with these numbers of tokens."""
        return max(-(-(self.source_tokens - source_tokens) // self.longest_source),
                   -(-(self.target_tokens - target_tokens) // self.longest_target))

    def holds(self, source_tokens: int, target_tokens: int, sentences: int) -> bool:
        """Return True if a batch of this size can be filled up.

        Each dummy sentence needs tokens on both sides, because attention of a query without keys is undefined.
        """
        dummies = self.dummies(source_tokens, target_tokens)
        return (min(self.source_tokens - source_tokens, self.target_tokens - target_tokens) >= dummies
                and self.sentences - sentences >= dummies)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def split_to_shape(corpus: EncodedCorpus, pairs: np.ndarray, shape: Shape) -> Iterator[np.ndarray]:
    """Yield the micro-batch, or halves of it as long as it does not fit into `shape`.

    The gradients of an optimizer step are summed over its micro-batches, so that the split does not change the result.

    Raises:
        ValueError: a single pair does not fit.
    """
    source, target = int(corpus.source.lengths_of(pairs).sum()), int(corpus.target.lengths_of(pairs).sum())
    if shape.holds(source, target, len(pairs)):
        yield pairs
    elif len(pairs) == 1:
        raise ValueError(f"a pair of {source} source and {target} target tokens does not fit into {shape}")
    else:
        yield from split_to_shape(corpus, pairs[::2], shape)
        yield from split_to_shape(corpus, pairs[1::2], shape)


def gather(corpus: EncodedCorpus, indices: np.ndarray, fill: Shape | None = None) -> Batch:
    """Gather the pairs `indices` into a packed batch.

    fill: shape to fill the batch up to, with dummy sentences that the loss ignores, so that the offsets cover every
        token, and with empty sentences. None: no filling.
    Raises:
        ValueError: the pairs do not fit into `fill`.
    """
    source, source_offsets, source_positions = corpus.source.gather(indices)
    target, target_offsets, target_positions = corpus.target.gather(indices)
    longest_source, longest_target = int(np.diff(source_offsets).max()), int(np.diff(target_offsets).max())
    count = len(target)
    target_input = np.empty_like(target)
    target_input[1:] = target[:-1]
    target_input[target_offsets[:-1]] = START_ID
    if fill is not None:
        source_tail, target_tail = _tail_lengths(len(source), len(target), len(indices), fill)
        source = _extend(source, END_ID, fill.source_tokens)
        target = _extend(target, IGNORE_INDEX, fill.target_tokens)
        target_input = _extend(target_input, END_ID, fill.target_tokens)
        source_offsets = np.concatenate([source_offsets, source_offsets[-1] + np.cumsum(source_tail)])
        target_offsets = np.concatenate([target_offsets, target_offsets[-1] + np.cumsum(target_tail)])
        source_positions, target_positions = _positions(source_offsets), _positions(target_offsets)
        longest_source, longest_target = fill.longest_source, fill.longest_target
    return Batch(
        torch.from_numpy(source), torch.from_numpy(source_offsets.astype(np.int32)),
        torch.from_numpy(source_positions), longest_source,
        torch.from_numpy(target_input), torch.from_numpy(target),
        torch.from_numpy(target_offsets.astype(np.int32)), torch.from_numpy(target_positions), longest_target, count,
    )


def split_by_length(corpus: EncodedCorpus, pairs: np.ndarray) -> list[np.ndarray]:
    """Split a micro-batch, shortest target first, into groups of similar length, each of which is padded by itself.

    Dynamic programming over splits at multiples of `ROUND_SENTENCES`: minimises the padded attention scores, (source +
    target length)^2 per sentence, plus `GROUP_PLACES` per group.
    """
    block = _round_up(-(-len(pairs) // MOST_GROUPS), ROUND_SENTENCES)
    begins = list(range(0, len(pairs), block))
    longest = [np.maximum.reduceat(side.lengths_of(pairs), begins).tolist() for side in (corpus.source, corpus.target)]
    fewest: list[tuple[float, list[int]]] = [(0, [])]                           # cost and cuts of the first n blocks
    for last, begin in enumerate(begins):
        end, source, target, ways = min(begin + block, len(pairs)), 0, 0, []
        for first in range(last, -1, -1):
            source, target = max(source, longest[0][first]), max(target, longest[1][first])
            before, cuts = fewest[first]
            places = (end - begins[first]) * (source + target) ** 2
            ways.append((before + places + GROUP_PLACES, [*cuts, begins[first]]))
        fewest.append(min(ways))
    return np.split(pairs, fewest[-1][1][1:])


def _extend(ids: np.ndarray, value: int, length: int) -> np.ndarray:
    return np.concatenate([ids, np.full(length - len(ids), value, ids.dtype)])


def _positions(offsets: np.ndarray) -> np.ndarray:
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _tail_lengths(source_tokens: int, target_tokens: int, sentences: int, fill: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the dummy sentences on each side, (fill.sentences - sentences,)."""
    if not fill.holds(source_tokens, target_tokens, sentences):
        raise ValueError(f"{source_tokens} source and {target_tokens} target tokens in {sentences} sentences "
                         f"cannot be filled to {fill}")
    dummies = fill.dummies(source_tokens, target_tokens)
    tails = np.zeros((2, fill.sentences - sentences), np.int64)
    if dummies:
        for side, rest in enumerate((fill.source_tokens - source_tokens, fill.target_tokens - target_tokens)):
            tails[side, :dummies] = rest // dummies
            tails[side, :rest % dummies] += 1
    return tails[0], tails[1]


def derived_seed(*numbers: int | str) -> int:
    """Return a seed below 2^63 that is a hash of `numbers`."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def plan_epoch(corpus: EncodedCorpus, batch_tokens: int, accumulation: int, seed: int,
               epoch: int) -> list[list[np.ndarray]]:
    """Assign the pairs of the corpus to the optimizer steps of an epoch, as a function of (seed, epoch).

    Every pair is in exactly one step (in `weight` steps on average if the corpora have weights). A step holds at most
    `batch_tokens` target tokens and a proportional number of source tokens, or a single longer pair. Its pairs are
    drawn at random, long and short ones together: with steps of equal lengths, training is slower, because each step
    pulls the model towards its own length (benchmarks/README.md, Learning).

    Returns:
        For each step up to `accumulation` micro-batches, each an array of pair indices, shortest target first.
    """
    source_lengths, target_lengths = corpus.source.lengths, corpus.target.lengths
    return [_micro_batches(step, source_lengths, target_lengths, accumulation)
            for step in draw_steps(corpus, batch_tokens, seed, epoch)]


def draw_steps(corpus: EncodedCorpus, batch_tokens: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Yield the pairs of each step of `plan_epoch`, in the order in which they were drawn. Reads the lengths only."""
    random = np.random.default_rng(derived_seed(seed, "epoch", epoch))
    order = random.permutation(_copies(corpus, random))
    source_lengths, target_lengths = corpus.source.lengths, corpus.target.lengths
    # Target tokens decide where a step ends; the bound on source tokens keeps steps with long sources small.
    source_budget = batch_tokens * max(1.0, 1.1 * source_lengths.sum() / target_lengths.sum())
    return _cut(order, source_lengths, target_lengths, source_budget, batch_tokens)


def _copies(corpus: EncodedCorpus, random: np.random.Generator) -> np.ndarray:
    indices = np.arange(len(corpus))
    if corpus.weights is None:
        return indices
    whole = np.floor(corpus.weights)
    once_more = random.random(len(corpus)) < corpus.weights - whole
    return np.repeat(indices, (whole + once_more).astype(np.int64))


def _cut(order: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, source_budget: float,
         target_budget: float) -> Iterator[np.ndarray]:
    source_ends, target_ends = np.cumsum(source_lengths[order]), np.cumsum(target_lengths[order])
    begin = 0
    while begin < len(order):
        source_before = source_ends[begin - 1] if begin else 0
        target_before = target_ends[begin - 1] if begin else 0
        end = min(
            np.searchsorted(source_ends, source_before + source_budget, side="right"),
            np.searchsorted(target_ends, target_before + target_budget, side="right"),
        )
        end = max(int(end), begin + 1)
        yield order[begin:end]
        begin = end


def _micro_batches(step: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray,
                   accumulation: int) -> list[np.ndarray]:
    """Split a step into micro-batches with nearly equal numbers of source and target tokens.

    Pairs are sorted by target length, within small groups by source length, and dealt out to the micro-batches,
    forwards and backwards in turn.
    """
    step = step[np.lexsort((source_lengths[step], target_lengths[step]))]
    numbers = np.arange(len(step))
    step = step[np.lexsort((source_lengths[step], numbers // (4 * accumulation)))]
    round_of, place = np.divmod(numbers, accumulation)
    micro_batch_of = np.where(round_of % 2 == 0, place, accumulation - 1 - place)
    micro_batches = [step[micro_batch_of == number] for number in range(min(accumulation, len(step)))]
    return [pairs[np.argsort(target_lengths[pairs], kind="stable")] for pairs in micro_batches]


def batches_in_order(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield the indices of batches of at most `batch_tokens` padded tokens.

    The longest sentences come first, so that a lack of memory shows at once.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        size = max(1, batch_tokens // int(lengths[order[begin]]))
        yield order[begin : begin + size]
        begin += size
