"""Tolerance of comparisons in fp32: several times the error of PyTorch's own fp32 on the same numbers.

The order of additions in a product of matrices depends on the library, the processor, the number of threads, and the
size of the batch. So a constant that fits one machine fails on another one, or with other random weights.
"""

import numpy as np

FACTOR = 4
"""Two correct results in fp32 are each about as far from the exact result as PyTorch's, so their distance is up to
twice its error. The other factor of 2 is for a less favourable order of additions: the largest error of the native
engine was 1.75 times that of PyTorch (AVX2, test_int8)."""


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the norm of the differences, relative to that of the expected numbers. A single number may have a much
    larger error than the others, so only norms of many numbers are compared."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def fp32_tolerance(in_fp32: np.ndarray, exact: np.ndarray) -> float:
    """Return the tolerance for `relative_error` of results in fp32.

    in_fp32, exact: results of PyTorch in fp32 and in float64.
    """
    return FACTOR * relative_error(in_fp32, exact)
