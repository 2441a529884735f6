"""Plan of an epoch: the pairs of each step; batches of sentences of similar length for validation and translation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from seq2seq.data.batching import EncodedCorpus, derived_seed


class EpochPlan:
    """Optimizer steps of an epoch, each a list of micro-batches.

    A step is divided into micro-batches only when it is accessed, so that training on a large corpus starts quickly.
    """

    def __init__(self, corpus: EncodedCorpus, steps: list[np.ndarray], accumulation: int) -> None:
        """steps: pair indices of each step. accumulation: maximum number of micro-batches in a step."""
        self.corpus, self.steps, self.accumulation = corpus, steps, accumulation

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> list[np.ndarray]:
        step = self.steps[index]
        return _micro_batches(step, self.corpus.source.lengths_of(step), self.corpus.target.lengths_of(step),
                              self.accumulation)


def plan_epoch(corpus: EncodedCorpus, batch_tokens: int, accumulation: int, seed: int, epoch: int) -> EpochPlan:
    """Assign the pairs of the corpus to the optimizer steps of an epoch. The same seed and epoch give the same plan.

    If the corpus has no weights, every pair occurs in exactly one step. Otherwise, the weight of a pair is the average
    number of times that the pair occurs. A step has at most `batch_tokens` target tokens, and a limited number of
    source tokens (see `draw_steps`). A pair that exceeds a limit is a step of its own. The pairs of a step are drawn at
    random: with pairs of similar length in each step, the model learns more slowly (benchmarks/README.md, Learning).

    Returns:
        For each step a list of at most `accumulation` micro-batches. Each micro-batch is an array of pair indices,
        ordered by target length, the shortest first.
    """
    return EpochPlan(corpus, list(draw_steps(corpus, batch_tokens, seed, epoch)), accumulation)


def draw_steps(corpus: EncodedCorpus, batch_tokens: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Yield the pair indices of each step of `plan_epoch`. The order of the pairs is random. No token ids are read."""
    random = np.random.default_rng(derived_seed(seed, "epoch", epoch))
    order = random.permutation(_repeat_by_weight(corpus, random))
    source_lengths, target_lengths = corpus.source.lengths, corpus.target.lengths
    # Most steps reach the limit of target tokens first. The limit of source tokens shortens steps with long sources.
    source_budget = batch_tokens * max(1.0, 1.1 * source_lengths.sum() / target_lengths.sum())
    return _cut_into_steps(order, source_lengths, target_lengths, source_budget, batch_tokens)


def _repeat_by_weight(corpus: EncodedCorpus, random: np.random.Generator) -> np.ndarray:
    indices = np.arange(len(corpus))
    if corpus.weights is None:
        return indices
    whole = np.floor(corpus.weights)
    extra = random.random(len(corpus)) < corpus.weights - whole
    return np.repeat(indices, (whole + extra).astype(np.int64))


def _cut_into_steps(order: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, source_budget: float,
                    target_budget: float) -> Iterator[np.ndarray]:
    source_ends, target_ends = np.cumsum(source_lengths[order]), np.cumsum(target_lengths[order])
    begin = 0
    while begin < len(order):
        source_before = source_ends[begin - 1] if begin else 0
        target_before = target_ends[begin - 1] if begin else 0
        # The limits are converted to integers. To search for a float, NumPy would convert all sums to floating point.
        end = max(begin + 1, min(
            int(np.searchsorted(source_ends, int(source_before + source_budget), side="right")),
            int(np.searchsorted(target_ends, int(target_before + target_budget), side="right"))))
        yield order[begin:end]
        begin = end


def _micro_batches(step: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray,
                   accumulation: int) -> list[np.ndarray]:
    """Split a step into micro-batches of nearly equal size, both in source tokens and in target tokens.

    The pairs are sorted by target length, and by source length within small groups of similar target length. The pairs
    are then assigned to the micro-batches one by one: from the first micro-batch to the last, back from the last to the
    first, and so on.

    step: (pairs,), indices of the pairs of the step. source_lengths, target_lengths: (pairs,), in tokens.
    """
    order = np.lexsort((source_lengths, target_lengths))
    numbers = np.arange(len(step))
    order = order[np.lexsort((source_lengths[order], numbers // (4 * accumulation)))]
    rounds, turns = np.divmod(numbers, accumulation)
    micro_batch_of = np.where(rounds % 2 == 0, turns, accumulation - 1 - turns)
    micro_batches = [order[micro_batch_of == number] for number in range(min(accumulation, len(step)))]
    return [step[pairs[np.argsort(target_lengths[pairs], kind="stable")]] for pairs in micro_batches]


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
