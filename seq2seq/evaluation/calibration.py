"""Calibration of a model's confidence: estimation of the chrF of a translation.

The confidence of a translation is its mean log-probability per token. An isotonic regression (Ayer et al. 1955; the
pool adjacent violators algorithm) of sentence chrF on the confidence is fitted on the validation set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_SENTENCES = 30
"""Minimum number of sentences to fit a calibration."""
BINS = 10
"""Number of equally large groups of sentences for which expected and actual scores are compared."""


@dataclass(frozen=True)
class Calibration:
    """Expected score as a function of the confidence. confidences: in ascending order. scores: expected score at each
    confidence. spread: standard deviation of the actual scores around each expected score."""

    confidences: np.ndarray
    scores: np.ndarray
    spread: np.ndarray

    def expected(self, confidences: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each confidence, the expected score and the standard deviation of actual scores around it."""
        values = np.asarray(confidences, float)
        return (np.interp(values, self.confidences, self.scores), np.interp(values, self.confidences, self.spread))


@dataclass(frozen=True)
class Reliability:
    """Expected and actual scores of held-out text. rows: (sentences, mean expected score, mean actual score) of each
    group. error: absolute difference of the two means, averaged over all sentences (expected calibration error)."""

    rows: list[tuple[int, float, float]]
    error: float


def fit(confidences: Sequence[float], scores: Sequence[float]) -> Calibration | None:
    """Return the calibration fitted on a validation set; None if the set is too small."""
    if len(confidences) < MIN_SENTENCES:
        return None
    order = np.argsort(confidences, kind="stable")
    given, values = np.asarray(confidences, float)[order], np.asarray(scores, float)[order]
    fitted = isotonic(values)
    groups = np.array_split(np.arange(len(given)), min(BINS, len(given) // 3))
    spreads = [float(np.sqrt(np.mean((values[group] - fitted[group]) ** 2))) for group in groups]
    centres = [float(given[group].mean()) for group in groups]
    return Calibration(given, fitted, np.interp(given, centres, spreads))


def isotonic(values: np.ndarray) -> np.ndarray:
    """Return the non-decreasing sequence with the smallest squared distance from `values`."""
    blocks: list[list[float]] = []                                              # sum and number of values
    for value in values.tolist():
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    return np.concatenate([np.full(int(count), total / count) for total, count in blocks])


def reliability(calibration: Calibration, confidences: Sequence[float], scores: Sequence[float]) -> Reliability:
    """Compare expected and actual scores of text that the calibration was not fitted on."""
    expected, _ = calibration.expected(confidences)
    actual = np.asarray(scores, float)
    groups = np.array_split(np.argsort(expected, kind="stable"), min(BINS, len(actual)))
    rows = [(len(group), float(expected[group].mean()), float(actual[group].mean())) for group in groups]
    return Reliability(rows, sum(count * abs(one - other) for count, one, other in rows) / len(actual))
