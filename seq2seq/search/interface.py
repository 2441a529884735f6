"""Interface through which search uses every engine: arrays of NumPy on the host, whatever computes the model.

A decoding state is immutable: `step` and `select` return a new state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Continuations = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Arrays (totals, beams, ids), each (groups, candidates), best candidate first.

totals: log p of the hypothesis with its continuation; -inf for an element without a possible continuation. beams: index
of the continued hypothesis in its group. ids: next token.
"""


class Scores(Protocol):
    """Logits of a step, (rows, vocab_size), with one row per hypothesis. The methods that change them change them in
    place. `search.scores.ArrayScores` holds them in an array, `inference.tensor_scores.TensorScores` in a tensor of any
    device.

    dtype: NumPy dtype of log p, float32 or float64.
    """

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def best(self, totals: np.ndarray, banned: np.ndarray, must_end: np.ndarray | None, count: int,
             skip_log_softmax: bool) -> Continuations:
        """Return the `count` best continuations of each group of hypotheses. The logits may be overwritten.

        Args:
            totals: (groups, beam), log p of each hypothesis; rows are in the order of the groups.
            banned: banned ids, int64; never includes `</s>`. The probabilities of other ids are not renormalised.
            must_end: (groups,) bool, True = only `</s>` may follow, because any other token would make the targets
                exceed their maximum length; None: False for all groups.
            skip_log_softmax: True to use the logits as scores, without log-softmax.
        """

    def ban(self, banned: np.ndarray, must_end: np.ndarray | None) -> None:
        """Set the logits of the tokens that must not come next to -inf. Arguments: as in `best`."""

    def best_of_rows(self, rows: np.ndarray, past: np.ndarray, count: int) -> Continuations:
        """Return the `count` largest sums of past and logits for each group. rows, past: (groups, beam), the row of
        each hypothesis and the number that is added to its logits. `beams` of the result are indices in a group."""

    def log_sum_exp(self) -> np.ndarray:
        """Return the log-sum-exp of each row, (rows,)."""

    def values(self, rows: np.ndarray, ids: np.ndarray | int) -> np.ndarray:
        """Return the logits of pairs (row, id). The arguments are broadcast to the shape of the result."""

    def assign(self, rows: np.ndarray, ids: np.ndarray | int | slice, values: np.ndarray | float) -> None:
        """Set the logits of pairs (row, id), or of all ids of some rows if `ids` is slice(None)."""

    def best_ids(self, rows: np.ndarray, excluded: np.ndarray | None = None) -> np.ndarray:
        """Return the id with the largest logit of each of these rows. excluded: (vocab_size,) bool, True = an id that
        does not count."""

    def sample(self, numbers: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
        """Sample a token for each row, (rows,), see `search.sampling`. numbers: (rows,), random numbers in [0, 1)."""

    def log_softmax(self) -> Scores:
        """Return log p of each token. The logits may be overwritten."""

    def plus(self, other: Any, weight: float) -> Scores:
        """Return these scores + weight * other scores of the same class."""

    def mean(self, others: Sequence[Any]) -> Scores:
        """Return the mean of these and other scores of the same class."""

    def mean_probability(self, others: Sequence[Any]) -> Scores:
        """Return the logarithm of the mean of exp(scores) of these and other scores of the same class."""


class State(Protocol):
    """`model.interface.State` with arrays."""

    @property
    def attention(self) -> np.ndarray | None:
        """Attention weights of the last step, (rows, longest source) float32: the mean over the heads of the last
        decoder layer; None if `keep_attention` of `start` is False."""

    def select(self, rows: np.ndarray) -> Any:
        """See `model.interface.State.select`. rows: (sentences, beam) int64."""


class Stepwise(Protocol):
    """`model.interface.Stepwise` with arrays."""

    max_positions: int

    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = False) -> Any:
        """See `model.interface.Stepwise.start`. source: (source_tokens,) int64. source_offsets: (sentences + 1,) int32.
        """

    def step(self, last_tokens: np.ndarray, state: Any) -> tuple[Scores, Any]:
        """See `model.interface.Stepwise.step`. last_tokens: (rows,) int64."""
