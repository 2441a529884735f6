"""Packed batches: corpora as arrays of token ids, and batches of sentence pairs gathered from them.

The token ids of each side of a corpus are one flat array. A second array contains the index of each sentence's first
token (see `EncodedSide`). preparation.py memory-maps both arrays. The plan of an epoch (epoch_plan.py) consists of
arrays of pair indices. NumPy copies the tokens of a batch in one call per side, so no worker processes are needed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seq2seq.devices import copy_to_device
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IGNORE_INDEX = -100
"""Target id of tokens that were added to fill a batch up to a `Shape`. Loss and metrics ignore them."""

# Numbers of tokens and of sentences, and the length of the longest sentence, are rounded up to multiples of these
# numbers, so that few different sizes occur. oneDNN generates code for every new size of a matrix product. Without
# rounding, code generation takes a fifth of the time of a training step on a CPU, and the code occupies gigabytes.
TOKEN_MULTIPLE, SENTENCE_MULTIPLE, LENGTH_MULTIPLE = 64, 8, 4
# `split_by_length` makes one more group of sentences only if this saves more than GROUP_COST attention scores, which
# would be computed for padding. With this value, a few very long sentences get a separate group, but a step of 2,048
# tokens of image captions stays in one group. The value was chosen by timing three models on one core.
GROUP_COST = 700_000
# A fixed shape is larger than the largest micro-batch of the first epoch by these factors. With less room, too many
# micro-batches of later epochs are split; tokens cost time, empty sentences do not.
TOKEN_ROOM, SENTENCE_ROOM = 1.005, 1.1
MAX_GROUPS = 32                                 # maximum number of groups that a micro-batch is split into


@dataclass(frozen=True)
class Batch:
    """Packed batch: sentence pairs, concatenated without padding, and a tail of tokens that are in no sentence.

    source: (source_tokens,) int64, every sentence ends with `</s>`; the tail is all `</s>`.
    source_offsets: (sentences + 1,) int32, index of the first token of each sentence, then the end of the last one.
        Empty sentences at the end fill up the number of sentences.
    source_positions: (source_tokens,) int64, position of each token in its sentence, from 0; 0 in the tail.
    longest_source: number of tokens of the longest source sentence, or more. It is a Python number, because reading a
        number from a tensor would wait for the GPU.
    target_input: (target_tokens,) int64, every sentence begins with `<s>`.
    target_output: (target_tokens,) int64, the token after each token of target_input; every sentence ends with `</s>`;
        IGNORE_INDEX in the tail.
    target_offsets, target_positions, longest_target: as for the source.
    target_count: number of target tokens in the loss.
    filled: False if there is no tail.
    copies: number of equal parts that the tensors of tokens consist of. The offsets are those of one part, and each
        part has its own tail.
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
    filled: bool = False
    copies: int = 1

    def to(self, device: torch.device) -> Batch:
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

    def tokens(self, micro_batches: Iterable[np.ndarray]) -> tuple[int, int]:
        """Return the numbers of source and of target tokens in `micro_batches`, which are arrays of pair indices."""
        pairs = np.concatenate(list(micro_batches))
        return int(self.source.lengths_of(pairs).sum()), int(self.target.lengths_of(pairs).sum())


@dataclass(frozen=True)
class Shape:
    """Size that batches are filled up to, so that many batches use the same compiled program, kernels or CUDA graph."""

    source_tokens: int
    target_tokens: int
    sentences: int

    @staticmethod
    def of(corpus: EncodedCorpus, pairs: np.ndarray) -> Shape:
        """Return the size of the batch of `pairs`."""
        source, target = (int(side.lengths_of(pairs).sum()) for side in (corpus.source, corpus.target))
        return Shape(source, target, len(pairs))

    @staticmethod
    def for_plan(corpus: EncodedCorpus, plan: Iterable[Iterable[np.ndarray]], max_length: int) -> Shape:
        """Return one shape for all micro-batches of a training, a little larger than those of the first epoch.

        If a later epoch has a larger micro-batch, `split_to_shape` splits it.

        plan: micro-batches of each step of the first epoch. max_length: maximum number of tokens of a sentence. Every
        single pair fits into the shape.
        """
        sizes = [astuple(Shape.of(corpus, pairs)) for step in plan for pairs in step]
        source, target, sentences = np.max([(max_length, max_length, 1), *sizes], 0).tolist()
        return Shape(math.ceil(TOKEN_ROOM * source), math.ceil(TOKEN_ROOM * target),
                     math.ceil(SENTENCE_ROOM * sentences))

    def rounded(self) -> Shape:
        """Return the shape with all sizes rounded up, so that few different shapes occur."""
        return Shape(_round_up(self.source_tokens, TOKEN_MULTIPLE), _round_up(self.target_tokens, TOKEN_MULTIPLE),
                     _round_up(self.sentences, SENTENCE_MULTIPLE))

    def fits_into(self, other: Shape) -> bool:
        """Return True if a batch of this shape can be filled up to the other one."""
        return all(own <= size for own, size in zip(astuple(self), astuple(other), strict=True))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def split_to_shape(corpus: EncodedCorpus, pairs: np.ndarray, shape: Shape) -> Iterator[np.ndarray]:
    """Yield the micro-batch `pairs`, split in half until each part fits into `shape`.

    The gradients of an optimizer step are summed over its micro-batches, so the split changes only the dropout masks.

    Raises:
        ValueError: a single pair does not fit.
    """
    size = Shape.of(corpus, pairs)
    if size.fits_into(shape):
        yield pairs
    elif len(pairs) == 1:
        raise ValueError(f"a pair of {size.source_tokens} source and {size.target_tokens} target tokens does not fit "
                         f"into {shape}")
    else:
        yield from split_to_shape(corpus, pairs[::2], shape)
        yield from split_to_shape(corpus, pairs[1::2], shape)


def gather(corpus: EncodedCorpus, indices: np.ndarray, fill: Shape | None = None, max_length: int = 0) -> Batch:
    """Gather the pairs `indices` into a packed batch of tensors, on the CPU.

    Args:
        fill: shape that the batch is filled up to by a tail on each side and by empty sentences; None: the batch is not
            filled up.
        max_length: maximum number of tokens of a sentence. Up to this number, the lengths of the longest sentences are
            rounded up. 0: they are not rounded.
    Raises:
        ValueError: the pairs do not fit into `fill`.
    """
    import torch

    own = Shape.of(corpus, indices)
    size = fill or own
    if not own.fits_into(size):
        raise ValueError(f"a batch of {own} cannot be filled up to {size}")
    source, source_offsets, source_positions = corpus.source.gather(indices)
    target, target_offsets, target_positions = corpus.target.gather(indices)
    target_input = np.empty_like(target)
    target_input[1:] = target[:-1]
    target_input[target_offsets[:-1]] = START_ID

    def extend(array: np.ndarray, value: int, length: int) -> Tensor:
        return torch.from_numpy(np.concatenate([array, np.full(length - len(array), value, array.dtype)]))

    def longest(offsets: np.ndarray) -> int:
        found = int(np.diff(offsets).max())
        return max(found, min(_round_up(found, LENGTH_MULTIPLE), max_length))

    def filled_offsets(offsets: np.ndarray) -> Tensor:
        return extend(offsets.astype(np.int32), offsets[-1], size.sentences + 1)

    return Batch(
        extend(source, END_ID, size.source_tokens), filled_offsets(source_offsets),
        extend(source_positions, 0, size.source_tokens), longest(source_offsets),
        extend(target_input, END_ID, size.target_tokens), extend(target, IGNORE_INDEX, size.target_tokens),
        filled_offsets(target_offsets), extend(target_positions, 0, size.target_tokens), longest(target_offsets),
        own.target_tokens, fill is not None)


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


def derived_seed(*numbers: int | str) -> int:
    """Return a seed below 2^63 that is a hash of `numbers`."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
