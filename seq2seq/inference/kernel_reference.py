"""The sums of `kernels.cpp` in NumPy, which its self-check compares them with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def attended(query: Array, seen: Sequence[Array], heads: int) -> Array:
    """Return softmax(Q K^T / sqrt(D)) V in float64. seen: keys and values of each row, (keys, 2 * features)."""
    features = query.shape[1]
    size = features // heads
    result = np.empty(query.shape)
    for row, keys_values in enumerate(seen):
        keys, values = np.split(keys_values.astype(np.float64).reshape(len(keys_values), 2, heads, size), 2, 1)
        scores = np.einsum("hd,nhd->hn", query[row].astype(np.float64).reshape(heads, size), keys[:, 0]) / size**0.5
        weights = np.exp(scores - scores.max(1, keepdims=True))
        result[row] = np.einsum("hn,nhd->hd", weights / weights.sum(1, keepdims=True), values[:, 0]).ravel()
    return result


def brief(values: Array) -> Array:
    """Round numbers to bf16, to the nearest, ties to even; returns their bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def numbers(bits: Array) -> Array:
    """Return the numbers, in fp32, that bf16 bits encode."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def laid_out(keys_values: Array) -> Array:
    """Return keys and values of a sentence, (tokens, 2 * features), in the layout of `lay_out` in kernels.cpp."""
    keys, values = np.split(keys_values, 2, 1)
    return np.concatenate([keys.T.ravel(), values.ravel()])


def read_back(block: Array, features: int) -> Array:
    """Return the inverse of `laid_out`."""
    keys, values = np.split(block, 2)
    return np.concatenate([keys.reshape(features, -1).T, values.reshape(-1, features)], 1)


def activated(numbers: Array, activation: str) -> Array:
    """Apply ReLU, GELU or SiLU."""
    if activation == "relu":
        return np.maximum(numbers, 0)
    if activation == "silu":
        return numbers / (1 + np.exp(-numbers))
    from math import erf

    return 0.5 * numbers * (1 + np.vectorize(erf)(numbers / 2**0.5))
