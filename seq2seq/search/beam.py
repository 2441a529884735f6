"""Beam search with any model that has the step interface (`model.interface.Stepwise`).

The score of a hypothesis is log p(target) / length penalty. Both count `</s>` as a token of the target. Each step
computes the 2 * beam_size best continuations of a sentence. Each `</s>` among the first beam_size continuations
finishes a hypothesis. The best beam_size continuations with other tokens form the next beam. A sentence is finished
when it has beam_size finished hypotheses. `SearchOptions` can change these rules. With a beam size of 1, this is greedy
search; with a beam as large as the search space, exhaustive search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.model.interface import Stepwise
from seq2seq.search.device_search import device_search
from seq2seq.search.interface import TopK, WholeSearch
from seq2seq.search.options import Hypotheses, SearchOptions
from seq2seq.search.topk import ban, log_sum_exp, to_numpy
from seq2seq.search.topk import topk as default_topk
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


@dataclass(frozen=True)
class Hypothesis:
    """Finished hypothesis.

    tokens: target ids without `</s>`. log_probability: log p(tokens, `</s>` | source). score: number by which the
    hypotheses of a sentence are ranked, log_probability / length penalty + bonus. bonus: result of
    `SearchOptions.bonus`, for example the coverage penalty.
    """

    tokens: list[int]
    log_probability: float
    score: float
    bonus: float = 0.0


class NoHypothesis(Exception):
    """At least one sentence has no hypothesis that satisfies the constraints. lines: indices of these sentences."""

    def __init__(self, lines: list[int]) -> None:
        super().__init__(f"no hypothesis of sentences {lines} satisfies all constraints")
        self.lines = lines


# The bookkeeping of a search handles a few hundred numbers per step. It uses NumPy on the CPU, because an operation in
# NumPy has a fraction of the overhead of an operation in PyTorch.


@dataclass(frozen=True)
class _Frontier:
    """Unfinished hypotheses of the sentences whose search is not finished, in groups of `beam` hypotheses.

    The groups of a sentence are adjacent.

    group_ids: (groups,), index of each group among the groups of all sentences of the input. tokens: (groups, beam,
    length), target ids so far. totals: (groups, beam), log p of each hypothesis so far. max_lengths: (groups,), maximum
    number of target tokens, `</s>` included. done: (groups,) bool, True = the group is finished, but another group of
    its sentence is not.
    """

    group_ids: np.ndarray
    tokens: np.ndarray
    totals: np.ndarray
    max_lengths: np.ndarray
    done: np.ndarray
    groups_per_sentence: int

    @staticmethod
    def start(max_lengths: np.ndarray, groups_per_sentence: int) -> _Frontier:
        groups = len(max_lengths) * groups_per_sentence
        return _Frontier(np.arange(groups), np.empty((groups, 1, 0), np.int64), np.zeros((groups, 1), np.float32),
                         max_lengths.repeat(groups_per_sentence), np.zeros(groups, bool), groups_per_sentence)

    def hypotheses(self, device: torch.device) -> Hypotheses:
        lines = self.group_ids[:: self.groups_per_sentence] // self.groups_per_sentence
        _, beam, length = self.tokens.shape
        tokens = torch.from_numpy(self.tokens).to(device).view(len(lines), self.groups_per_sentence * beam, length)
        return Hypotheses(tokens, lines.tolist())

    @property
    def last_tokens(self) -> np.ndarray:
        """Last token of each hypothesis, (rows,); before the first step, the start symbol."""
        if not self.tokens.shape[2]:
            return np.full(self.totals.size, START_ID)
        return self.tokens[:, :, -1].ravel()


@dataclass(frozen=True)
class _Candidates:
    """Candidate continuations of each group, in order of preference.

    totals, beams, ids: as in `Continuations`. ends: (groups, candidates) bool, True = the candidate is `</s>`.
    continues: (groups, candidates) bool, True = the candidate is not `</s>`, and its total is above -inf.
    """

    totals: np.ndarray
    beams: np.ndarray
    ids: np.ndarray
    ends: np.ndarray
    continues: np.ndarray

    @staticmethod
    def from_continuations(totals: np.ndarray, beams: np.ndarray, ids: np.ndarray) -> _Candidates:
        ends = ids == END_ID
        # `totals > -np.inf` is False for NaN, too.
        return _Candidates(totals, beams, ids, ends, ~ends & (totals > -np.inf))


@torch.inference_mode()
def search(model: Stepwise, source: Tensor, source_offsets: Tensor, longest_source: int, max_lengths: Sequence[int],
           options: SearchOptions, topk: TopK = default_topk, whole_search: WholeSearch | None = None,
           ) -> list[list[Hypothesis]]:
    """Find the best hypotheses of each sentence.

    Args:
        source, source_offsets, longest_source: as in `Stepwise.start`.
        max_lengths: maximum number of target tokens of each sentence, `</s>` included. If a hypothesis reaches
            this length, its last token must be `</s>`.
        topk: `search.topk.topk` or an engine's implementation of it.
        whole_search: an engine's own beam search; None: on a GPU, use `device_search`. Neither is used if
            `options.has_hooks` is True or a maximum length exceeds the model's maximum number of positions.
    Returns:
        The hypotheses of each sentence, best first.
    Raises:
        NoHypothesis: a sentence has no hypothesis that satisfies the constraints.
        FloatingPointError: a sentence has no hypothesis, because the logits are NaN.
    """
    device, groups = source.device, options.groups
    banned_ids = [index for index in options.banned_ids if index != END_ID]
    if whole_search is None and device.type == "cuda":
        whole_search = partial(device_search, model)
    if whole_search is not None and not options.has_hooks and max(max_lengths, default=0) <= model.max_positions:
        ended = whole_search(source, source_offsets, longest_source, beam_size=options.beam_size,
                             max_lengths=max_lengths, enough=options.finished_per_group, forbidden=banned_ids)
        by_sentence = [[Hypothesis(tokens, total, total / options.length_penalty(len(tokens) + 1))
                        for tokens, total in hypotheses] for hypotheses in ended]
        return _n_best(by_sentence, options, constrained=False)
    banned = copy_to_device(torch.tensor(banned_ids, dtype=torch.int64), device)
    frontier = _Frontier.start(np.array(max_lengths, np.int64), groups)
    finished: list[list[Hypothesis]] = [[] for _ in frontier.group_ids]
    shortest_limit, nan = min(max_lengths, default=0), False
    state = model.start(source, source_offsets, longest_source)
    if groups > 1:
        state = state.select(torch.arange(len(max_lengths), device=device)[:, None].expand(-1, groups))
    while len(frontier.group_ids):
        logits, state = model.step(torch.from_numpy(frontier.last_tokens).to(device), state)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        length = frontier.tokens.shape[2] + 1
        must_end = frontier.max_lengths <= length if length >= shortest_limit else None
        totals, normalised = frontier.totals, options.skip_log_softmax
        if (options.logits_processors or options.candidate_selection) and not normalised:
            # The log-sum-exp is subtracted before logits processors set the logits of forbidden tokens to -inf. The
            # other tokens therefore keep their probability.
            totals, normalised = totals - log_sum_exp(logits).cpu().numpy().reshape(totals.shape), True
        for processor in options.logits_processors:
            logits = processor(frontier.hypotheses(device), logits)
        if options.candidate_selection is None:
            continuations = topk(logits, totals, banned, must_end, 2 * options.group_size, normalised)
        else:
            ban(logits, banned, None if must_end is None else torch.from_numpy(must_end).to(device))
            past = torch.from_numpy(totals).to(device).view(-1, groups, totals.shape[1])
            selected = options.candidate_selection(frontier.hypotheses(device), logits, past, 2 * options.group_size)
            continuations = to_numpy(tuple(tensor.flatten(0, 1) for tensor in selected))
        nan |= bool(np.isnan(totals).any() or np.isnan(continuations[0]).any())
        candidates = _Candidates.from_continuations(*continuations)
        bonuses = None if options.bonus is None else options.bonus(state).view(frontier.totals.shape).cpu().numpy()
        _add_finished(frontier, candidates, options, bonuses, finished)
        frontier, rows = _advance(frontier, candidates, options, finished)
        if len(rows) and not np.array_equal(rows.ravel(), np.arange(len(logits))):
            state = state.select(torch.from_numpy(rows).to(device))
    by_sentence = [list(chain(*finished[first : first + groups])) for first in range(0, len(finished), groups)]
    return _n_best(by_sentence, options, bool(options.logits_processors or options.candidate_selection) and not nan)


def _n_best(finished: Sequence[list[Hypothesis]], options: SearchOptions, constrained: bool) -> list[list[Hypothesis]]:
    """Return the n best finished hypotheses of each sentence, best first. Raises: as in `search`.

    constrained: True if constraints are the reason why a sentence has no hypothesis, False if NaN is the reason.
    """
    if without := [line for line, hypotheses in enumerate(finished) if not hypotheses]:
        if constrained:
            raise NoHypothesis(without)
        raise FloatingPointError("the model's scores are not numbers")
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: options.n_best] for hypotheses in finished]


def _add_finished(frontier: _Frontier, candidates: _Candidates, options: SearchOptions, bonuses: np.ndarray | None,
                  finished: list[list[Hypothesis]]) -> None:
    """Add to `finished` the hypotheses whose `</s>` is among the first `group_size` candidates of their group.

    bonuses: (groups, beam), bonus of each hypothesis if it ends in this step; None: no bonus. finished: finished
    hypotheses of each group, by group id.
    """
    size = options.group_size
    if not candidates.ends[:, :size].any():
        return
    ending = candidates.ends & (candidates.totals > -math.inf) & ~frontier.done[:, None]
    length = frontier.tokens.shape[2] + 1
    for group, rank in np.argwhere(ending[:, :size]).tolist():
        log_probability = float(candidates.totals[group, rank])
        parent = candidates.beams[group, rank]
        bonus = 0.0 if bonuses is None else float(bonuses[group, parent])
        finished[frontier.group_ids[group]].append(
            Hypothesis(frontier.tokens[group, parent].tolist(), log_probability,
                       log_probability / options.length_penalty(length) + bonus, bonus))


def _advance(frontier: _Frontier, candidates: _Candidates, options: SearchOptions,
             finished: list[list[Hypothesis]]) -> tuple[_Frontier, np.ndarray]:
    """Continue each group with its first candidates other than `</s>`. Drop sentences whose groups are all finished.

    Returns:
        The next frontier, and the argument of `State.select`: for each hypothesis of the next frontier, the row that it
        continues, (sentences, beam).
    """
    size = options.group_size
    beam, groups = frontier.tokens.shape[1], np.arange(len(frontier.group_ids))[:, None]
    if candidates.continues[:, :size].all() and not frontier.done.any():        # in most steps, no hypothesis ends
        parents = candidates.beams[:, :size]
        tokens = np.concatenate([frontier.tokens[groups, parents], candidates.ids[:, :size, None]], 2)
        after = replace(frontier, tokens=tokens, totals=candidates.totals[:, :size])
        return after, (groups * beam + parents).reshape(-1, frontier.groups_per_sentence * parents.shape[1])
    order = (~candidates.continues).argsort(axis=1, kind="stable")[:, :size]

    def first(values: np.ndarray) -> np.ndarray:
        return values[groups, order]                                            # 3 times as fast as `take_along_axis`

    totals = np.where(first(candidates.continues), first(candidates.totals), -np.inf).astype(candidates.totals.dtype)
    done = np.array([len(finished[group]) >= options.finished_per_group for group in frontier.group_ids])
    done |= totals[:, 0] == -np.inf
    totals[done] = -np.inf                      # so that other groups do not avoid tokens that are not in the result
    unfinished = ~done.reshape(-1, frontier.groups_per_sentence).all(1)
    kept = np.flatnonzero(unfinished.repeat(frontier.groups_per_sentence))
    parents = first(candidates.beams)[kept]
    tokens = np.concatenate([frontier.tokens[kept[:, None], parents], first(candidates.ids)[kept][:, :, None]], 2)
    after = _Frontier(frontier.group_ids[kept], tokens, totals[kept], frontier.max_lengths[kept], done[kept],
                      frontier.groups_per_sentence)
    rows = kept[:, None] * beam + parents
    return after, rows.reshape(-1, frontier.groups_per_sentence * rows.shape[1])
