"""Types of the functions of search that engines can replace by faster ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor


class WholeSearch(Protocol):
    """Beam search implemented by an engine, with the same results as `search.beam.search` without hooks."""

    def __call__(self, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                 max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                 ) -> list[list[tuple[list[int], float]]]:
        """Return the finished hypotheses of each sentence, in the order in which they ended, as pairs of token ids
        without `</s>` and log p.

        Args: as in `search.beam.search`, and
            enough: number of finished hypotheses that ends the search of a sentence.
            forbidden: banned token ids; never includes `</s>`.
        """


Continuations = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Arrays (totals, beams, ids), each (groups, candidates), best candidate first. totals: log p of the hypothesis with
its continuation; -inf if there are too few continuations. beams: index of the hypothesis in its group. ids: next
token."""

TopK = Callable[[Tensor, np.ndarray, Tensor, np.ndarray | None, int, bool], Continuations]
"""Type of `search.topk.topk`, and of faster functions with the same results."""
