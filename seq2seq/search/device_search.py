"""Beam search whose bookkeeping stays on the GPU.

`search.beam.search` does its bookkeeping in NumPy. With a model on a GPU, the host therefore waits for the GPU several
times per step. Here the host waits only once in CHECK_STEPS steps, to read which sentences are finished. The results
are the same as those of `search.beam.search` without hooks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.model.interface import Stepwise
from seq2seq.search.topk import ban, log_sum_exp, topk_of_groups
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

CHECK_STEPS = 8
"""Number of steps between two checks for finished sentences. At each check, the host waits for the GPU."""


@dataclass
class Beams:
    """Unfinished and finished hypotheses of a search. `advance` writes its results into these tensors.

    length: (1,), number of tokens of the unfinished hypotheses; equal to the number of steps so far.
    sentences: (sentences,), index of each sentence in the input; -1 for a filler, a row without a sentence.
    limits: (sentences,), maximum number of tokens, not counting `</s>`.
    tokens: (sentences, beam), last token of each unfinished hypothesis.
    totals: (sentences, beam), log p of each unfinished hypothesis; -inf for a place in the beam without a hypothesis.
    history: (sentences, steps, beam), token * beam + parent of each unfinished hypothesis after each step. The parent
        is the index, in the beam before the step, of the hypothesis that was continued.
    done: (sentences,) bool, True = finished. count: (sentences,), number of finished hypotheses.
    finished_totals: (sentences, places), log p of the finished hypotheses. finished_ends: (sentences, places), n * beam
        + i for a hypothesis that had n tokens and index i in the beam when `</s>` finished it. In both
        tensors, the last place is a dummy: `advance` writes to it for candidates that do not finish a hypothesis.
    """

    length: Tensor
    sentences: Tensor
    limits: Tensor
    tokens: Tensor
    totals: Tensor
    history: Tensor
    done: Tensor
    count: Tensor
    finished_totals: Tensor
    finished_ends: Tensor

    @staticmethod
    def start(max_lengths: Sequence[int], steps: int, beam_size: int, enough: int, dtype: torch.dtype,
              device: torch.device, fillers: int = 0) -> Beams:
        """Return the beams before the first step: one empty hypothesis for each sentence.

        steps: number of steps that fit into the history. dtype: dtype of log p. fillers: number of fillers after the
        sentences. Other arguments: as in `device_search`.
        """
        size = len(max_lengths) + fillers
        numbers = torch.tensor([[*range(len(max_lengths)), *[-1] * fillers], [*max_lengths, *[1] * fillers]])
        sentences, limits = copy_to_device(numbers, device)
        totals = torch.full((size, beam_size), -math.inf, dtype=dtype, device=device)
        totals[:, 0] = 0
        # One step may add `beam_size` finished hypotheses to `enough` - 1 earlier ones.
        room = enough + beam_size
        return Beams(limits.new_zeros(1), sentences, limits - 1, limits.new_full((size, beam_size), START_ID), totals,
                     limits.new_zeros(size, steps, beam_size), sentences < 0, limits.new_zeros(size),
                     totals.new_full((size, room + 1), -math.inf), limits.new_zeros(size, room + 1))

    def select(self, rows: Tensor) -> Beams:
        """Return a copy with only some sentences. rows: indices of these sentences in the tensors."""
        return Beams(self.length.clone(), *(getattr(self, field.name).index_select(0, rows)
                                            for field in fields(self)[1:]))

    def copy_from(self, other: Beams) -> None:
        """Overwrite the tensors of this object with the values of another.

        If the numbers of steps of the two histories differ, the smaller number of steps is copied.
        """
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "history":
                steps = min(mine.shape[1], theirs.shape[1])
                mine, theirs = mine[:, :steps], theirs[:, :steps]
            mine.copy_(theirs)

    def advance(self, logits: Tensor, forbidden: Tensor, enough: int, must_end: bool) -> Tensor:
        """Do a step: record the hypotheses that `</s>` finishes, and continue each beam with other tokens.

        Args:
            logits: (sentences * beam, vocab_size); they are overwritten. forbidden: banned token ids, without `</s>`.
            enough: number of finished hypotheses with which a sentence is finished.
            must_end: False = skip the check for maximum lengths, because no sentence has reached its maximum length.
        Returns:
            For each hypothesis after the step, the row of its parent in `logits`, (sentences, beam).
        """
        sentences, beam = self.totals.shape
        logits = logits if logits.dtype == torch.float64 else logits.float()
        past = self.totals - log_sum_exp(logits).view(sentences, beam)
        ban(logits, forbidden, self.limits <= self.length if must_end else None)
        totals, parents, ids = topk_of_groups(logits, past, 2 * beam)
        ends, possible = ids == END_ID, totals > -math.inf                      # `possible` is False for NaN
        stops = ends | ~possible
        first = torch.arange(sentences, device=logits.device)[:, None]
        # Each `</s>` among the first `beam` candidates finishes a hypothesis. Other candidates get the dummy place.
        new = (ends & possible)[:, :beam] & ~self.done[:, None]
        places = torch.where(new, self.count[:, None] + new.cumsum(1) - 1, self.finished_ends.shape[1] - 1)
        self.finished_totals[first, places] = totals[:, :beam]
        self.finished_ends[first, places] = parents[:, :beam] + self.length * beam
        self.count += new.sum(1)
        # The first `beam` candidates other than `</s>` form the next beam.
        order = stops.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam]
        parents = parents.gather(1, order)
        torch.gather(ids, 1, order, out=self.tokens)
        torch.gather(totals.masked_fill_(stops, -math.inf), 1, order, out=self.totals)
        self.history.index_copy_(1, self.length, torch.add(parents, self.tokens, alpha=beam)[:, None])
        self.done |= (self.count >= enough) | (self.totals[:, 0] == -math.inf)
        self.length += 1
        return first * beam + parents

    def finished(self, steps: int) -> dict[int, list[tuple[list[int], float]]]:
        """Return the finished hypotheses of each sentence, by index of the sentence in the input.

        A hypothesis is a pair: token ids without `</s>`, and log p. steps: number of steps so far.
        """
        size, width = self.finished_ends.shape
        bits = self.finished_totals.double().view(torch.int64)                  # fp64 bits as integers
        columns = torch.cat([self.sentences[:, None], self.count[:, None], bits, self.finished_ends,
                             self.history[:, :steps].flatten(1)], 1).cpu().numpy()
        totals = columns[:, 2 : 2 + width].view(np.float64).tolist()
        beam = self.tokens.shape[1]
        lengths, rows = np.divmod(columns[:, 2 + width : 2 + 2 * width], beam)
        chosen, parents = np.divmod(columns[:, 2 + 2 * width :].reshape(size, steps, beam), beam)
        tokens = np.zeros((size, width, steps), np.int64)
        sentence = np.arange(size)[:, None]
        for step in reversed(range(steps)):                                     # from the last token to the first
            tokens[:, :, step] = chosen[sentence, step, rows]
            rows = np.where(step < lengths, parents[sentence, step, rows], rows)
        return {index: [(tokens[row, place, : lengths[row, place]].tolist(), totals[row][place])
                        for place in range(count)]
                for row, (index, count) in enumerate(columns[:, :2].tolist()) if index >= 0}


class Decoder(Protocol):
    """Model together with the beams of a search."""

    @property
    def beams(self) -> Beams:
        """Hypotheses after the latest step."""

    def advance(self, length: int) -> None:
        """Do step `length`, from 1, without waiting for the GPU. Unfinished hypotheses then have `length` tokens."""

    def keep(self, unfinished: Sequence[int]) -> None:
        """Remove finished sentences. If it is cheaper, some or all finished sentences may stay.

        unfinished: rows of the unfinished sentences in `beams.sentences`.
        """


def search_on_device(decoder: Decoder, max_lengths: Sequence[int]) -> list[list[tuple[list[int], float]]]:
    """Do a whole search. decoder: before its first step. max_lengths, result: as in `interface.WholeSearch`."""
    results: dict[int, list[tuple[list[int], float]]] = {}
    length = 0
    for length in range(1, max(max_lengths, default=0) + 1):
        decoder.advance(length)
        if length % CHECK_STEPS == 0 and length < max(max_lengths):
            done = decoder.beams.done.tolist()
            unfinished = [row for row, is_done in enumerate(done) if not is_done]
            if not unfinished:
                break
            # Finished sentences are removed only if at least half of the sentences are finished, because removal copies
            # the KV caches.
            if 2 * len(unfinished) <= len(done):
                results |= decoder.beams.finished(length)
                decoder.keep(unfinished)
    if length:
        results |= decoder.beams.finished(length)
    return [results[sentence] for sentence in range(len(max_lengths))]


@torch.inference_mode()
def device_search(model: Stepwise, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                  max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                  ) -> list[list[tuple[list[int], float]]]:
    """See `search.interface.WholeSearch`. model: the model or engine to search with."""
    return search_on_device(_StepwiseDecoder(model, model.start(source, source_offsets, longest_source), beam_size,
                                             max_lengths, enough, forbidden, source.device), max_lengths)


class _StepwiseDecoder:
    """Decoder that runs any model with the step interface."""

    beams: Beams
    rows: Tensor

    def __init__(self, model: Stepwise, state: Any, beam_size: int, max_lengths: Sequence[int], enough: int,
                 forbidden: Sequence[int], device: torch.device) -> None:
        self.model, self.state, self.device = model, state, device
        self.max_lengths, self.beam_size, self.enough = max_lengths, beam_size, enough
        self.forbidden = copy_to_device(torch.tensor(forbidden, dtype=torch.int64), device)

    def advance(self, length: int) -> None:
        """See `Decoder.advance`."""
        if length == 1:
            # In the first step, the state has one row per sentence; in later steps, one row per hypothesis.
            tokens = torch.full((len(self.max_lengths),), START_ID, dtype=torch.int64, device=self.device)
        else:
            tokens, self.state = self.beams.tokens.flatten(), self.state.select(self.rows)
        logits, self.state = self.model.step(tokens, self.state)
        if length == 1:
            logits = logits.repeat_interleave(self.beam_size, 0)
            self.beams = Beams.start(self.max_lengths, max(self.max_lengths), self.beam_size, self.enough,
                                     torch.promote_types(logits.dtype, torch.float32), self.device)
        self.rows = self.beams.advance(logits, self.forbidden, self.enough, length >= min(self.max_lengths))
        if length == 1:
            self.rows //= self.beam_size

    def keep(self, unfinished: Sequence[int]) -> None:
        """See `Decoder.keep`."""
        kept = copy_to_device(torch.tensor(unfinished), self.device)
        self.beams, self.rows = self.beams.select(kept), self.rows.index_select(0, kept)
