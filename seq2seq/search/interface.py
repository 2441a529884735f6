"""Types of the search functions that an engine can implement itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor


class WholeSearch(Protocol):
    """Beam search of an engine. It has the same results as `search.beam.search` with options without hooks."""

    def __call__(self, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                 max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                 ) -> list[list[tuple[list[int], float]]]:
        """Return the finished hypotheses of each sentence, in the order in which they ended.

        Each hypothesis is a pair: token ids without `</s>`, and log p of the tokens and `</s>`.

        enough: number of finished hypotheses with which a sentence is finished.
        forbidden: banned token ids; never includes `</s>`.
        Other arguments: as in `search.beam.search` and `SearchOptions`.
        """


Continuations = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Arrays (totals, beams, ids), each (groups, candidates), best candidate first.

totals: log p of the hypothesis with its continuation; -inf for an array element without a possible continuation. beams:
index of the continued hypothesis in its group. ids: next token.
"""

TopK = Callable[[Tensor, np.ndarray, Tensor, np.ndarray | None, int, bool], Continuations]
"""Type of `search.topk.topk` and of an engine's implementation of it."""
