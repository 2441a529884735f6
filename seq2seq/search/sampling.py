"""Sampling: temperature, top-k, top-p and min-p as functions of logits, and draws that do not depend on the batch.

Each function returns new logits, (rows, vocab_size), with -inf for the tokens that it removes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# SplitMix64 (Steele, Lea and Flood 2014): the step between its states, and the multipliers that mix one.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature: below 1 sharpens the distribution, above 1 flattens it.

    Raises:
        ValueError: temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"a temperature is positive, found {temperature}; to take the most probable, search greedily")
    return logits if temperature == 1 else logits / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens (Fan et al. 2018, arXiv:1805.04833); 0 keeps all.

    Raises:
        ValueError: k is negative.
    """
    if k < 0:
        raise ValueError(f"cannot keep {k} words")
    if not 0 < k < logits.shape[1]:
        return logits
    best, ids = logits.topk(k, dim=1)
    return torch.full_like(logits, -math.inf).scatter_(1, ids, best)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of tokens whose probabilities sum to at least p (Holtzman et al. 2020, arXiv:1904.09751).

    Among equally probable tokens, smaller ids come first.

    Raises:
        ValueError: p is not above 0 and at most 1.
    """
    if not 0 < p <= 1:
        raise ValueError(f"top-p is above 0 and at most 1, found {p}")
    if p == 1:                                                                  # rounded sums may stay below 1
        return logits
    probabilities, ids = logits.double().softmax(1).sort(dim=1, descending=True, stable=True)
    enough = probabilities.cumsum(1) - probabilities >= p                       # without the word itself
    return logits.masked_fill(torch.empty_like(enough).scatter_(1, ids, enough), -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as probable as the most probable one (Nguyen et al. 2024, arXiv:2407.01082).

    Raises:
        ValueError: p is not at least 0 and at most 1.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"min-p is at least 0 and at most 1, found {p}")
    if p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(1, keepdim=True) + math.log(p), -math.inf)


def narrowed(logits: Tensor, *, temperature: float = 1.0, k: int = 0, p: float = 1.0, minimum: float = 0.0) -> Tensor:
    """Apply `with_temperature`, `top_k` of k, `top_p` of p and `min_p` of minimum, in this order."""
    return min_p(top_p(top_k(with_temperature(logits, temperature), k), p), minimum)


def draw(logits: Tensor, uniforms: np.ndarray) -> Tensor:
    """Sample a token for each row by inverting its cumulative distribution.

    Args:
        uniforms: (rows,), uniformly distributed numbers from [0, 1), see the function `uniforms`.
    Returns:
        (rows,), ids; never one of probability 0, unless a row has no other.
    """
    sums = logits.double().softmax(1).cumsum(1)
    thresholds = torch.from_numpy(uniforms).to(logits.device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, thresholds, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)


def uniforms(*key: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """Return uniformly distributed numbers from [0, 1) as a hash of the key.

    Args:
        key: non-negative integers, or arrays of them, which are broadcast: (seed, lines, step), for instance.
    Returns:
        float64, of the broadcast shape.
    """
    bits = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in key)), np.uint64)
    for part in key:
        bits = mixed(bits ^ np.asarray(part, np.uint64))
    # 52 bits, so that even the largest number, multiplied by a sum of probabilities, stays below the sum.
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def mixed(states: np.ndarray) -> np.ndarray:
    """Return the output of SplitMix64 for each state, a bijection of uint64; any shape."""
    with np.errstate(over="ignore"):
        bits = np.asarray(states + GOLDEN_GAMMA)
        for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
            bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    return bits ^ (bits >> np.uint64(31))
