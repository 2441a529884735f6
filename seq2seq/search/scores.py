"""Logits of a step in an array of NumPy, with the operations that search needs (`interface.Scores`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seq2seq.search.interface import Continuations
from seq2seq.search.sampling import sample_tokens, truncate
from seq2seq.tokenizers.tokenizer import END_ID

BLOCK = 64
"""Number of consecutive ids in a block of the vocabulary. Top-k searches only the blocks with the largest maxima."""
CACHED_ELEMENTS = 250_000
"""Maximum number of logits in one call of exp and sum: 1 MB in fp32, which fits into a core's cache."""

NOTHING_BANNED = np.zeros(0, np.int64)


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """Return the log-sum-exp of each row of logits, (rows,)."""
    size = max(1, CACHED_ELEMENTS // logits.shape[1])
    found = []
    for first in range(0, len(logits), size):
        rows = logits[first : first + size]
        largest = rows.max(1, keepdims=True)
        largest[~np.isfinite(largest)] = 0                                      # a row of -inf has the result -inf
        powers = rows - largest
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            found.append(np.log(np.exp(powers, out=powers).sum(1)) + largest[:, 0])
    return np.concatenate(found)


def best_of_groups(logits: np.ndarray, past: np.ndarray, count: int) -> Continuations:
    """Return the `count` largest sums of past and logits for each group; of equal sums, those of the first hypotheses
    and the smallest ids.

    All logits are read only once, to compute the maximum of each block of the vocabulary. Then only the blocks with the
    largest maxima are searched.

    Args:
        logits: (rows, vocab_size). past: (groups, beam).
    """
    (groups, beam), vocab_size = past.shape, logits.shape[1]
    blocks = -(-vocab_size // BLOCK)
    begins = np.arange(0, vocab_size, BLOCK)
    maxima = (np.maximum.reduceat(logits, begins, axis=1).reshape(groups, beam, blocks) + past[:, :, None]
              ).reshape(groups, beam * blocks)
    chosen = np.sort(_largest(maxima, count), axis=1)                           # (groups, blocks), in their order
    beams = chosen // blocks
    ids = (chosen % blocks)[:, :, None] * BLOCK + np.arange(BLOCK)              # (groups, blocks, BLOCK)
    rows = beams + beam * np.arange(groups)[:, None]
    candidates = logits[rows[:, :, None], np.minimum(ids, vocab_size - 1)]
    candidates = candidates + np.take_along_axis(past, beams, 1)[:, :, None]
    if vocab_size % BLOCK:
        candidates[ids >= vocab_size] = -math.inf
    flat = candidates.reshape(groups, -1)
    if missing := max(0, count - flat.shape[1]):                                # a small vocabulary
        flat = np.pad(flat, ((0, 0), (0, missing)), constant_values=-math.inf)
    best = _largest(flat, count)
    block = np.minimum(best // BLOCK, beams.shape[1] - 1)
    return (np.take_along_axis(flat, best, 1), np.take_along_axis(beams, block, 1),
            np.minimum(ids[np.arange(groups)[:, None], block, best % BLOCK], vocab_size - 1))


def _largest(numbers: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest numbers of each row, largest first; of equal numbers, the first come
    first. NaN counts as the largest number, so that it is not overlooked."""
    if np.isnan(numbers).any():
        numbers = np.where(np.isnan(numbers), math.inf, numbers)
    if count >= numbers.shape[1]:
        return np.argsort(-numbers, axis=1, kind="stable")[:, :count]
    # Only numbers that are at least as large as the last one of the result can be part of it.
    limits = -np.partition(-numbers, count - 1, axis=1)[:, count - 1, None]
    if (at_least := ~(numbers < limits)).sum() > 4 * count * len(numbers):      # many equal numbers
        return np.argsort(-numbers, axis=1, kind="stable")[:, :count]
    found = np.empty((len(numbers), count), np.int64)
    for row, (values, is_candidate) in enumerate(zip(numbers, at_least, strict=True)):
        candidates = np.flatnonzero(is_candidate)
        found[row] = candidates[np.argsort(-values[candidates], kind="stable")[:count]]
    return found


@dataclass(frozen=True, eq=False)
class ArrayScores:
    """Scores in an array. The methods are those of `interface.Scores`.

    logits: (rows, vocab_size), float32 or float64.
    """

    logits: np.ndarray

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.logits.dtype

    def best(self, totals: np.ndarray, banned: np.ndarray, must_end: np.ndarray | None, count: int,
             skip_log_softmax: bool) -> Continuations:
        past = totals if skip_log_softmax else totals - self.log_sum_exp().reshape(totals.shape)
        self.ban(banned, must_end)
        return best_of_groups(self.logits, past, count)

    def ban(self, banned: np.ndarray, must_end: np.ndarray | None) -> None:
        self.logits[:, banned] = -math.inf
        if must_end is not None and must_end.any():
            rows = must_end.repeat(len(self.logits) // len(must_end))
            ending = self.logits[rows, END_ID]
            self.logits[rows] = -math.inf
            self.logits[rows, END_ID] = ending

    def best_of_rows(self, rows: np.ndarray, past: np.ndarray, count: int) -> Continuations:
        whole = rows.size == len(self.logits) and (rows.size < 2 or bool((np.diff(rows.ravel()) == 1).all()))
        logits = self.logits if whole else self.logits[rows.ravel()]
        return replace(self, logits=logits).best(past, NOTHING_BANNED, None, count, True)

    def log_sum_exp(self) -> np.ndarray:
        return log_sum_exp(self.logits)

    def values(self, rows: np.ndarray, ids: np.ndarray | int) -> np.ndarray:
        return self.logits[rows, ids]

    def assign(self, rows: np.ndarray, ids: np.ndarray | int | slice, values: np.ndarray | float) -> None:
        self.logits[rows, ids] = values

    def best_ids(self, rows: np.ndarray, excluded: np.ndarray | None = None) -> np.ndarray:
        logits = self.logits[rows]
        if excluded is not None:
            logits[:, excluded] = -math.inf
        return logits.argmax(1)

    def sample(self, numbers: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
        return sample_tokens(truncate(self.logits, temperature, top_k, top_p, min_p), numbers)

    def log_softmax(self) -> ArrayScores:
        self.logits[...] -= self.log_sum_exp()[:, None]
        return self

    def plus(self, other: ArrayScores, weight: float) -> ArrayScores:
        return replace(self, logits=self.logits + weight * other.logits)

    def mean(self, others: Sequence[ArrayScores]) -> ArrayScores:
        total = self.logits
        for other in others:
            total = total + other.logits
        return replace(self, logits=total / (1 + len(others)))

    def mean_probability(self, others: Sequence[ArrayScores]) -> ArrayScores:
        every = [self.logits, *(other.logits for other in others)]
        largest = np.maximum.reduce(every)
        largest[largest == -math.inf] = 0                                       # -inf - -inf would be NaN
        total = sum(np.exp(logits - largest) for logits in every)               # many times as fast as `logaddexp`
        with np.errstate(divide="ignore"):
            return replace(self, logits=largest + np.log(total / self.dtype.type(len(every))))
