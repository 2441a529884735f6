"""Reference implementations in NumPy of functions in `kernels.cpp`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def attention(query: Array, keys_values_of_rows: Sequence[Array], heads: int) -> Array:
    """Return softmax(Q K^T / sqrt(D)) V of each head in float64, (rows, features), where D is the head size.

    query: (rows, features). keys_values_of_rows: keys and values of each row, (keys, 2 * features).
    """
    features = query.shape[1]
    size = features // heads
    result = np.empty(query.shape)
    for row, keys_values in enumerate(keys_values_of_rows):
        keys, values = np.split(keys_values.astype(np.float64).reshape(len(keys_values), 2, heads, size), 2, 1)
        scores = np.einsum("hd,nhd->hn", query[row].astype(np.float64).reshape(heads, size), keys[:, 0]) / size**0.5
        weights = np.exp(scores - scores.max(1, keepdims=True))
        result[row] = np.einsum("hn,nhd->hd", weights / weights.sum(1, keepdims=True), values[:, 0]).ravel()
    return result


def to_bf16(values: Array) -> Array:
    """Round numbers to the nearest bf16, ties to even, and return the bits as uint16."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    """Return bf16 numbers as fp32. bits: the bits of the bf16 numbers as uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(values: Array) -> Array:
    """Round numbers to the nearest bf16, and return the results as fp32."""
    return from_bf16(to_bf16(values))


def transpose_keys(keys_values: Array) -> Array:
    """Convert keys and values of a sentence, (tokens, 2 * features), to the layout of `transpose_keys` in kernels.cpp.

    The result has one dimension: the keys as (features, tokens), then the values as (tokens, features).
    """
    keys, values = np.split(keys_values, 2, 1)
    return np.concatenate([keys.T.ravel(), values.ravel()])


def undo_transpose_keys(block: Array, features: int) -> Array:
    """Return the inverse of `transpose_keys`, (tokens, 2 * features)."""
    keys, values = np.split(block, 2)
    return np.concatenate([keys.reshape(features, -1).T, values.reshape(-1, features)], 1)


def apply_activation(values: Array, activation: str) -> Array:
    """Apply "relu", "gelu" or "silu"."""
    if activation == "relu":
        return np.maximum(values, 0)
    if activation == "silu":
        return values / (1 + np.exp(-values))
    from math import erf

    return 0.5 * values * (1 + np.vectorize(erf)(values / 2**0.5))
