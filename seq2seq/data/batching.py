"""Packed batches: which pairs make an optimizer step, and their tokens as flat arrays.

Token ids lie in flat arrays with offsets (`EncodedCorpus`, memory-mapped by `preparation`). An epoch is planned as
index arrays, and a whole batch is gathered at once; there are no worker processes and no padding.
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

IGNORED = -100
"""Target of positions that only fill a fixed shape: they count nowhere."""

# Tokens and sentences that batches are rounded to on a CPU.
ROUND_TOKENS, ROUND_SENTENCES = 64, 8
# Cost of one more group of like length, in padded places: small enough that a long tail of lengths is cut off, large
# enough that captions (2,048 tokens a step) stay together. From timings of three models on one core.
GROUP_PLACES = 700_000
# Most groups that a part is cut into.
MOST_GROUPS = 32


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, one behind another.

    source: (source_tokens,) int64, every sentence closed by `</s>`.
    source_offsets: (sentences + 1,) int32, where each begins. source_positions: (source_tokens,) int64, from 0.
    longest_source: tokens of the longest source, known on the host so that nothing waits for the device.
    target_input: (target_tokens,) int64, begins with the start symbol.
    target_output: (target_tokens,) int64, target_input shifted by one; ends with `</s>`.
    target_offsets, target_positions, longest_target: likewise.
    target_count: target tokens that count in the loss.
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
        """The batch on `device`."""
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
        """(sentences,), `</s>` included; computed each time."""
        return np.diff(self.offsets)

    def lengths_of(self, indices: np.ndarray) -> np.ndarray:
        """(indices,), those of some sentences: a large corpus has far more than a step."""
        lengths: np.ndarray = self.offsets[indices + 1] - self.offsets[indices]
        return lengths

    @staticmethod
    def from_lists(sentences: Sequence[Sequence[int]]) -> EncodedSide:
        """Ids of each sentence without `</s>`, which is added."""
        offsets = np.zeros(len(sentences) + 1, np.int64)
        np.cumsum([len(sentence) + 1 for sentence in sentences], out=offsets[1:])
        ids = np.fromiter((token for sentence in sentences for token in (*sentence, END_ID)), np.int64, offsets[-1])
        return EncodedSide(ids, offsets)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sentences `indices`, flat: ids (tokens,) int64, offsets (sentences + 1,), positions (tokens,)."""
        begins, lengths = self.offsets[indices], self.lengths_of(indices)
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        ids = self.ids[positions + np.repeat(begins, lengths)].astype(np.int64)
        return ids, offsets, positions


@dataclass(frozen=True)
class EncodedCorpus:
    """Pairs as ids.

    weights: (pairs,) float, how often each is seen in an epoch; None: once.
    lines: (pairs,) int64, the line that each pair has in its corpus, or None where nobody will ask.
    """

    source: EncodedSide
    target: EncodedSide
    weights: np.ndarray | None = None
    lines: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Shape:
    """A size that batches are filled to, so that one compiled program, or one set of kernels, serves many of them.

    source_tokens, target_tokens, sentences: what the batch is filled to.
    longest_source, longest_target: tokens of the longest sentence that may occur.
    """

    source_tokens: int
    target_tokens: int
    sentences: int
    longest_source: int
    longest_target: int

    @staticmethod
    def for_corpus(corpus: EncodedCorpus, batch_tokens: int, accumulation: int, longest: int) -> Shape:
        """One shape for all parts of `plan_epoch` with the same arguments; sentences have at most `longest` tokens.

        A rare part that is too large for it is cut by `fitting`.
        """
        target = -(-batch_tokens // accumulation) + longest
        ratio = max(1.0, 1.1 * int(corpus.source.offsets[-1]) / int(corpus.target.offsets[-1]))
        source = int(target * ratio) + longest
        # Filling sentences need a token on each side; a target sentence that counts has at least two.
        dummies = -(-source // longest) + 2
        return Shape(source + dummies, target + dummies, target // 2 + dummies, longest, longest)

    @staticmethod
    def rounded(corpus: EncodedCorpus, part: np.ndarray, longest: int) -> Shape:
        """The next of a few round sizes in which `part` fits; no sentence gets more than `longest` tokens.

        oneDNN generates code for every new size of a matrix product: with sizes as they come, a fifth of a training
        step on a CPU goes into that, and gigabytes are kept.
        """
        source, target = corpus.source.lengths_of(part), corpus.target.lengths_of(part)
        longest_source, longest_target = (min(longest, _round_up(int(side.max()), 4)) for side in (source, target))
        shortest = min(longest_source, longest_target)
        # Room for the filling sentences: with it each side has at least a token for each of them.
        room = -(-(ROUND_TOKENS + shortest) // (shortest - 1))
        source_tokens = _round_up(int(source.sum()) + room, ROUND_TOKENS)
        target_tokens = _round_up(int(target.sum()) + room, ROUND_TOKENS)
        sentences = _round_up(len(part) + room, ROUND_SENTENCES)
        return Shape(source_tokens, target_tokens, sentences, longest_source, longest_target)

    def dummies(self, source_tokens: int, target_tokens: int) -> int:
        """Number of filling sentences for a batch of so many source and target tokens."""
        return max(-(-(self.source_tokens - source_tokens) // self.longest_source),
                   -(-(self.target_tokens - target_tokens) // self.longest_target))

    def holds(self, source_tokens: int, target_tokens: int, sentences: int) -> bool:
        """Return True if such a batch can be filled. A query without keys is undefined, so each filling sentence has
        tokens on both sides."""
        dummies = self.dummies(source_tokens, target_tokens)
        return (min(self.source_tokens - source_tokens, self.target_tokens - target_tokens) >= dummies
                and self.sentences - sentences >= dummies)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def fitting(corpus: EncodedCorpus, part: np.ndarray, shape: Shape) -> Iterator[np.ndarray]:
    """The part, or halves of it where it does not fit; a step is the sum of its parts, so that nothing changes.

    Raises:
        ValueError: a single pair does not fit.
    """
    source, target = int(corpus.source.lengths_of(part).sum()), int(corpus.target.lengths_of(part).sum())
    if shape.holds(source, target, len(part)):
        yield part
    elif len(part) == 1:
        raise ValueError(f"a pair of {source} source and {target} target tokens does not fit into {shape}")
    else:
        yield from fitting(corpus, part[::2], shape)
        yield from fitting(corpus, part[1::2], shape)


def gather(corpus: EncodedCorpus, indices: np.ndarray, fill: Shape | None = None) -> Batch:
    """The pairs `indices` as a packed batch.

    fill: where given, the rest of the arrays is cut into sentences that count nowhere, so that the offsets cover every
        token, and into empty ones.
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
        target = _extend(target, IGNORED, fill.target_tokens)
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


def of_like_length(corpus: EncodedCorpus, part: np.ndarray) -> list[np.ndarray]:
    """Cut a part, shortest target first, where padding each group by itself saves more than one more group costs.

    Of the ways to cut at round numbers of sentences, the one with the fewest padded places: (source + target length)^2
    for each sentence, as attention has them.
    """
    block = _round_up(-(-len(part) // MOST_GROUPS), ROUND_SENTENCES)
    begins = list(range(0, len(part), block))
    longest = [np.maximum.reduceat(side.lengths_of(part), begins).tolist() for side in (corpus.source, corpus.target)]
    fewest: list[tuple[float, list[int]]] = [(0, [])]                           # of the first so many blocks
    for last, begin in enumerate(begins):
        end, source, target, ways = min(begin + block, len(part)), 0, 0, []
        for first in range(last, -1, -1):
            source, target = max(source, longest[0][first]), max(target, longest[1][first])
            before, cuts = fewest[first]
            places = (end - begins[first]) * (source + target) ** 2
            ways.append((before + places + GROUP_PLACES, [*cuts, begins[first]]))
        fewest.append(min(ways))
    return np.split(part, fewest[-1][1][1:])


def _extend(ids: np.ndarray, value: int, length: int) -> np.ndarray:
    return np.concatenate([ids, np.full(length - len(ids), value, ids.dtype)])


def _positions(offsets: np.ndarray) -> np.ndarray:
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _tail_lengths(source_tokens: int, target_tokens: int, sentences: int, fill: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the sentences that fill a batch: (fill.sentences - sentences,) on each side."""
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
    """A seed below 2^63 that depends on all of `numbers` and on nothing else."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def plan_epoch(corpus: EncodedCorpus, batch_tokens: int, accumulation: int, seed: int,
               epoch: int) -> list[list[np.ndarray]]:
    """Which pairs make each optimizer step of an epoch; (seed, epoch) alone decides.

    Every pair stands in exactly one step (in `weight` steps on average where the corpora have weights). A step holds at
    most `batch_tokens` target tokens and a proportional number of source tokens, or one pair that is longer. Its pairs
    are drawn at random, long and short ones together: steps of one length each learn more slowly, for their gradients
    pull towards that length in turn (benchmarks/README.md, Learning).

    Returns:
        For each step its parts, `accumulation` of them or fewer; each part is an array of pair indices, shortest target
        first.
    """
    source_lengths, target_lengths = corpus.source.lengths, corpus.target.lengths
    return [_parts(step, source_lengths, target_lengths, accumulation)
            for step in draw_steps(corpus, batch_tokens, seed, epoch)]


def draw_steps(corpus: EncodedCorpus, batch_tokens: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """The pairs of each step of `plan_epoch`, in the order in which they were drawn. Only the lengths of the corpus
    are looked at."""
    random = np.random.default_rng(derived_seed(seed, "epoch", epoch))
    order = random.permutation(_copies(corpus, random))
    source_lengths, target_lengths = corpus.source.lengths, corpus.target.lengths
    # Pairs are cut by target tokens; the bound on the source keeps a step of long sources from being a giant.
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


def _parts(step: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray,
           accumulation: int) -> list[np.ndarray]:
    """Deal a step out so that all parts have like sums on both sides: of a few pairs alike in target length, sorted by
    source length, each part gets its share, forwards and backwards in turn."""
    step = step[np.lexsort((source_lengths[step], target_lengths[step]))]
    numbers = np.arange(len(step))
    step = step[np.lexsort((source_lengths[step], numbers // (4 * accumulation)))]
    round_of, place = np.divmod(numbers, accumulation)
    part_of = np.where(round_of % 2 == 0, place, accumulation - 1 - place)
    parts = [step[part_of == part] for part in range(min(accumulation, len(step)))]
    return [part[np.argsort(target_lengths[part], kind="stable")] for part in parts]


def batches_in_order(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Cut sentences into batches of at most `batch_tokens` padded tokens, longest first; indices of each batch.

    Long batches come first, so that a lack of memory shows at once.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        size = max(1, batch_tokens // int(lengths[order[begin]]))
        yield order[begin : begin + size]
        begin += size
