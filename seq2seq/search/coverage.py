"""Coverage penalty: lowers the score of a translation if the model attended to only a part of the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seq2seq.model.interface import Stepwise

MIN_COVERAGE = 1e-6
"""Lower limit of the coverage of a source position. With ReLU attention, the coverage can be 0, and without the
limit, the penalty would then be infinite."""


def coverage_penalty(coverage: Tensor, strength: float) -> Tensor:
    """Return strength * sum of log(min(coverage, 1)) over the source positions.

    Wu et al. 2016 (arXiv:1609.08144), equation 14.

    Args:
        coverage: (rows, longest_source), sum of the attention weights of each source position over all steps; 1 in
            padding.
    Returns:
        (rows,), at most 0; search adds it to the score of a hypothesis.
    """
    return strength * coverage.clamp(MIN_COVERAGE, 1).log().sum(1)


def coverage_bonus(strength: float) -> Callable[[CoverageState], Tensor]:
    """Return a function for `SearchOptions.bonus` that computes the coverage penalty from a `CoverageState`."""
    return lambda state: coverage_penalty(state.coverage, strength)


@dataclass(frozen=True)
class CoverageState:
    """Decoding state of `WithCoverage`.

    inner: state of the wrapped model. coverage: (rows, longest_source), sum of the attention weights of each source
    position over the steps so far; 1 in padding.
    """

    inner: Any
    coverage: Tensor

    @property
    def attention(self) -> Tensor | None:
        attention: Tensor | None = self.inner.attention
        return attention

    def select(self, rows: Tensor) -> CoverageState:
        """See `interface.State.select`."""
        return CoverageState(self.inner.select(rows), self.coverage.index_select(0, rows.flatten()))


class WithCoverage:
    """Model whose decoding states also contain the coverage of the source. It wraps another model."""

    def __init__(self, model: Stepwise) -> None:
        self.model, self.max_positions = model, model.max_positions

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = True) -> CoverageState:
        """See `interface.Stepwise.start`."""
        positions = torch.arange(longest_source, device=source.device)
        padding = positions >= source_offsets.diff()[:, None]                   # (sentences, longest_source)
        return CoverageState(self.model.start(source, source_offsets, longest_source, keep_attention=True),
                             padding.to(torch.get_default_dtype()))

    def step(self, last_tokens: Tensor, state: CoverageState) -> tuple[Tensor, CoverageState]:
        """See `interface.Stepwise.step`."""
        logits, inner = self.model.step(last_tokens, state.inner)
        return logits, CoverageState(inner, state.coverage + inner.attention)
