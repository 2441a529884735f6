"""Beam search whose bookkeeping stays on the GPU.

`search.beam.search` keeps its bookkeeping in NumPy, so that on a GPU the host waits several times per step. Here it
waits once every CHECK_STEPS steps, for the sentences that are finished. The results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seq2seq.devices import copy_to_device
from seq2seq.model.interface import Stepwise
from seq2seq.search.topk import log_sum_exp, topk_torch
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

CHECK_STEPS = 8
"""Number of steps between two checks for finished sentences, which make the host wait for the GPU."""


@dataclass
class _Beams:
    """Hypotheses of the sentences in search. room: number of finished hypotheses that a sentence can have.

    sentences: (sentences,), index of each sentence in the input. limits: (sentences,), maximum lengths.
    tokens: (sentences, beam, length), totals: (sentences, beam), log p: unfinished hypotheses.
    done: (sentences,) bool. count: (sentences,), number of finished hypotheses.
    finished_totals, finished_lengths: (sentences, room + 1), finished_tokens: (sentences, room + 1, longest). The last
        column receives what is not kept.
    """

    sentences: Tensor
    limits: Tensor
    tokens: Tensor
    totals: Tensor
    done: Tensor
    count: Tensor
    finished_totals: Tensor
    finished_lengths: Tensor
    finished_tokens: Tensor

    @staticmethod
    def start(limits: Tensor, longest: int, room: int, dtype: torch.dtype) -> _Beams:
        sentences = len(limits)
        return _Beams(torch.arange(sentences, device=limits.device), limits, limits.new_empty(sentences, 1, 0),
                      torch.zeros(sentences, 1, dtype=dtype, device=limits.device),
                      torch.zeros(sentences, dtype=torch.bool, device=limits.device), limits.new_zeros(sentences),
                      torch.full((sentences, room + 1), -math.inf, dtype=dtype, device=limits.device),
                      limits.new_zeros(sentences, room + 1), limits.new_zeros(sentences, room + 1, longest))

    def select(self, rows: Tensor) -> _Beams:
        """Return the beams of some sentences; rows: their indices."""
        return _Beams(*(getattr(self, name).index_select(0, rows) for name in self.__dataclass_fields__))

    def finished(self) -> dict[int, list[tuple[list[int], float]]]:
        """Copy the finished hypotheses of all sentences to the host, by index of the sentence in the input."""
        room = self.finished_totals.shape[1]
        totals = self.finished_totals.double().view(torch.int64)                # the same bits, for a single copy
        columns = torch.cat([self.sentences[:, None], self.count[:, None], totals, self.finished_lengths,
                             self.finished_tokens.flatten(1)], 1).cpu()
        (sentences, counts), (bits, lengths, tokens) = columns[:, :2].T.tolist(), columns[:, 2:].split(
            [room, room, columns.shape[1] - 2 * room - 2], 1)
        log_p, lengths, tokens = bits.contiguous().view(torch.float64).tolist(), lengths.tolist(), tokens.view(
            len(columns), room, -1).tolist()
        return {sentence: [(tokens[row][index][: lengths[row][index]], log_p[row][index])
                           for index in range(counts[row])] for row, sentence in enumerate(sentences)}


@torch.inference_mode()
def device_search(model: Stepwise, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                  max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                  ) -> list[list[tuple[list[int], float]]]:
    """See `search.interface.WholeSearch`. model: the model or engine to search with."""
    device, longest, room = source.device, max(max_lengths, default=0), enough + beam_size
    limits, banned = (copy_to_device(torch.tensor(numbers, dtype=torch.int64), device)
                      for numbers in (max_lengths, forbidden))
    results: dict[int, list[tuple[list[int], float]]] = {}
    state: Any = model.start(source, source_offsets, longest_source)
    last_tokens = torch.full((len(max_lengths),), START_ID, dtype=torch.int64, device=device)
    beams: _Beams | None = None
    for length in range(1, longest + 1):
        logits, state = model.step(last_tokens, state)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        beams = beams or _Beams.start(limits, longest, room, logits.dtype)
        rows = _advance(beams, logits, banned, length, beam_size, enough, must_end=length >= min(max_lengths))
        if length % CHECK_STEPS == 0 and length < longest:
            unfinished = [row for row, done in enumerate(beams.done.tolist()) if not done]
            if not unfinished:
                break
            # The state is made smaller only when that saves half of the work, because it copies the caches.
            if 2 * len(unfinished) <= len(beams.done):
                results |= beams.finished()
                kept = copy_to_device(torch.tensor(unfinished), device)
                beams, rows = beams.select(kept), rows.index_select(0, kept)
        state = state.select(rows)
        last_tokens = beams.tokens[:, :, -1].flatten()
    if beams is not None:
        results |= beams.finished()
    return [results[sentence] for sentence in range(len(max_lengths))]


def _advance(beams: _Beams, logits: Tensor, banned: Tensor, length: int, beam_size: int, enough: int,
             must_end: bool) -> Tensor:
    """Add the hypotheses that end at `length` tokens to the finished ones, and continue each beam.

    must_end: True if a sentence may have reached its maximum length.
    Returns:
        The row that each hypothesis continues, (sentences, beam).
    """
    sentences, beam = beams.totals.shape
    past = beams.totals - log_sum_exp(logits).view(sentences, beam)
    logits.index_fill_(1, banned, -math.inf)
    if must_end:
        ending = logits[:, END_ID].clone()
        at_limit = (beams.limits <= length)[:, None].expand(sentences, beam).reshape(-1, 1)
        logits.masked_fill_(at_limit, -math.inf)[:, END_ID] = ending
    totals, parents, ids = topk_torch(logits, past, 2 * beam_size)
    ends = ids == END_ID
    continues = ~ends & (totals > -math.inf)                                    # False for NaN, too
    first = torch.arange(sentences, device=logits.device)[:, None]
    # Hypotheses that end among the first candidates are finished. The others are written to the last column.
    size = min(beam_size, totals.shape[1])
    new = (ends & (totals > -math.inf))[:, :size] & ~beams.done[:, None]
    room = beams.finished_totals.shape[1] - 1
    places = torch.where(new, beams.count[:, None] + new.cumsum(1) - 1, room)
    beams.finished_totals[first, places] = totals[:, :size]
    beams.finished_lengths[first, places] = length - 1
    beams.finished_tokens[:, :, : length - 1][first, places] = beams.tokens[first, parents[:, :size]]
    beams.count += new.sum(1)
    # The first candidates that do not end continue their hypotheses.
    order = (~continues).to(torch.uint8).argsort(dim=1, stable=True)[:, :size]
    parents, ids = parents.gather(1, order), ids.gather(1, order)
    beams.totals = totals.gather(1, order).masked_fill_(~continues.gather(1, order), -math.inf)
    beams.done |= (beams.count >= enough) | (beams.totals[:, 0] == -math.inf)
    beams.tokens = torch.cat([beams.tokens[first, parents], ids[:, :, None]], 2)
    return first * beam + parents

