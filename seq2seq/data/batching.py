"""Packed batches: corpora as arrays of token ids, and batches of sentence pairs gathered from them.

The token ids of each side of a corpus are one flat array. A second array contains the index of each sentence's first
token (see `EncodedSide`). preparation.py memory-maps both arrays. The plan of an epoch (epoch_plan.py) consists of
arrays of pair indices. NumPy copies the tokens of a batch in one call per side, so no worker processes are needed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seq2seq.devices import copy_to_device
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IGNORE_INDEX = -100
"""Target id of positions that were added to fill a batch up to a `Shape`. Loss and metrics ignore them."""

# `Shape.rounded` rounds the numbers of tokens and of sentences in a batch up to multiples of these numbers.
TOKEN_MULTIPLE, SENTENCE_MULTIPLE = 64, 8
# `split_by_length` makes one more group of sentences only if this saves more than GROUP_COST attention scores, which
# would be computed for padding. With this value, a few very long sentences get a separate group, but a step of 2,048
# tokens of image captions stays in one group. The value was chosen by timing three models on one core.
GROUP_COST = 700_000
# A fixed shape is larger than the largest micro-batch of the first epoch by this factor, as room for later epochs.
SHAPE_ROOM = 1.02
MAX_GROUPS = 32                                 # maximum number of groups that a micro-batch is split into
ATTENTION_BLOCK = 128                           # positions for which variable-length attention starts a block


@dataclass(frozen=True)
class Batch:
    """Packed batch: sentence pairs, concatenated without padding.

    source: (source_tokens,) int64, every sentence ends with `</s>`.
    source_offsets: (sentences + 1,) int32, index of the first token of each sentence, then the number of tokens.
    source_positions: (source_tokens,) int64, position of each token in its sentence, from 0.
    longest_source: number of tokens of the longest source sentence; `Shape.longest_source` if the batch was filled up
        to a shape. It is a Python number, because reading a number from a tensor would wait for the GPU.
    target_input: (target_tokens,) int64, every sentence begins with `<s>`.
    target_output: (target_tokens,) int64, the token after each token of target_input; every sentence ends with `</s>`.
    target_offsets, target_positions, longest_target: as for the source.
    target_count: number of target tokens in the loss; tokens of dummy sentences (see `Shape`) are not counted.
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
        tensors: dict[str, Any] = {
            field.name: copy_to_device(value, device)
            for field in fields(self) if not isinstance(value := getattr(self, field.name), int)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class EncodedSide:
    """Sentences of one language as token ids, each with `</s>` at its end.

    ids: (tokens,), memory-mapped uint16 or uint32, or int64 from `from_lists`. offsets: (sentences + 1,) int64.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Length of each sentence in tokens, (sentences,), `</s>` included. Computed at every access."""
        return np.diff(self.offsets)

    def lengths_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the length in tokens of each sentence in `indices`. Argument and result have the shape (sentences,).

        Unlike `lengths`, this method does not compute the lengths of all other sentences.
        """
        lengths: np.ndarray = self.offsets[indices + 1] - self.offsets[indices]
        return lengths

    @staticmethod
    def from_lists(sentences: Sequence[Sequence[int]]) -> EncodedSide:
        """Build a side from the ids of its sentences, and append `</s>` to each sentence."""
        offsets = np.zeros(len(sentences) + 1, np.int64)
        np.cumsum([len(sentence) + 1 for sentence in sentences], out=offsets[1:])
        ids = np.fromiter((token for sentence in sentences for token in (*sentence, END_ID)), np.int64, offsets[-1])
        return EncodedSide(ids, offsets)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the concatenated sentences with these indices: token ids, (tokens,) int64; offsets, (sentences + 1,);
        positions, (tokens,). See `Batch`."""
        begins, lengths = self.offsets[indices], self.lengths_of(indices)
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        ids = self.ids[positions + np.repeat(begins, lengths)].astype(np.int64)
        return ids, offsets, positions


@dataclass(frozen=True)
class EncodedCorpus:
    """Sentence pairs as token ids.

    weights: (pairs,) float, average number of times that each pair occurs in an epoch; None: each pair occurs once.
    lines: (pairs,) int64, line number of each pair in its corpus; None if the numbers are not needed.
    """

    source: EncodedSide
    target: EncodedSide
    weights: np.ndarray | None = None
    lines: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.source)

    def with_reversed(self) -> EncodedCorpus:
        """Return a corpus in memory: the pairs of this corpus, then these pairs with source and target exchanged."""
        def joined(one: EncodedSide, other: EncodedSide) -> EncodedSide:
            return EncodedSide(np.concatenate([one.ids, other.ids]),
                               np.concatenate([one.offsets, one.offsets[-1] + other.offsets[1:]]))

        weights, lines = (None if array is None else np.tile(array, 2) for array in (self.weights, self.lines))
        return EncodedCorpus(joined(self.source, self.target), joined(self.target, self.source), weights, lines)

    def tokens(self, micro_batches: Iterable[np.ndarray]) -> tuple[int, int]:
        """Return the numbers of source and of target tokens in `micro_batches`, which are arrays of pair indices."""
        pairs = np.concatenate(list(micro_batches))
        return int(self.source.lengths_of(pairs).sum()), int(self.target.lengths_of(pairs).sum())


@dataclass(frozen=True)
class Shape:
    """Fixed shape that batches are filled up to, so that many batches use the same compiled program or kernels.

    source_tokens, target_tokens, sentences: size of the filled batch. Dummy sentences, which the loss ignores, fill it.
    longest_source, longest_target: maximum length of a sentence, in tokens.
    """

    source_tokens: int
    target_tokens: int
    sentences: int
    longest_source: int
    longest_target: int

    @staticmethod
    def for_plan(corpus: EncodedCorpus, plan: Iterable[Iterable[np.ndarray]], longest: int, grow: bool = True) -> Shape:
        """Return one shape for all micro-batches of a training.

        Each size is SHAPE_ROOM times the largest size in the first epoch, plus room for dummy sentences. If a later
        epoch has a larger micro-batch, `split_to_shape` splits it. A larger shape would waste memory: in its backward
        pass, variable-length attention allocates ATTENTION_BLOCK rows for every sentence, even for an empty one.

        plan: micro-batches of each step of the first epoch. longest: maximum length of a sentence, in tokens.
        grow: True if sentences of later epochs may have more tokens than those of this corpus.
        """
        if not grow and len(corpus):
            # For each sentence, however short, the attention kernel starts as many blocks as for the longest.
            found = max(int(side.lengths.max()) for side in (corpus.source, corpus.target))
            longest = min(longest, _round_up(found, ATTENTION_BLOCK))
        batches = [pairs for step in plan for pairs in step]                    # none if the first epoch draws no pair
        sizes = [[int(side.lengths_of(pairs).sum()) for pairs in batches]
                 for side in (corpus.source, corpus.target)]
        source, target, sentences = (math.ceil(SHAPE_ROOM * max((0, *size))) for size in (*sizes, map(len, batches)))
        source, target = max(source, longest), max(target, longest)
        # Each of the dummy sentences that fill up a batch needs at least one token on both sides, even on a side that
        # is already full.
        dummies = -(-max(source, target) // longest) + 2
        return Shape(source + dummies, target + dummies, sentences + dummies, longest, longest)

    @staticmethod
    def rounded(corpus: EncodedCorpus, pairs: np.ndarray, longest: int) -> Shape:
        """Return the shape of the batch of `pairs`, rounded up so that few different shapes occur.

        oneDNN generates code for every new size of a matrix product. Without rounding, code generation takes a fifth of
        the time of a training step on a CPU, and the generated code occupies gigabytes of memory.

        longest: maximum length of a sentence, in tokens.
        """
        source, target = corpus.source.lengths_of(pairs), corpus.target.lengths_of(pairs)
        longest_source, longest_target = (min(longest, _round_up(int(side.max()), 4)) for side in (source, target))
        shortest = min(longest_source, longest_target)
        # Maximum number of dummy sentences. Each dummy sentence needs at least one token on each side.
        max_dummies = -(-(TOKEN_MULTIPLE + shortest) // (shortest - 1))
        source_tokens = _round_up(int(source.sum()) + max_dummies, TOKEN_MULTIPLE)
        target_tokens = _round_up(int(target.sum()) + max_dummies, TOKEN_MULTIPLE)
        sentences = _round_up(len(pairs) + max_dummies, SENTENCE_MULTIPLE)
        return Shape(source_tokens, target_tokens, sentences, longest_source, longest_target)

    def dummies_needed(self, source_tokens: int, target_tokens: int) -> int:
        """Return the number of dummy sentences that fill up a batch of these sizes to this shape."""
        return max(-(-(self.source_tokens - source_tokens) // self.longest_source),
                   -(-(self.target_tokens - target_tokens) // self.longest_target))

    def fits(self, source_tokens: int, target_tokens: int, sentences: int) -> bool:
        """Return True if a batch of these sizes can be filled up to the shape.

        Each dummy sentence needs tokens on both sides, because the attention of a query without keys is undefined.
        """
        dummies = self.dummies_needed(source_tokens, target_tokens)
        return (min(self.source_tokens - source_tokens, self.target_tokens - target_tokens) >= dummies
                and self.sentences - sentences >= dummies)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def split_to_shape(corpus: EncodedCorpus, pairs: np.ndarray, shape: Shape) -> Iterator[np.ndarray]:
    """Yield the micro-batch `pairs`, split in half until each part fits into `shape`.

    The gradients of an optimizer step are summed over its micro-batches, so the split changes only the dropout masks.

    Raises:
        ValueError: a single pair does not fit.
    """
    source, target = int(corpus.source.lengths_of(pairs).sum()), int(corpus.target.lengths_of(pairs).sum())
    if shape.fits(source, target, len(pairs)):
        yield pairs
    elif len(pairs) == 1:
        raise ValueError(f"a pair of {source} source and {target} target tokens does not fit into {shape}")
    else:
        yield from split_to_shape(corpus, pairs[::2], shape)
        yield from split_to_shape(corpus, pairs[1::2], shape)


def gather(corpus: EncodedCorpus, indices: np.ndarray, fill: Shape | None = None) -> Batch:
    """Gather the pairs `indices` into a packed batch of tensors, on the CPU.

    fill: shape that the batch is filled up to; None: the batch is not filled up. Dummy sentences are added until the
        batch has the shape's numbers of tokens, then empty sentences until it has the shape's number of sentences.
    Raises:
        ValueError: the pairs do not fit into `fill`, or a sentence is too long for it.
    """
    import torch

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
        if longest_source > fill.longest_source or longest_target > fill.longest_target:
            raise ValueError(f"a sentence of {max(longest_source, longest_target)} tokens is too long for {fill}")
        longest_source, longest_target = fill.longest_source, fill.longest_target
    return Batch(
        torch.from_numpy(source), torch.from_numpy(source_offsets.astype(np.int32)),
        torch.from_numpy(source_positions), longest_source,
        torch.from_numpy(target_input), torch.from_numpy(target),
        torch.from_numpy(target_offsets.astype(np.int32)), torch.from_numpy(target_positions), longest_target, count,
    )


def split_by_length(corpus: EncodedCorpus, pairs: np.ndarray) -> list[np.ndarray]:
    """Split a micro-batch, whose pairs are in order of target length, into groups that attention pads separately.

    Dynamic programming finds the groups with the lowest total cost. A group costs `GROUP_COST` plus an estimate of its
    attention scores with padding: (longest source + longest target)^2 for each pair. Groups consist of blocks of
    consecutive pairs. The size of a block is a multiple of `SENTENCE_MULTIPLE`.
    """
    block = _round_up(-(-len(pairs) // MAX_GROUPS), SENTENCE_MULTIPLE)
    begins = list(range(0, len(pairs), block))
    longest = [np.maximum.reduceat(side.lengths_of(pairs), begins).tolist() for side in (corpus.source, corpus.target)]
    # best[n]: lowest cost of the first n blocks, and the position in `pairs` at which each group begins.
    best: list[tuple[float, list[int]]] = [(0, [])]
    for last, begin in enumerate(begins):
        end, source, target, candidates = min(begin + block, len(pairs)), 0, 0, []
        for first in range(last, -1, -1):                                       # the last group: blocks[first..last]
            source, target = max(source, longest[0][first]), max(target, longest[1][first])
            cost, splits = best[first]
            padded_scores = (end - begins[first]) * (source + target) ** 2
            candidates.append((cost + padded_scores + GROUP_COST, [*splits, begins[first]]))
        best.append(min(candidates))
    return np.split(pairs, best[-1][1][1:])


def _extend(ids: np.ndarray, value: int, length: int) -> np.ndarray:
    return np.concatenate([ids, np.full(length - len(ids), value, ids.dtype)])


def _positions(offsets: np.ndarray) -> np.ndarray:
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _tail_lengths(source_tokens: int, target_tokens: int, sentences: int, fill: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the dummy and empty sentences on each side, (fill.sentences - sentences,)."""
    if not fill.fits(source_tokens, target_tokens, sentences):
        raise ValueError(f"{source_tokens} source and {target_tokens} target tokens in {sentences} sentences "
                         f"cannot be filled up to {fill}")
    dummies = fill.dummies_needed(source_tokens, target_tokens)
    tails = np.zeros((2, fill.sentences - sentences), np.int64)
    if dummies:
        for side, missing in enumerate((fill.source_tokens - source_tokens, fill.target_tokens - target_tokens)):
            tails[side, :dummies] = missing // dummies
            tails[side, :missing % dummies] += 1
    return tails[0], tails[1]


def derived_seed(*numbers: int | str) -> int:
    """Return a seed below 2^63 that is a hash of `numbers`."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
