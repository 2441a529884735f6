"""Beam search without hooks on a GPU: what search/beam.py does on the host, in tensors on the device of the model.

No operation of this module waits for the GPU, except `Beams.finished` and the search for finished sentences, once in
`CHECK_STEPS` steps. `StepwiseRun` runs any model; inference/static.py has a faster search for Transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.inference.tensor_scores import TensorContinuations, at_least_fp32, topk
from seq2seq.search.beams import Hypothesis
from seq2seq.search.options import SearchOptions
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

CHECK_STEPS = 8
"""Number of steps between two checks for finished sentences on a GPU. At each check, the host waits for the GPU."""

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Function of a model: see `model.interface.Stepwise.step`."""


@dataclass
class Beams:
    """Hypotheses of all sentences.

    limits: (sentences,), maximum number of tokens, not counting `</s>`.
    tokens: (sentences, beam, length), tokens of each unfinished hypothesis.
    totals: (sentences, beam), log p of each unfinished hypothesis; -inf for a place in the beam without a hypothesis,
        and for all places of a finished sentence.
    done: (sentences,) bool, True = finished. count: (sentences,), number of finished hypotheses.
    finished_tokens, finished_totals: (sentences, places, longest) and (sentences, places), the finished hypotheses in
        the order in which they ended, with `</s>` after them. The first place is a dummy: `advance` writes to it for
        candidates that do not finish a hypothesis.
    """

    limits: Tensor
    tokens: Tensor
    totals: Tensor
    done: Tensor
    count: Tensor
    finished_tokens: Tensor
    finished_totals: Tensor

    @staticmethod
    def start(max_lengths: Sequence[int], beam_size: int, finished_per_sentence: int, dtype: torch.dtype,
              device: torch.device) -> Beams:
        """Return the beams before the first step: one empty hypothesis for each sentence.

        max_lengths: maximum number of tokens of each sentence, `</s>` included. finished_per_sentence: see
        `SearchOptions`. dtype: dtype of log p.
        """
        sentences = len(max_lengths)
        limits = copy_to_device(torch.tensor([each - 1 for each in max_lengths], dtype=torch.int64), device)
        totals = torch.full((sentences, beam_size), -math.inf, dtype=dtype, device=device)
        totals[:, 0] = 0
        # One step may add `beam_size` finished hypotheses to `finished_per_sentence` - 1 earlier ones.
        places = finished_per_sentence + beam_size
        return Beams(limits, limits.new_empty(sentences, beam_size, 0), totals,
                     limits.new_zeros(sentences, dtype=torch.bool), limits.new_zeros(sentences),
                     limits.new_full((sentences, places, max(max_lengths)), END_ID),
                     totals.new_zeros(sentences, places, dtype=torch.float64))

    def select(self, sentences: Tensor) -> Beams:
        """Return a copy with only some sentences."""
        return Beams(*(getattr(self, field.name).index_select(0, sentences) for field in fields(self)))

    def advance(self, continuations: TensorContinuations, finished_per_sentence: int) -> Tensor:
        """Do a step: record the hypotheses that `</s>` finishes, and continue each sentence with other tokens.

        Args:
            continuations: at least `beam_size` continuations of each sentence, `</s>` and others.
        Returns:
            For each hypothesis after the step, the index of the hypothesis that it continues, (sentences, beam). Index
            sentence * beam + i is hypothesis i of a sentence.
        """
        totals, parents, ids = continuations
        (sentences, size), places, length = self.totals.shape, self.finished_totals.shape[1], self.tokens.shape[2]
        first = torch.arange(0, sentences * size, size, device=totals.device)[:, None]
        rows, flat = (parents[:, :size] + first).flatten(), self.tokens.flatten(0, 1)
        ends, possible = ids == END_ID, totals > -math.inf                      # `possible` is False for NaN
        finishes = ends & possible
        continues = possible ^ finishes
        # Each `</s>` among the first `size` candidates finishes a hypothesis. Others get the dummy place.
        new = finishes[:, :size]
        place = (self.count[:, None] + new.cumsum(1)).mul_(new).add_(
            torch.arange(0, sentences * places, places, device=totals.device)[:, None]).flatten()
        self.finished_tokens[:, :, :length].flatten(0, 1).index_copy_(0, place, flat.index_select(0, rows))
        self.finished_totals.view(-1).index_copy_(0, place, totals[:, :size].flatten().double())
        self.count = self.count + new.sum(1)
        # The first `size` candidates other than `</s>` form the next beam.
        order = continues.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :size]
        rows, ids = parents.gather(1, order) + first, ids.gather(1, order)
        totals = torch.where(continues, totals, -math.inf).gather(1, order)
        self.done = (self.count >= finished_per_sentence) | (totals[:, 0] == -math.inf)
        self.totals = totals.masked_fill_(self.done[:, None], -math.inf)
        self.tokens = torch.cat([flat.index_select(0, rows.flatten()).view(self.tokens.shape), ids[:, :, None]], 2)
        return rows

    def finished(self, sentences: Tensor | None = None) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of each sentence, in the order in which they ended. On a GPU, this waits once.

        sentences: indices of the sentences to return; None: all.
        """
        places, longest = self.finished_totals.shape[1] - 1, self.tokens.shape[2]  # without the dummy
        count, totals_so_far, tokens_so_far = (
            each if sentences is None else each.index_select(0, sentences)
            for each in (self.count, self.finished_totals, self.finished_tokens))
        columns = [count[:, None], totals_so_far[:, 1:].view(torch.int64), tokens_so_far[:, 1:, :longest].flatten(1)]
        values = torch.cat(columns, 1).cpu().numpy()
        totals = values[:, 1 : 1 + places].view(np.float64).tolist()
        tokens = values[:, 1 + places :].reshape(-1, places, longest)
        lengths = (tokens != END_ID).sum(2)
        return [[Hypothesis(tokens[sentence, place, : lengths[sentence, place]].tolist(), totals[sentence][place])
                 for place in range(count)] for sentence, count in enumerate(values[:, 0].tolist())]


class SearchRun(Protocol):
    """Search of a batch, step by step."""

    @property
    def done(self) -> Tensor:
        """Mask of the finished sentences, (sentences,) bool."""

    @property
    def lines(self) -> list[int]:
        """Index of each sentence of the search in its input; -1 for a sentence that fills up the batch."""

    def advance(self, length: int) -> None:
        """Do step `length`, from 1, without waiting for the GPU. Unfinished hypotheses then have `length` tokens."""

    def finished(self, sentences: Sequence[int]) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of sentences, in the order in which they ended."""

    def keep(self, unfinished: Sequence[int]) -> None:
        """Remove finished sentences. If it is cheaper, some finished sentences may stay.

        unfinished: indices of the unfinished sentences in `lines`.
        """


def decode(run: SearchRun, max_lengths: Sequence[int]) -> list[list[Hypothesis]]:
    """Do a whole search. Return the finished hypotheses of each sentence.

    Finished sentences are looked for only once in CHECK_STEPS steps, because the host then waits for the GPU, and
    removed only if at least half of the sentences are finished, because removal costs time.

    run: before its first step. max_lengths: as in `search.beam.search`.
    """
    results: list[list[Hypothesis]] = [[] for _ in max_lengths]
    longest = max(max_lengths)

    def record(sentences: Sequence[int]) -> None:
        for sentence, finished in zip(sentences, run.finished(sentences), strict=True):
            if (line := run.lines[sentence]) >= 0:
                results[line] = finished

    for length in range(1, longest + 1):
        run.advance(length)
        if length == longest or length % CHECK_STEPS:
            continue
        done = run.done.cpu().tolist()
        ended, unfinished = ([sentence for sentence, each in enumerate(done) if each is wanted]
                             for wanted in (True, False))
        if not unfinished:
            break
        if ended and len(unfinished) <= len(ended):
            record(ended)
            run.keep(unfinished)
    record(range(len(run.lines)))
    return results


class StepwiseRun:
    """Search with any model.

    lines: see `SearchRun`. rows: (sentences, beam), row of the latest step that each row of the next step continues.
    """

    beams: Beams
    rows: Tensor

    def __init__(self, step: Step, state: Any, max_lengths: Sequence[int], options: SearchOptions, banned: Tensor
                 ) -> None:
        """state: state of the model before the first step. banned: banned ids, on the device."""
        self.step, self.state, self.options, self.banned = step, state, options, banned
        self.max_lengths, self.lines = max_lengths, list(range(len(max_lengths)))
        self.reordered = False                                                  # True: `rows` are not all rows in order

    @property
    def done(self) -> Tensor:
        return self.beams.done

    def finished(self, sentences: Sequence[int]) -> list[list[Hypothesis]]:
        every = len(sentences) == len(self.lines)
        return self.beams.finished(None if every else copy_to_device(torch.tensor(sentences), self.banned.device))

    def advance(self, length: int) -> None:
        options, size, device = self.options, self.options.beam_size, self.banned.device
        if self.reordered:
            self.state = self.state.select(self.rows)
        last_tokens = (torch.full((len(self.lines),), START_ID, device=device) if length == 1
                       else self.beams.tokens[:, :, -1].flatten())
        logits, self.state = self.step(last_tokens, self.state)
        logits = at_least_fp32(logits)
        if length == 1:
            self.beams = Beams.start(self.max_lengths, size, options.finished_per_group, logits.dtype, device)
        beams = self.beams
        must_end = beams.limits < length if length >= min(self.max_lengths) else None
        totals = beams.totals[:, : 1 if length == 1 else size]
        continuations = topk(logits, totals, self.banned, must_end, 2 * size, False)
        rows = beams.advance(continuations, options.finished_per_group)
        self.rows, self.reordered = rows if length > 1 else rows // size, size > 1

    def keep(self, unfinished: Sequence[int]) -> None:
        kept = copy_to_device(torch.tensor(unfinished), self.banned.device)
        self.beams, self.rows, self.reordered = self.beams.select(kept), self.rows.index_select(0, kept), True
        self.lines = [self.lines[sentence] for sentence in unfinished]
