"""The coverage penalty: a translation that has not looked at all of its source is worth less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seq2seq.model.interface import Stepwise

# A source position never attended to would cost infinitely much (attention that is cut off at 0 has such).
LEAST_COVERAGE = 1e-6


def coverage_penalty(coverage: Tensor, strength: float) -> Tensor:
    """cp = strength * sum over the source of log(min(coverage, 1)), Wu et al. 2016 (arXiv:1609.08144), equation 14.

    Args:
        coverage: (rows, longest_source), the attention that each source position received from all steps together; 1
            beyond the end of a source.
    Returns:
        (rows,), at most 0; what is added to a hypothesis' score.
    """
    return strength * coverage.clamp(LEAST_COVERAGE, 1).log().sum(1)


@dataclass(frozen=True)
class CoveringState:
    """The state of a model, with the attention of all its steps. coverage: (rows, longest_source)."""

    inner: Any
    coverage: Tensor

    @property
    def attention(self) -> Tensor | None:
        attention: Tensor | None = self.inner.attention
        return attention

    def select(self, rows: Tensor) -> CoveringState:
        """See `interface.State.select`."""
        return CoveringState(self.inner.select(rows), self.coverage.index_select(0, rows.flatten()))


class Covering:
    """A model whose states sum its attention up; otherwise the same model."""

    def __init__(self, model: Stepwise) -> None:
        self.model, self.max_positions = model, model.max_positions

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = True) -> CoveringState:
        """See `interface.Stepwise.start`."""
        positions = torch.arange(longest_source, device=source.device)
        beyond = positions >= source_offsets.diff()[:, None]                    # (sentences, longest_source)
        return CoveringState(self.model.start(source, source_offsets, longest_source, keep_attention=True),
                             beyond.to(torch.get_default_dtype()))

    def step(self, last_tokens: Tensor, state: CoveringState) -> tuple[Tensor, CoveringState]:
        """See `interface.Stepwise.step`."""
        logits, inner = self.model.step(last_tokens, state.inner)
        return logits, CoveringState(inner, state.coverage + inner.attention)

    def penalty(self, strength: float) -> Callable[[CoveringState], Tensor]:
        """What search takes as `bonus`."""
        return lambda state: coverage_penalty(state.coverage, strength)
