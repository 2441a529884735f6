"""Plan of an epoch: the pairs of each step; batches of sentences of similar length for validation and translation."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from seq2seq.data.batching import EncodedCorpus, derived_seed

PLAN_FILE = "plan-{}.{}.npy"
"""Name of a file with one of the two arrays of a plan: epoch and name of the array."""
BLOCK_PAIRS = 1_000_000
"""Number of pairs whose lengths are in memory at a time while an epoch is planned."""
FITTED_ROUNDS = 16
"""Number of the shortest pairs of a micro-batch that are chosen to even out its size. With lengths as in news, and
steps of 25,000 target tokens in 16 micro-batches, a shape for all micro-batches has 2.7 % more tokens than the mean;
6.8 % with 8 pairs, and 2.2 % if all pairs are chosen, which takes 10 ms a step."""


class EpochPlan:
    """Optimizer steps of an epoch, each a list of micro-batches.

    A step is divided into micro-batches only when it is accessed, so that training on a large corpus starts quickly.

    order: (pairs,), pair indices in the order of the steps. ends: (steps,), end of each step in `order`. Both may be
    mapped from files (`save`, `open_plan`).
    """

    def __init__(self, corpus: EncodedCorpus, order: np.ndarray, ends: np.ndarray, accumulation: int) -> None:
        """accumulation: maximum number of micro-batches in a step."""
        self.corpus, self.order, self.ends, self.accumulation = corpus, order, ends, accumulation

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> list[np.ndarray]:
        number = range(len(self))[index]
        begin = self.ends[number - 1] if number else 0
        return deal(self.corpus, np.array(self.order[begin:self.ends[number]], np.int64), self.accumulation)

    def save(self, directory: Path, epoch: int) -> None:
        """Write the plan into a directory, and delete those of other epochs there."""
        delete_plans(directory)
        for name, values in (("order", self.order), ("ends", self.ends)):
            np.save(directory / PLAN_FILE.format(epoch, name), values)


def open_plan(directory: Path, epoch: int, corpus: EncodedCorpus, accumulation: int) -> EpochPlan:
    """Open a plan that `EpochPlan.save` has written, mapped into memory: all processes of a machine share its pages."""
    order, ends = (np.load(directory / PLAN_FILE.format(epoch, name), mmap_mode="r") for name in ("order", "ends"))
    return EpochPlan(corpus, order, ends, accumulation)


def delete_plans(directory: Path) -> None:
    """Delete the plans in a directory."""
    for path in directory.glob(PLAN_FILE.format("*", "*")):
        with suppress(OSError):                                                 # Windows keeps files that are mapped
            path.unlink()


def plan_epoch(corpus: EncodedCorpus, batch_tokens: int, accumulation: int, seed: int, epoch: int) -> EpochPlan:
    """Assign the pairs of the corpus to the optimizer steps of an epoch. The same seed and epoch give the same plan.

    If the corpus has no weights, every pair occurs in exactly one step. Otherwise, the weight of a pair is the average
    number of times that the pair occurs. A step has at most `batch_tokens` target tokens, and a limited number of
    source tokens. A pair that exceeds a limit is a step of its own. The pairs of a step are drawn at random: with pairs
    of similar length in each step, the model learns more slowly (benchmarks/README.md, Learning).

    No token ids are read. The plan takes 4 bytes for each pair, and while it is made, the lengths of BLOCK_PAIRS pairs.

    Returns:
        For each step a list of at most `accumulation` micro-batches; see `deal`.
    """
    random = np.random.default_rng(derived_seed(seed, "epoch", epoch))
    order = _repeat_by_weight(corpus, random)
    random.shuffle(order)
    source_tokens, target_tokens = (side.offsets[-1] - side.offsets[0] for side in (corpus.source, corpus.target))
    # Most steps reach the limit of target tokens first. The limit of source tokens shortens steps with long sources.
    source_budget = batch_tokens * max(1.0, 1.1 * source_tokens / target_tokens)
    return EpochPlan(corpus, order, _ends_of_steps(corpus, order, int(source_budget), batch_tokens), accumulation)


def _repeat_by_weight(corpus: EncodedCorpus, random: np.random.Generator) -> np.ndarray:
    """Return the index of each pair as often as it occurs in the epoch."""
    dtype = np.uint32 if len(corpus) < 2**32 else np.int64
    if corpus.weights is None:
        return np.arange(len(corpus), dtype=dtype)
    repeated = []
    for begin in range(0, len(corpus), BLOCK_PAIRS):
        weights = corpus.weights[begin:begin + BLOCK_PAIRS]
        whole = np.floor(weights)
        extra = random.random(len(weights)) < weights - whole
        indices = np.arange(begin, begin + len(weights), dtype=dtype)
        repeated.append(np.repeat(indices, (whole + extra).astype(np.int64)))
    return np.concatenate(repeated)


def _ends_of_steps(corpus: EncodedCorpus, order: np.ndarray, source_budget: int, target_budget: int) -> np.ndarray:
    """Return the end of each step in `order`, (steps,) int64."""
    ends, begin = array("q"), 0
    block_size = max(BLOCK_PAIRS, target_budget + 1)                # more than a step: each pair has a target token
    while begin < len(order):
        block = order[begin:begin + block_size]
        source_sums, target_sums = (np.cumsum(side.lengths_of(block)) for side in (corpus.source, corpus.target))
        step = 0                                                    # begin of a step in the block
        while step < len(block):
            source_before = source_sums[step - 1] if step else 0
            target_before = target_sums[step - 1] if step else 0
            # To search for a float, NumPy would convert all sums to floating point.
            end = max(step + 1, min(
                int(np.searchsorted(source_sums, source_before + source_budget, side="right")),
                int(np.searchsorted(target_sums, target_before + target_budget, side="right"))))
            if end == len(block) < len(order) - begin:              # the step may go on in the next block
                break
            ends.append(begin + end)
            step = end
        begin += step
    return np.array(ends, np.int64)


def deal(corpus: EncodedCorpus, pairs: np.ndarray, count: int) -> list[np.ndarray]:
    """Deal pairs to `count` micro-batches of nearly equal size, both in source tokens and in target tokens.

    The longest pairs go to the micro-batches from the first to the last, back from the last to the first, and so on.
    Each of the shortest pairs, which even out the differences, goes to the micro-batch whose larger side is then the
    smallest.

    pairs: indices of the pairs of a step or of a micro-batch.
    Returns:
        Pair indices of each micro-batch, in order of target length, then of source length. There are fewer than `count`
        micro-batches if there are fewer pairs.
    """
    source_lengths, target_lengths = corpus.source.lengths_of(pairs), corpus.target.lengths_of(pairs)
    in_order = np.lexsort((source_lengths, target_lengths))
    count = min(count, len(pairs))
    if count == 1:
        return [pairs[in_order]]
    longest_first = np.argsort(-(source_lengths + target_lengths), kind="stable")
    rounds, turns = np.divmod(np.arange(len(pairs)), count)
    dealt = np.empty(len(pairs), np.int64)                                      # micro-batch of each pair
    dealt[longest_first] = np.where(rounds % 2 == 0, turns, count - 1 - turns)
    # Sizes relative to the mean of a micro-batch: (pairs, 2), and of what each micro-batch has so far, (count, 2).
    lengths = np.stack([source_lengths, target_lengths], 1)
    sizes = lengths * (count / lengths.sum(0))
    fitted = longest_first[max(0, len(pairs) // count - FITTED_ROUNDS) * count:]
    loads = np.zeros((count, 2))
    others = longest_first[:len(pairs) - len(fitted)]
    np.add.at(loads, dealt[others], sizes[others])
    for pair in fitted.tolist():
        dealt[pair] = number = int((loads + sizes[pair]).max(1).argmin())
        loads[number] += sizes[pair]
    return [pairs[in_order[dealt[in_order] == number]] for number in range(count)]


def batches_in_order(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Divide sentences into batches of sentences with similar lengths, and yield the sentence indices of each batch.

    A batch has at most `batch_tokens` tokens, padding included, or consists of one longer sentence. The longest
    sentences come first, so that out-of-memory errors occur in the first batch. lengths: (sentences,), in tokens.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        size = max(1, batch_tokens // int(lengths[order[begin]]))
        yield order[begin : begin + size]
        begin += size
