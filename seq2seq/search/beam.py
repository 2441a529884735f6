"""Beam search with any model that has the step interface (`search.interface.Stepwise`), on a CPU or a GPU.

The score of a hypothesis is log p(target) / length penalty. Both count `</s>` as a token of the target. Each step
computes the 2 * beam_size best continuations of a sentence. Each `</s>` among the first beam_size continuations
finishes a hypothesis. The best beam_size continuations with other tokens form the next beam. A sentence is finished
when it has beam_size finished hypotheses. `SearchOptions` can change these rules. With a beam size of 1, this is greedy
search; with a beam as large as the search space, exhaustive search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from seq2seq.search.beams import Beams, Hypothesis
from seq2seq.search.interface import Continuations, Scores, Stepwise
from seq2seq.search.options import Hypotheses, SearchOptions
from seq2seq.tokenizers.tokenizer import START_ID

WholeSearch = Callable[[np.ndarray, np.ndarray, Sequence[int], SearchOptions], list[list[Hypothesis]]]
"""Type of an engine's own search, a function (source, source_offsets, max_lengths, options) -> finished hypotheses of
each sentence, in the order in which they ended. The arguments are those of `search`; the options have no hooks. The
results are those of `search`.
"""


class NoHypothesis(Exception):
    """At least one sentence has no hypothesis that satisfies the constraints. lines: indices of these sentences."""

    def __init__(self, lines: list[int]) -> None:
        super().__init__(f"no hypothesis of sentences {lines} satisfies all constraints")
        self.lines = lines


def search(model: Stepwise, source: np.ndarray, source_offsets: np.ndarray, max_lengths: Sequence[int],
           options: SearchOptions, whole_search: WholeSearch | None = None) -> list[list[Hypothesis]]:
    """Find the best hypotheses of each sentence.

    Args:
        source, source_offsets: as in `Stepwise.start`.
        max_lengths: maximum number of target tokens of each sentence, `</s>` included. If a hypothesis reaches
            this length, its last token must be `</s>`. With `options.first_id`, it is at least 2.
        whole_search: an engine's own search, which is not used if `options.has_hooks` is True or a maximum length
            exceeds the model's maximum number of positions.
    Returns:
        The hypotheses of each sentence, best first.
    Raises:
        NoHypothesis: a sentence has no hypothesis that satisfies the constraints.
        FloatingPointError: a sentence has no hypothesis, because the logits are NaN.
    """
    if not max_lengths:
        return []
    assert options.first_id is None or min(max_lengths) > 1
    nan = False
    if whole_search is not None and not options.has_hooks and max(max_lengths) <= model.max_positions:
        finished = whole_search(source, source_offsets, max_lengths, options)
    else:
        run = StepwiseRun(model, source, source_offsets, max_lengths, options)
        finished, nan = run.finish(), run.nan
    if without := [line for line, hypotheses in enumerate(finished) if not hypotheses]:
        if options.has_constraints and not nan:
            raise NoHypothesis(without)
        raise FloatingPointError("the model's scores are not numbers")
    scored = [[replace(each, score=each.log_probability / options.length_penalty(len(each.tokens) + 1) + each.bonus)
               for each in hypotheses] for hypotheses in finished]
    return [sorted(each, key=lambda hypothesis: -hypothesis.score)[: options.n_best] for each in scored]


class StepwiseRun:
    """Search of a batch, step by step, with any model and the hooks of `SearchOptions`.

    lines: index of each sentence of the beams in the input of the search. nan: True = a score was NaN in a step with
    constraints.
    """

    def __init__(self, model: Stepwise, source: np.ndarray, source_offsets: np.ndarray, max_lengths: Sequence[int],
                 options: SearchOptions) -> None:
        self.model, self.options, self.max_lengths = model, options, max_lengths
        self.lines, self.banned, self.nan = list(range(len(max_lengths))), options.banned, False
        self.state = model.start(source, source_offsets)

    def finish(self) -> list[list[Hypothesis]]:
        """Do all steps. Return the finished hypotheses of each sentence, group by group."""
        options, groups, longest = self.options, self.options.groups, max(self.max_lengths)
        results: list[list[Hypothesis]] = [[] for _ in self.max_lengths]
        last_tokens = np.full(len(self.lines), START_ID, np.int64)
        if groups > 1:                                                          # every group has a row of its own
            self.state = self.state.select(np.arange(len(self.lines)).repeat(groups).reshape(-1, groups))
            last_tokens = last_tokens.repeat(groups)
        beams: Beams | None = None
        for length in range(1, longest + 1):
            scores, self.state = self.model.step(last_tokens, self.state)
            if beams is None:
                beams = Beams([each for each in self.max_lengths for _ in range(groups)], options.group_size,
                              options.finished_per_group, scores.dtype)
            width = beams.totals.shape[1]
            bonuses = None if options.bonus is None else options.bonus(self.state).reshape(beams.totals.shape)
            parents = beams.advance(self._continuations(scores, beams), bonuses)
            done = beams.done.reshape(-1, groups).all(1)
            finished = np.flatnonzero(done).tolist()
            if length == longest or len(finished) == len(self.lines):
                break
            rows = parents + np.arange(0, width * len(parents), width)[:, None]
            if finished:
                kept = np.flatnonzero(~done)
                for sentence in finished:
                    self._record(results, beams, sentence)
                of_kept = (kept[:, None] * groups + np.arange(groups)).ravel()
                beams.keep(of_kept)
                self.lines, rows = [self.lines[sentence] for sentence in kept], rows[of_kept]
            last_tokens = beams.tokens[:, :, -1].ravel()
            if finished or options.group_size > 1:                              # else each row continues itself
                self.state = self.state.select(rows.reshape(len(self.lines), -1))
        assert beams is not None
        for sentence in range(len(self.lines)):
            self._record(results, beams, sentence)
        return results

    def _record(self, results: list[list[Hypothesis]], beams: Beams, sentence: int) -> None:
        groups = self.options.groups
        results[self.lines[sentence]] = list(chain(*beams.finished[sentence * groups : (sentence + 1) * groups]))

    def _continuations(self, scores: Scores, beams: Beams) -> Continuations:
        """Return the best continuations, or those that logits processors and candidate selection choose."""
        options, count, totals = self.options, 2 * self.options.group_size, beams.totals
        if options.first_id is not None and not beams.length:
            return _given(options.first_id, len(totals), count, totals.dtype)
        must_end = beams.must_end() if beams.length + 1 >= min(self.max_lengths) else None
        if not options.has_constraints:
            return scores.best(totals, self.banned, must_end, count, options.skip_log_softmax)
        by_group = totals.reshape(len(self.lines), options.groups, -1)
        hypotheses = Hypotheses(beams.tokens.reshape(len(self.lines), by_group[0].size, beams.length), self.lines)
        # The log-sum-exp is subtracted before logits processors set the logits of forbidden tokens to -inf. The other
        # tokens therefore keep their probability.
        past = by_group if options.skip_log_softmax else by_group - scores.log_sum_exp().reshape(by_group.shape)
        for processor in options.logits_processors:
            processor(hypotheses, scores)
        if options.candidate_selection is None:
            continuations = scores.best(past.reshape(totals.shape), self.banned, must_end, count, True)
        else:
            scores.ban(self.banned, must_end)
            selected = options.candidate_selection(hypotheses, scores, past, count)
            best, parents, ids = (part.reshape(len(totals), -1) for part in selected)
            continuations = best, parents, ids
        self.nan |= math.isnan(past.max()) or math.isnan(continuations[0].max())  # the maximum of NaN is NaN
        return continuations


def _given(index: int, groups: int, count: int, dtype: np.dtype[Any]) -> Continuations:
    """Return continuations of empty hypotheses: the given id with log p = 0, and no other."""
    totals = np.full((groups, count), -math.inf, dtype)
    totals[:, 0] = 0
    return totals, np.zeros((groups, count), np.int64), np.full((groups, count), index)
