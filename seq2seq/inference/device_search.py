"""Bookkeeping of a search in tensors: unfinished and finished hypotheses, on the device of the model.

On a GPU, no operation of this module except `Beams.finished` waits for the GPU, and `Beams.advance` can be part of a
CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.search.topk import Continuations
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


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


@dataclass
class Beams:
    """Hypotheses of all groups (see `SearchOptions.groups`). `advance` writes its results into these tensors.

    length: (1,), number of tokens of the unfinished hypotheses; equal to the number of steps so far.
    limits: (groups,), maximum number of tokens, not counting `</s>`.
    last_tokens: (groups, beam), last token of each unfinished hypothesis; before the first step, the start symbol.
    tokens: (groups, beam, longest), tokens of each unfinished hypothesis, and `</s>` after them.
    totals: (groups, beam), log p of each unfinished hypothesis; -inf for a place in the beam without a hypothesis. All
        places of a finished group are without, so that other groups do not avoid tokens that are not in the result.
    done: (groups,) bool, True = finished. count: (groups,), number of finished hypotheses.
    finished_tokens, finished_totals, finished_bonuses: (groups, places, longest), (groups, places), (groups, places),
        the finished hypotheses in the order in which they ended. The first place is a dummy: `advance` writes to it for
        candidates that do not finish a hypothesis.
    """

    length: Tensor
    limits: Tensor
    last_tokens: Tensor
    tokens: Tensor
    totals: Tensor
    done: Tensor
    count: Tensor
    finished_tokens: Tensor
    finished_totals: Tensor
    finished_bonuses: Tensor

    @staticmethod
    def start(max_lengths: Sequence[int], longest: int, group_size: int, finished_per_group: int, dtype: torch.dtype,
              device: torch.device) -> Beams:
        """Return the beams before the first step: one empty hypothesis for each group.

        max_lengths: maximum number of tokens of each group, `</s>` included. longest: at least the largest maximum.
        finished_per_group: see `SearchOptions`. dtype: dtype of log p.
        """
        groups = len(max_lengths)
        limits = copy_to_device(torch.tensor([each - 1 for each in max_lengths], dtype=torch.int64), device)
        totals = torch.full((groups, group_size), -math.inf, dtype=dtype, device=device)
        totals[:, 0] = 0
        # One step may add `group_size` finished hypotheses to `finished_per_group` - 1 earlier ones.
        places = finished_per_group + group_size
        return Beams(limits.new_zeros(1), limits, limits.new_full((groups, group_size), START_ID),
                     limits.new_full((groups, group_size, longest), END_ID), totals,
                     limits.new_zeros(groups, dtype=torch.bool), limits.new_zeros(groups),
                     limits.new_full((groups, places, longest), END_ID),
                     *totals.new_zeros(2, groups, places, dtype=torch.float64))

    def select(self, groups: Tensor) -> Beams:
        """Return a copy with only some groups."""
        return Beams(self.length.clone(), *(getattr(self, field.name).index_select(0, groups)
                                            for field in fields(self)[1:]))

    def copy_from(self, other: Beams) -> None:
        """Overwrite the tensors of this object with the values of another, whose `longest` may differ."""
        longest = min(self.tokens.shape[2], other.tokens.shape[2])
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine.dim() == 3 and mine.shape != theirs.shape:
                mine.fill_(END_ID)
                mine, theirs = mine[:, :, :longest], theirs[:, :, :longest]
            mine.copy_(theirs)

    def must_end(self) -> Tensor:
        """Return which groups have reached their maximum length, so that only `</s>` may follow: (groups,) bool."""
        return self.limits <= self.length

    def advance(self, continuations: Continuations, finished_per_group: int, longest: int,
                bonuses: Tensor | None = None) -> Tensor:
        """Do a step: record the hypotheses that `</s>` finishes, and continue each group with other tokens.

        Args:
            continuations: at least `group_size` continuations of each group, `</s>` and others.
            longest: upper limit of the number of tokens after this step.
            bonuses: (groups, beam), bonus of each hypothesis if it ends in this step; None: no bonus.
        Returns:
            For each hypothesis after the step, the index of the hypothesis that it continues, (groups, beam). Index
            group * beam + i is hypothesis i of a group.
        """
        totals, parents, ids = continuations
        (groups, size), places = self.totals.shape, self.finished_totals.shape[1]
        first = torch.arange(0, groups * size, size, device=totals.device)[:, None]
        rows = parents[:, :size] + first
        tokens = self.tokens[:, :, :longest]
        if totals.is_cuda or _some_stop(totals[:, :size], ids[:, :size]):       # a question to a GPU would wait for it
            ends, possible = ids == END_ID, totals > -math.inf                  # `possible` is False for NaN
            finishes = ends & possible
            continues = possible ^ finishes
            # Each `</s>` among the first `size` candidates finishes a hypothesis. Others get the dummy place.
            new = finishes[:, :size]
            place = (self.count[:, None] + new.cumsum(1)).mul_(new).add_(
                torch.arange(0, groups * places, places, device=totals.device)[:, None]).flatten()
            self.finished_tokens[:, :, :longest].flatten(0, 1).index_copy_(
                0, place, tokens.flatten(0, 1).index_select(0, rows.flatten()))
            self.finished_totals.view(-1).index_copy_(0, place, totals[:, :size].flatten().double())
            if bonuses is not None:
                self.finished_bonuses.view(-1).index_copy_(
                    0, place, bonuses.gather(1, parents[:, :size]).flatten().double())
            self.count += new.sum(1)
            # The first `size` candidates other than `</s>` form the next beam.
            order = continues.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :size]
            rows, ids = parents.gather(1, order) + first, ids.gather(1, order)
            totals = torch.where(continues, totals, -math.inf).gather(1, order)
            torch.logical_or(self.count >= finished_per_group, totals[:, 0] == -math.inf, out=self.done)
            totals.masked_fill_(self.done[:, None], -math.inf)
        if size > 1:
            tokens.copy_(tokens.flatten(0, 1).index_select(0, rows.flatten()).view(tokens.shape))
        self.tokens.index_copy_(2, self.length, ids[:, :size, None])
        self.last_tokens.copy_(ids[:, :size])
        self.totals.copy_(totals[:, :size])
        self.length += 1
        return rows

    def finished(self, longest: int, groups: Tensor | None = None) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of each group, in the order in which they ended. On a GPU, this waits once.

        longest: number of steps so far. groups: indices of the groups to return; None: all.
        """
        places = self.finished_totals.shape[1] - 1                              # without the dummy
        count, totals_so_far, bonuses_so_far, tokens_so_far = (
            each if groups is None else each.index_select(0, groups)
            for each in (self.count, self.finished_totals, self.finished_bonuses, self.finished_tokens))
        columns = [count[:, None], totals_so_far[:, 1:].view(torch.int64),
                   bonuses_so_far[:, 1:].view(torch.int64), tokens_so_far[:, 1:, :longest].flatten(1)]
        values = torch.cat(columns, 1).cpu().numpy()
        totals, bonuses = values[:, 1 : 1 + 2 * places].view(np.float64).reshape(-1, 2, places).swapaxes(0, 1).tolist()
        tokens = values[:, 1 + 2 * places :].reshape(-1, places, longest)
        lengths = (tokens != END_ID).sum(2)
        return [[Hypothesis(tokens[group, place, : lengths[group, place]].tolist(), totals[group][place],
                            bonuses[group][place]) for place in range(count)]
                for group, count in enumerate(values[:, 0].tolist())]


def _some_stop(totals: Tensor, ids: Tensor) -> bool:
    """Return True if some of these candidates, on a CPU, are `</s>` or impossible. In most steps, none is.

    NumPy has a fraction of PyTorch's overhead per operation.
    """
    return not ((ids.numpy() != END_ID) & (totals.numpy() > -math.inf)).all()
