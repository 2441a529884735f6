"""Bookkeeping of a search: unfinished and finished hypotheses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seq2seq.search.interface import Continuations
from seq2seq.tokenizers.tokenizer import END_ID


@dataclass(frozen=True)
class Hypothesis:
    """Finished hypothesis.

    tokens: target ids without `</s>`. log_probability: log p(tokens, `</s>` | source). bonus: result of
    `SearchOptions.bonus`, for example the coverage penalty. score: number by which `search` ranks the hypotheses of a
    sentence, log_probability / length penalty + bonus; 0 before that.
    """

    tokens: list[int]
    log_probability: float
    bonus: float = 0.0
    score: float = 0.0


class Beams:
    """Hypotheses of all groups (see `SearchOptions.groups`).

    limits: (groups,), maximum number of tokens, not counting `</s>`.
    tokens: (groups, beam, length), tokens of each unfinished hypothesis; before the first step, one empty hypothesis.
    totals: (groups, beam), log p of each unfinished hypothesis; -inf for a place in the beam without a hypothesis. All
        places of a finished group are without, so that other groups do not avoid tokens that are not in the result.
    done: (groups,) bool, True = finished. finished: finished hypotheses of each group, in the order in which they
        ended.
    """

    def __init__(self, max_lengths: Sequence[int], size: int, finished_per_group: int, dtype: np.dtype[Any]) -> None:
        """max_lengths: maximum number of tokens of each group, `</s>` included. size: hypotheses per group.
        finished_per_group: see `SearchOptions`. dtype: dtype of log p."""
        self.size, self.finished_per_group = size, finished_per_group
        self.limits = np.array(max_lengths) - 1
        self.tokens = np.zeros((len(max_lengths), 1, 0), np.int64)
        self.totals = np.zeros((len(max_lengths), 1), dtype)
        self.done = np.zeros(len(max_lengths), bool)
        self.finished: list[list[Hypothesis]] = [[] for _ in max_lengths]

    @property
    def length(self) -> int:
        """Number of tokens of the unfinished hypotheses."""
        return self.tokens.shape[2]

    def must_end(self) -> np.ndarray:
        """Return which groups have reached their maximum length, so that only `</s>` may follow: (groups,) bool."""
        return self.limits <= self.length

    def advance(self, continuations: Continuations, bonuses: np.ndarray | None = None) -> np.ndarray:
        """Do a step: record the hypotheses that `</s>` finishes, and continue each group with other tokens.

        Args:
            continuations: at least `size` continuations of each group, `</s>` and others.
            bonuses: (groups, beam), bonus of each hypothesis if it ends in this step; None: no bonus.
        Returns:
            For each hypothesis after the step, the index in its group of the hypothesis that it continues, (groups,
            size).
        """
        totals, parents, ids = (part[:, : self.size].copy() for part in continuations)
        possible = continuations[0] > -math.inf                                 # False for NaN
        stops = (continuations[2] == END_ID) | ~possible
        # A group that is done stays as it is: its totals are -inf.
        for group in np.flatnonzero(stops[:, : self.size].any(1) & ~self.done).tolist():
            # Each `</s>` among the first `size` candidates finishes a hypothesis.
            for place in np.flatnonzero(stops[group, : self.size] & possible[group, : self.size]).tolist():
                parent = parents[group, place]
                bonus = 0.0 if bonuses is None else float(bonuses[group, parent])
                self.finished[group].append(
                    Hypothesis(self.tokens[group, parent].tolist(), float(totals[group, place]), bonus))
            # The first `size` candidates other than `</s>` form the next beam.
            order = np.argsort(stops[group], kind="stable")[: self.size]
            totals[group], parents[group], ids[group] = (part[group, order] for part in continuations)
            totals[group, stops[group, order]] = -math.inf
            self.done[group] = (len(self.finished[group]) >= self.finished_per_group or totals[group, 0] == -math.inf)
        totals[self.done] = -math.inf
        groups = np.arange(len(totals))[:, None]
        self.tokens = np.concatenate((self.tokens[groups, parents], ids[:, :, None]), axis=2)
        self.totals = totals
        return parents

    def keep(self, groups: np.ndarray) -> None:
        self.limits, self.tokens, self.totals, self.done = (
            part[groups] for part in (self.limits, self.tokens, self.totals, self.done))
        self.finished = [self.finished[group] for group in groups]
