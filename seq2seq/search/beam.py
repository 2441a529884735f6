"""Beam search over the step interface, for every model.

The score of a hypothesis is log p(target) / length^alpha, with `</s>` counted in both. Each step considers the 2 *
beam_size best continuations of a sentence. One that ends among the first beam_size of them is finished, and a sentence
is done when beam_size hypotheses have finished. A beam of 1 is greedy search; a beam as wide as the search space is
exhaustive.

Hooks: logits processors before normalisation (`score_functions`) and after it (`constraints`), and candidate selection
(`selection`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.model.interface import Stepwise
from seq2seq.search.interface import TopK, WholeSearch
from seq2seq.search.topk import ban, log_sum_exp, on_host
from seq2seq.search.topk import topk as default_topk
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


@dataclass(frozen=True)
class Hypothesis:
    """Finished hypothesis.

    tokens: ids without `</s>`. log_probability: log p(tokens, `</s>` | source). score: for ranking. bonus: the part of
    the score that does not come from the log-probability, such as the coverage penalty.
    """

    tokens: list[int]
    log_probability: float
    score: float
    bonus: float = 0.0


@dataclass(frozen=True)
class Hypotheses:
    """Unfinished hypotheses of some sentences, the input of logits processors.

    tokens: (sentences, beam, length), target ids so far. lines: index of each sentence in the input of the search.
    """

    tokens: Tensor
    lines: list[int]


class NoHypothesis(Exception):
    """No hypothesis satisfies the constraints. lines: indices of the sentences in the input of the search."""

    def __init__(self, lines: list[int]) -> None:
        super().__init__(f"no target of sentences {lines} meets all constraints")
        self.lines = lines


ScoreFunction = Callable[[Hypotheses, Tensor], Tensor]
"""Logits processor: (hypotheses, logits (rows, vocab_size)) -> logits."""

Selection = Callable[[Hypotheses, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""Candidate selection: (hypotheses, logits (rows, vocab_size), past (sentences, groups, beam of a group), count) ->
totals, beams, words, each (sentences, groups, candidates).

At most `count` continuations of each group's hypotheses, by priority. totals: past + logits, log p. beams: index of the
continued hypothesis in its group. words: id of the next token.
"""

LengthNormaliser = Callable[[int], float]


def power_normaliser(alpha: float) -> LengthNormaliser:
    """Return the length penalty length ** alpha; 0 compares sums of log-probabilities, 1 means per token."""
    return lambda length: float(length**alpha)


def wu_normaliser(alpha: float) -> LengthNormaliser:
    """Return the length penalty ((5 + length) / 6) ** alpha of Wu et al. 2016 (arXiv:1609.08144), section 7."""
    return lambda length: ((5 + length) / 6) ** alpha


# The bookkeeping of a search handles a few hundred numbers per step. It uses NumPy on the host, because NumPy's
# operations have several times less overhead than PyTorch's.


@dataclass(frozen=True)
class _Frontier:
    """Beams of the sentences in search; each sentence has `of_sentence` successive groups of hypotheses.

    numbers: (groups,), index of each group in the whole input. tokens: (groups, beam, length), with `beam` hypotheses
    per group. totals: (groups, beam), log p so far. limits: (groups,), longest target. done: (groups,) bool, True =
    the group is finished and waits for the other groups of its sentence.
    """

    numbers: np.ndarray
    tokens: np.ndarray
    totals: np.ndarray
    limits: np.ndarray
    done: np.ndarray
    of_sentence: int

    @staticmethod
    def begin(limits: np.ndarray, of_sentence: int) -> _Frontier:
        groups = len(limits) * of_sentence
        return _Frontier(np.arange(groups), np.empty((groups, 1, 0), np.int64), np.zeros((groups, 1), np.float32),
                         limits.repeat(of_sentence), np.zeros(groups, bool), of_sentence)

    def hypotheses(self, device: torch.device) -> Hypotheses:
        lines = self.numbers[:: self.of_sentence] // self.of_sentence
        _, beam, length = self.tokens.shape
        tokens = torch.from_numpy(self.tokens).to(device).view(len(lines), self.of_sentence * beam, length)
        return Hypotheses(tokens, lines.tolist())

    @property
    def last_tokens(self) -> np.ndarray:
        """(rows,)"""
        if not self.tokens.shape[2]:
            return np.full(self.totals.size, START_ID)
        return self.tokens[:, :, -1].ravel()


@dataclass(frozen=True)
class _Candidates:
    """Candidate continuations of each group, by priority; see `Continuations`.

    ends: (groups, candidates) bool, True = ends its hypothesis. stays: True = continues it, with log p above -inf.
    """

    totals: np.ndarray
    beams: np.ndarray
    ids: np.ndarray
    ends: np.ndarray
    stays: np.ndarray

    @staticmethod
    def of(totals: np.ndarray, beams: np.ndarray, ids: np.ndarray) -> _Candidates:
        ends = ids == END_ID
        # False for NaN, too.
        return _Candidates(totals, beams, ids, ends, ~ends & (totals > -np.inf))


@torch.inference_mode()
def search(
    model: Stepwise, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
    max_lengths: Sequence[int], normaliser: LengthNormaliser, banned: Sequence[int] = (), n_best: int = 1,
    score_functions: Sequence[ScoreFunction] = (), constraints: Sequence[ScoreFunction] = (),
    selection: Selection | None = None, groups: int = 1, patience: float = 1.0,
    bonus: Callable[[Any], Tensor] | None = None, normalised: bool = False, topk: TopK = default_topk,
    whole_search: WholeSearch | None = None,
) -> list[list[Hypothesis]]:
    """Find the best hypotheses of each sentence.

    Args:
        source: (source_tokens,), source_offsets: (sentences + 1,), longest_source: as in `Stepwise.start`.
        max_lengths: longest target of each sentence, `</s>` included; a hypothesis of this length must end.
        normaliser: length penalty, the divisor of the log-probability.
        banned: ids that no hypothesis may contain. Probabilities are not renormalised, so that scores stay the model's.
        n_best: number of hypotheses per sentence, at most `beam_size`; fewer are returned if fewer exist.
        score_functions: logits processors applied in this order before the log-softmax.
        constraints: logits processors applied after it, so that the remaining tokens keep their probability.
        selection: candidate selection; None: the most probable continuations.
        groups: number of equal parts of the beam that are searched independently.
        patience: a group is done when `patience` times its size have ended (Kasai et al. 2022, arXiv:2204.05424,
            equation 2); a group of one when its hypothesis has.
        bonus: function from the state after the last step to a term of the score of ending hypotheses, (rows,).
        normalised: use the logits as scores, without log-softmax.
        topk: function that finds the most probable continuations.
        whole_search: search of the engine, used if no hook is given.
    Returns:
        The hypotheses of each sentence, best first.
    Raises:
        ValueError: n_best exceeds beam_size, or `groups` does not divide it.
        NoHypothesis: no hypothesis of a sentence satisfies the constraints.
        FloatingPointError: the logits are NaN.
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"a beam of {beam_size} cannot give {n_best} hypotheses")
    if beam_size % groups:
        raise ValueError(f"a beam of {beam_size} cannot be cut into {groups} groups of equal size")
    device, size = source.device, beam_size // groups
    enough = size if size == 1 else max(size, round(size * patience))
    forbidden = torch.tensor([word for word in banned if word != END_ID], dtype=torch.int64, device=device)
    hooks = score_functions or constraints or selection or bonus or normalised or groups > 1
    if whole_search is not None and not hooks and max(max_lengths, default=0) <= model.max_positions:
        ended = whole_search(source, source_offsets, longest_source, beam_size=beam_size, max_lengths=max_lengths,
                             enough=enough, forbidden=forbidden.tolist())
        return _best([[Hypothesis(tokens, total, total / normaliser(len(tokens) + 1)) for tokens, total in each]
                      for each in ended], n_best, model, (source, source_offsets, longest_source), constrained=False)
    frontier = _Frontier.begin(np.array(max_lengths, np.int64), groups)
    finished: list[list[Hypothesis]] = [[] for _ in frontier.numbers]
    shortest_limit = min(max_lengths, default=0)
    state = model.start(source, source_offsets, longest_source)
    if groups > 1:
        state = state.select(torch.arange(len(max_lengths), device=device)[:, None].expand(-1, groups))
    while len(frontier.numbers):
        logits, state = model.step(torch.from_numpy(frontier.last_tokens).to(device), state)
        for function in score_functions:
            logits = function(frontier.hypotheses(device), logits)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        length = frontier.tokens.shape[2] + 1
        must_end = frontier.limits <= length if length >= shortest_limit else None
        totals, normal = frontier.totals, normalised
        if (constraints or selection) and not normalised:
            # Normalised before the constraints are applied, so that the remaining tokens keep their probability.
            totals, normal = totals - log_sum_exp(logits).cpu().numpy().reshape(totals.shape), True
        for function in constraints:
            logits = function(frontier.hypotheses(device), logits)
        if selection is None:
            found = topk(logits, totals, forbidden, must_end, 2 * size, normal)
        else:
            ban(logits, forbidden, must_end)
            past = torch.from_numpy(totals).to(device).view(-1, groups, totals.shape[1])
            selected = selection(frontier.hypotheses(device), logits, past, 2 * size)
            found = on_host(tuple(part.flatten(0, 1) for part in selected))
        candidates = _Candidates.of(*found)
        bonuses = None if bonus is None else bonus(state).view(frontier.totals.shape).cpu().numpy()
        _finish(frontier, candidates, size, normaliser, bonuses, finished)
        frontier, rows = _go_on(frontier, candidates, size, enough, finished)
        if len(rows) and not np.array_equal(rows.ravel(), np.arange(len(logits))):
            state = state.select(torch.from_numpy(rows).to(device))
    by_line = [list(chain(*finished[first : first + groups])) for first in range(0, len(finished), groups)]
    return _best(by_line, n_best, model, (source, source_offsets, longest_source), bool(constraints or selection))


def _best(ended: Sequence[list[Hypothesis]], n_best: int, model: Stepwise, source: tuple[Tensor, Tensor, int],
          constrained: bool) -> list[list[Hypothesis]]:
    """Return the best finished hypotheses of each sentence. Raises: as `search`."""
    if lacking := [line for line, hypotheses in enumerate(ended) if not hypotheses]:
        logits, _ = model.step(torch.full((len(ended),), START_ID, device=source[0].device), model.start(*source))
        if constrained and not logits.isnan().any():
            raise NoHypothesis(lacking)
        raise FloatingPointError("the model's scores are not numbers")
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:n_best] for hypotheses in ended]


def _finish(frontier: _Frontier, candidates: _Candidates, size: int, normaliser: LengthNormaliser,
            bonuses: np.ndarray | None, finished: list[list[Hypothesis]]) -> None:
    """Add the hypotheses that end among the first `size` candidates of their group to `finished`.

    bonuses: (groups, beam), terms of the score of hypotheses that end in this step.
    """
    if not candidates.ends[:, :size].any():
        return
    ending = candidates.ends & (candidates.totals > -math.inf) & ~frontier.done[:, None]
    length = frontier.tokens.shape[2] + 1
    for group, rank in np.argwhere(ending[:, :size]).tolist():
        log_probability = float(candidates.totals[group, rank])
        parent = candidates.beams[group, rank]
        bonus = 0.0 if bonuses is None else float(bonuses[group, parent])
        finished[frontier.numbers[group]].append(
            Hypothesis(frontier.tokens[group, parent].tolist(), log_probability,
                       log_probability / normaliser(length) + bonus, bonus))


def _go_on(frontier: _Frontier, candidates: _Candidates, size: int, enough: int,
           finished: list[list[Hypothesis]]) -> tuple[_Frontier, np.ndarray]:
    """Continue each group with its first `size` candidates that do not end, and drop finished sentences.

    A group is finished when it has `enough` hypotheses, a sentence when all its groups are.

    Returns:
        The next frontier, and the row that each hypothesis continues, (sentences, beam).
    """
    beam, groups = frontier.tokens.shape[1], np.arange(len(frontier.numbers))[:, None]
    if candidates.stays[:, :size].all() and not frontier.done.any():            # no hypothesis ends: most steps
        parents = candidates.beams[:, :size]
        tokens = np.concatenate([frontier.tokens[groups, parents], candidates.ids[:, :size, None]], 2)
        after = replace(frontier, tokens=tokens, totals=candidates.totals[:, :size])
        return after, (groups * beam + parents).reshape(-1, frontier.of_sentence * parents.shape[1])
    leaving = ~candidates.stays
    places = leaving.argsort(axis=1, kind="stable")[:, :size]

    def first(values: np.ndarray) -> np.ndarray:
        return values[groups, places]                                           # 3 times as fast as `take_along_axis`

    totals = np.where(first(leaving), -np.inf, first(candidates.totals)).astype(candidates.totals.dtype)
    done = np.array([len(finished[number]) >= enough for number in frontier.numbers]) | (totals[:, 0] == -np.inf)
    searched = ~done.reshape(-1, frontier.of_sentence).all(1)
    kept = np.flatnonzero(searched.repeat(frontier.of_sentence))
    parents = first(candidates.beams)[kept]
    tokens = np.concatenate([frontier.tokens[kept[:, None], parents], first(candidates.ids)[kept][:, :, None]], 2)
    after = _Frontier(frontier.numbers[kept], tokens, totals[kept], frontier.limits[kept], done[kept],
                      frontier.of_sentence)
    rows = kept[:, None] * beam + parents
    return after, rows.reshape(-1, frontier.of_sentence * rows.shape[1])
