"""Reference implementations in NumPy of functions in `kernels.cpp`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def attention_weights(query: Array, keys_values_of_rows: Sequence[Array], heads: int,
                      bias_of_rows: Sequence[Array] | None = None) -> list[Array]:
    """Return softmax(Q K^T / sqrt(D) + bias) of each row in float64, (heads, keys), where D is the head size.

    query: (rows, features). keys_values_of_rows: keys and values of each row, (keys, 2 * features). bias_of_rows: of
    each row, (heads, keys); None: there is no bias.
    """
    features = query.shape[1]
    size, found = features // heads, []
    for row, keys_values in enumerate(keys_values_of_rows):
        keys = keys_values[:, :features].astype(np.float64).reshape(-1, heads, size)
        scores = np.einsum("hd,nhd->hn", query[row].astype(np.float64).reshape(heads, size), keys) / size**0.5
        if bias_of_rows is not None:
            scores += bias_of_rows[row]
        weights = np.exp(scores - scores.max(1, keepdims=True))
        found.append(weights / weights.sum(1, keepdims=True))
    return found


def attention(query: Array, keys_values_of_rows: Sequence[Array], heads: int,
              bias_of_rows: Sequence[Array] | None = None) -> Array:
    """Return the sums of values weighted by `attention_weights`, (rows, features) in float64."""
    features, result = query.shape[1], np.empty(query.shape)
    for row, weights in enumerate(attention_weights(query, keys_values_of_rows, heads, bias_of_rows)):
        values = keys_values_of_rows[row][:, features:].astype(np.float64).reshape(weights.shape[1], heads, -1)
        result[row] = np.einsum("hn,nhd->hd", weights, values).ravel()
    return result


def quantised(weights: Array) -> tuple[Array, Array]:
    """Quantise weights, (outputs, inputs) float32, to int8: return levels from -127 to 127, and scales, (outputs,).

    An output with NaN or infinity has levels of 0 and a scale that is not finite.
    """
    scale = np.maximum(np.abs(weights).max(1), np.float32(1e-12)) / np.float32(127)
    with np.errstate(invalid="ignore"):
        levels = np.rint(weights / scale[:, None])
    levels[~np.isfinite(scale)] = 0
    return levels.astype(np.int8), scale


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
    """Apply one of `ACTIVATIONS`."""
    if activation == "relu":
        return np.maximum(values, 0)
    if activation == "silu":
        return values / (1 + np.exp(-values))
    if activation == "gelu_tanh":
        return 0.5 * values * (1 + np.tanh((2 / np.pi) ** 0.5 * (values + 0.044715 * values**3)))
    from math import erf

    return 0.5 * values * (1 + np.vectorize(erf)(values / 2**0.5))
