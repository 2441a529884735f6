"""Coverage penalty: lowers the score of a translation if the model attended to only a part of the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seq2seq.search.interface import Scores, Stepwise

MIN_COVERAGE = 1e-6
"""Lower limit of the coverage of a source position. With ReLU attention, the coverage can be 0, and without the
limit, the penalty would then be infinite."""


def coverage_penalty(coverage: np.ndarray, strength: float) -> np.ndarray:
    """Return strength * sum of log(min(coverage, 1)) over the source positions.

    Wu et al. 2016 (arXiv:1609.08144), equation 14.

    Args:
        coverage: (rows, longest source), sum of the attention weights of each source position over all steps; 1 in
            padding.
    Returns:
        (rows,), at most 0; search adds it to the score of a hypothesis.
    """
    penalty: np.ndarray = strength * np.log(coverage.clip(MIN_COVERAGE, 1)).sum(1)
    return penalty


def coverage_bonus(strength: float) -> Callable[[CoverageState], np.ndarray]:
    """Return a function for `SearchOptions.bonus` that computes the coverage penalty from a `CoverageState`."""
    return lambda state: coverage_penalty(state.coverage, strength)


@dataclass(frozen=True)
class CoverageState:
    """Decoding state of `WithCoverage`.

    inner: state of the wrapped model. coverage: (rows, longest source), sum of the attention weights of each source
    position over the steps so far; 1 in padding.
    """

    inner: Any
    coverage: np.ndarray

    @property
    def attention(self) -> np.ndarray | None:
        attention: np.ndarray | None = self.inner.attention
        return attention

    def select(self, rows: np.ndarray) -> CoverageState:
        return CoverageState(self.inner.select(rows), self.coverage[rows.ravel()])


class WithCoverage:
    """Model whose decoding states also contain the coverage of the source. It wraps another model."""

    def __init__(self, model: Stepwise) -> None:
        self.model, self.max_positions = model, model.max_positions

    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = True) -> CoverageState:
        lengths = np.diff(source_offsets)
        padding = np.arange(lengths.max()) >= lengths[:, None]                  # (sentences, longest source)
        return CoverageState(self.model.start(source, source_offsets, keep_attention=True), padding.astype(np.float32))

    def step(self, last_tokens: np.ndarray, state: CoverageState) -> tuple[Scores, CoverageState]:
        scores, inner = self.model.step(last_tokens, state.inner)
        return scores, CoverageState(inner, state.coverage + inner.attention)
