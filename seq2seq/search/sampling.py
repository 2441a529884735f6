"""Sampling: temperature, top-k, top-p, min-p, and random numbers that do not depend on the batch.

`top_k`, `top_p` and `min_p` return the logits, (rows, vocab_size), with -inf for the tokens that they remove.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Constants of the random number generator SplitMix64 (Steele, Lea and Flood 2014): the increment of its state, and the
# multipliers of its output function.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature. Temperatures below 1 sharpen the distribution; above 1, they flatten it."""
    return logits if temperature == 1 else logits / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens (Fan et al. 2018, arXiv:1805.04833). If k is 0, keep all tokens."""
    if not 0 < k < logits.shape[1]:
        return logits
    best, ids = logits.topk(k, dim=1)
    return torch.full_like(logits, -math.inf).scatter_(1, ids, best)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of tokens whose probabilities sum to at least p (Holtzman et al. 2020, arXiv:1904.09751).

    Among equally probable tokens, the tokens with the smallest ids are kept first.
    """
    if p == 1:                                                                  # rounded sums may reach 1 too early
        return logits
    probabilities, ids = logits.double().softmax(1).sort(dim=1, descending=True, stable=True)
    removed = probabilities.cumsum(1) - probabilities >= p                      # the more probable tokens suffice
    return logits.masked_fill(torch.empty_like(removed).scatter_(1, ids, removed), -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens whose probability is at least p times the largest (Nguyen et al. 2024, arXiv:2407.01082)."""
    if p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(1, keepdim=True) + math.log(p), -math.inf)


def truncate(logits: Tensor, *, temperature: float = 1.0, k: int = 0, p: float = 1.0, min_share: float = 0.0) -> Tensor:
    """Apply `with_temperature`, `top_k`, `top_p` and `min_p`, in this order. min_share: the argument p of `min_p`."""
    return min_p(top_p(top_k(with_temperature(logits, temperature), k), p), min_share)


def sample_tokens(logits: Tensor, numbers: np.ndarray) -> Tensor:
    """Sample a token for each row by inverting its cumulative distribution.

    Args:
        numbers: (rows,), a random number in [0, 1) for each row; see `uniform_numbers`.
    Returns:
        (rows,), ids. A token of probability 0 is returned only if all tokens of the row have probability 0.
    """
    sums = logits.double().softmax(1).cumsum(1)
    thresholds = torch.from_numpy(numbers).to(logits.device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, thresholds, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)


def uniform_numbers(*key: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """Return uniformly distributed pseudorandom numbers in [0, 1). Each number is a hash of its key.

    Args:
        key: parts of the key, for example (seed, lines, step): non-negative integers, or arrays of them. The parts are
            broadcast to the same shape.
    Returns:
        float64, of the broadcast shape.
    """
    bits = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in key)), np.uint64)
    for part in key:
        bits = splitmix64(bits ^ np.asarray(part, np.uint64))
    # Only 52 bits are used, so that even the largest number times a sum of probabilities is below the sum.
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def splitmix64(states: np.ndarray) -> np.ndarray:
    """Return the output of SplitMix64 for each state. Different states have different outputs.

    states: uint64, of any shape.
    """
    with np.errstate(over="ignore"):
        bits = np.asarray(states + GOLDEN_GAMMA)
        for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
            bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    return bits ^ (bits >> np.uint64(31))
