"""Options of beam search, length penalties, and the types of hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seq2seq.search.interface import Continuations, Scores
from seq2seq.tokenizers.tokenizer import END_ID

LengthPenalty = Callable[[int], float]
"""Function that maps the length of a target in tokens, `</s>` included, to the divisor of its log-probability."""


def power_length_penalty(alpha: float) -> LengthPenalty:
    """Return the penalty length ** alpha.

    If alpha is 0, hypotheses are ranked by log p. If alpha is 1, they are ranked by their mean log p per token.
    """
    return lambda length: float(length**alpha)


def wu_length_penalty(alpha: float) -> LengthPenalty:
    """Return the penalty ((5 + length) / 6) ** alpha of Wu et al. 2016 (arXiv:1609.08144), section 7."""
    return lambda length: ((5 + length) / 6) ** alpha


LENGTH_PENALTIES = {"power": power_length_penalty, "wu": wu_length_penalty}
"""For each value of `decoding.length_penalty_form`, the function that makes the length penalty from alpha."""


@dataclass(frozen=True)
class Hypotheses:
    """Unfinished hypotheses of some sentences: an argument of logits processors and candidate selections.

    tokens: (sentences, beam, length), target ids so far. lines: index of each sentence in the input of the search.
    """

    tokens: np.ndarray
    lines: list[int]

    @property
    def rows(self) -> np.ndarray:
        """Tokens of each row of the scores, (rows, length)."""
        sentences, beam, length = self.tokens.shape
        return self.tokens.reshape(sentences * beam, length)


LogitsProcessor = Callable[[Hypotheses, Scores], None]
"""Function (hypotheses, scores) that changes the scores of a step in place."""

CandidateSelection = Callable[[Hypotheses, Scores, np.ndarray, int], Continuations]
"""Function (hypotheses, scores, past, count) -> (totals, beams, ids).

It returns at most `count` continuations of the hypotheses of each group, in order of preference.

Arguments: past: (sentences, groups, beam of a group), log p of each hypothesis, minus the log-sum-exp of its logits
unless `skip_log_softmax` is set. Therefore past + logits is log p of each continuation. Results, each (sentences,
groups, candidates): totals: log p of each continuation. beams: index of the continued hypothesis in its group. ids:
next token.
"""


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    beam_size: number of hypotheses per sentence, in all groups together.
    length_penalty: function that maps the length of a hypothesis to the divisor of its log-probability.
    n_best: maximum number of hypotheses to return per sentence; None: all that were finished.
    patience: a group is finished when it has group_size * max(1, patience) finished hypotheses (Kasai et al. 2022,
        arXiv:2204.05424, equation 2). Ignored if groups have one hypothesis.
    banned_ids: ids that no hypothesis may contain. `</s>` is never banned.
    logits_processors: functions that change the logits of each step, in the order in which they run. Hypotheses are
        scored by the log-softmax of the unchanged logits, so forbidding a token does not raise other tokens' scores.
    candidate_selection: function that chooses the continuations; None: the most probable ones.
    groups: number of groups of equal size into which the beam is divided. The groups are searched independently of each
        other, unless `candidate_selection` makes them depend on each other.
    bonus: function that computes a number for each row, (rows,), from the model's state after a step. If the row's
        hypothesis ends in this step, the number is added to the score of the hypothesis. None: no bonus.
    shortlist: number of target pieces for each source piece that an engine's own search considers, see
        `inference.shortlist.Shortlist`; 0: all target pieces. Other searches always consider all.
    first_id: id with which each hypothesis begins. It is given, so its log p is 0, but it counts in the length, as
        `forced_bos_token_id` in transformers. None: the model chooses.
    skip_log_softmax: True to use the logits as scores without normalising them.
    """

    beam_size: int
    length_penalty: LengthPenalty
    n_best: int | None = 1
    patience: float = 1.0
    banned_ids: Sequence[int] = ()
    logits_processors: Sequence[LogitsProcessor] = ()
    candidate_selection: CandidateSelection | None = None
    groups: int = 1
    bonus: Callable[[Any], np.ndarray] | None = None
    shortlist: int = 0
    first_id: int | None = None
    skip_log_softmax: bool = False

    @property
    def group_size(self) -> int:
        """Number of hypotheses per group."""
        return self.beam_size // self.groups

    @property
    def finished_per_group(self) -> int:
        """Number of finished hypotheses with which a group is finished, see `patience`."""
        return 1 if self.group_size == 1 else max(self.group_size, round(self.group_size * self.patience))

    @property
    def banned(self) -> np.ndarray:
        """Banned ids without `</s>`, (ids,) int64."""
        return np.array([index for index in self.banned_ids if index != END_ID], np.int64)

    @property
    def has_constraints(self) -> bool:
        """True if an option is set that can leave a sentence without hypotheses."""
        return bool(self.logits_processors or self.candidate_selection)

    @property
    def has_hooks(self) -> bool:
        """True if an option is set that an engine's own search does not support (see `beam.WholeSearch`)."""
        return bool(self.has_constraints or self.bonus or self.skip_log_softmax or self.groups > 1)
