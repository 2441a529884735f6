"""Sampling: temperature, top-k, top-p, min-p, and random numbers that do not depend on the batch.

`top_k`, `top_p` and `min_p` return the logits, (rows, vocab_size), with -inf for the tokens that they remove.
inference/tensor_scores.py has the same functions for tensors on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Constants of the random number generator SplitMix64 (Steele, Lea and Flood 2014): the increment of its state, and the
# multipliers of its output function.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Number of consecutive ids whose probabilities are summed before a token is looked for among them.
BLOCK = 64


def with_temperature(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Return logits / temperature. Temperatures below 1 sharpen the distribution; above 1, they flatten it."""
    return logits if temperature == 1 else logits / logits.dtype.type(temperature)


def top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Keep the k most probable tokens (Fan et al. 2018, arXiv:1805.04833). If k is 0, keep all tokens."""
    if not 0 < k < logits.shape[1]:
        return logits
    best = np.argpartition(logits, -k, axis=1)[:, -k:]
    kept = np.full_like(logits, -math.inf)
    np.put_along_axis(kept, best, np.take_along_axis(logits, best, 1), 1)
    return kept


def top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep the smallest set of tokens whose probabilities sum to at least p (Holtzman et al. 2020, arXiv:1904.09751).

    Among equally probable tokens, the tokens with the smallest ids are kept first.
    """
    if p == 1:                                                                  # rounded sums may reach 1 too early
        return logits
    weights = _weights(logits)
    kept = np.full_like(logits, -math.inf)
    for row, own in enumerate(weights):
        total = own.sum(dtype=np.float64)
        # All tokens below this limit together have a probability below 1 - p, so the set needs none of them.
        candidates = np.flatnonzero(own > 0.9 * (1 - p) * total / len(own))
        order = candidates[np.argsort(-own[candidates], kind="stable")]
        probabilities = own[order] / total
        order = order[np.cumsum(probabilities) - probabilities < p]             # the tokens before do not suffice
        kept[row, order] = logits[row, order]
    return kept


def min_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep the tokens whose probability is at least p times the largest (Nguyen et al. 2024, arXiv:2407.01082)."""
    if p == 0:
        return logits
    return np.where(logits < logits.max(1, keepdims=True) + math.log(p), -math.inf, logits)


def truncate(logits: np.ndarray, temperature: float = 1.0, k: int = 0, p: float = 1.0, min_share: float = 0.0
             ) -> np.ndarray:
    """Apply `with_temperature`, `top_k`, `top_p` and `min_p`, in this order. min_share: the argument p of `min_p`."""
    return min_p(top_p(top_k(with_temperature(logits, temperature), k), p), min_share)


def sample_tokens(logits: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Sample a token for each row by inverting its cumulative distribution.

    Args:
        numbers: (rows,), a random number in [0, 1) for each row; see `uniform_numbers`.
    Returns:
        (rows,), ids. A token of probability 0 is returned only if all tokens of the row have probability 0.
    """
    weights, vocab_size = _weights(logits), logits.shape[1]
    block_sums = np.add.reduceat(weights, np.arange(0, vocab_size, BLOCK), axis=1).astype(np.float64).cumsum(1)
    thresholds = numbers * block_sums[:, -1]
    block = np.minimum((block_sums <= thresholds[:, None]).sum(1), block_sums.shape[1] - 1)
    rows = np.arange(len(weights))
    before = np.where(block > 0, block_sums[rows, block - 1], 0)
    ids = block[:, None] * BLOCK + np.arange(BLOCK)
    inside = np.where(ids < vocab_size, weights[rows[:, None], np.minimum(ids, vocab_size - 1)], 0).astype(np.float64)
    sums = before[:, None] + inside.cumsum(1)
    # Rounding may bring the sum inside a block below that of the block; then the last possible token of it is chosen.
    last = BLOCK - 1 - (inside[:, ::-1] > 0).argmax(1)
    return np.minimum(block * BLOCK + np.minimum((sums <= thresholds[:, None]).sum(1), last), vocab_size - 1)


def _weights(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each token divided by that of the most probable one of its row."""
    with np.errstate(invalid="ignore"):                                         # a row of -inf becomes NaN
        return np.exp(logits - logits.max(1, keepdims=True))


def uniform_numbers(*key: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """Return uniformly distributed pseudorandom numbers in [0, 1). Each number is a hash of its key.

    Args:
        key: parts of the key, for example (seed, lines, step): non-negative integers, or arrays of them. The parts are
            broadcast to the same shape.
    Returns:
        float64, of the broadcast shape.
    """
    return uniform_numbers_after(np.zeros((), np.uint64), *key)


def uniform_numbers_after(bits: np.ndarray, *key: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the `uniform_numbers` of keys of which `hashed` has hashed the first parts. bits: its result."""
    # Only 52 bits are used, so that even the largest number times a sum of probabilities is below the sum.
    return (hashed(bits, *key) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def hashed(bits: np.ndarray, *key: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """Return a hash of the bits, uint64, and the parts of a key, of the broadcast shape."""
    for part in key:
        bits = splitmix64(bits ^ np.asarray(part, np.uint64))
    return bits


def splitmix64(states: np.ndarray) -> np.ndarray:
    """Return the output of SplitMix64 for each state. Different states have different outputs.

    states: uint64, of any shape.
    """
    with np.errstate(over="ignore"):
        bits = np.asarray(states + GOLDEN_GAMMA)
        for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
            bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    return bits ^ (bits >> np.uint64(31))
