"""Logits of a step in a tensor, with the operations that search needs: those of search/scores.py, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.search.interface import Continuations
from seq2seq.search.scores import BLOCK, NOTHING_BANNED
from seq2seq.tokenizers.tokenizer import END_ID

TensorContinuations = tuple[Tensor, Tensor, Tensor]
"""Tensors (totals, beams, ids), each (groups, candidates), best candidate first.

totals: log p of the hypothesis with its continuation; -inf for an element without a possible continuation. beams: index
of the continued hypothesis in its group. ids: next token.
"""


def topk(logits: Tensor, totals: Tensor, banned: Tensor, must_end: Tensor | None, count: int,
         skip_log_softmax: bool) -> TensorContinuations:
    """Return the `count` best continuations of each group of hypotheses.

    Args:
        logits: (rows, vocab_size), one row per hypothesis, group by group; they are overwritten.
        totals: (groups, beam), log p of each hypothesis.
        banned: banned ids; never includes `</s>`. The probabilities of the other ids are not renormalised.
        must_end: (groups,) bool, True = only `</s>` may follow, because any other token would make the targets exceed
            their maximum length; None: False for all groups.
        skip_log_softmax: True to use the logits as scores, without log-softmax.
    """
    past = totals if skip_log_softmax else totals - logits.logsumexp(1).view(totals.shape)
    ban(logits, banned, must_end)
    return topk_of_groups(logits, past, count)


def at_least_fp32(logits: Tensor) -> Tensor:
    """Return logits in fp32, or in fp64 if they have this dtype. bf16 and fp16 would be too inexact for log p."""
    return logits if logits.dtype == torch.float64 else logits.float()


def ban(logits: Tensor, banned: Tensor, must_end: Tensor | None) -> None:
    """Set to -inf, in place, the logits of the tokens that must not come next. Arguments: as in `topk`."""
    logits.index_fill_(1, banned, -math.inf)
    if must_end is not None:
        ending = logits[:, END_ID].clone()
        rows = must_end.repeat_interleave(len(logits) // len(must_end))
        logits.masked_fill_(rows[:, None], -math.inf)[:, END_ID] = ending


def topk_of_groups(logits: Tensor, past: Tensor, count: int) -> TensorContinuations:
    """Return the `count` largest sums of past and logits for each group.

    All logits are read only once, to compute the maximum of each block of the vocabulary. Then only the blocks with the
    largest maxima are searched.

    Args:
        logits: (rows, vocab_size). past: (groups, beam).
    """
    (groups, beam), vocab_size = past.shape, logits.shape[1]
    if padding := -(-max(vocab_size, count) // BLOCK) * BLOCK - vocab_size:
        logits = F.pad(logits, (0, padding), value=-math.inf)
    blocks, width, per_row = logits.view(groups, -1, BLOCK), logits.shape[1], logits.shape[1] // BLOCK
    maxima = (blocks.amax(2).view(groups, beam, per_row) + past[:, :, None]).flatten(1)
    _, chosen = maxima.topk(min(count, maxima.shape[1]), dim=1)                 # (groups, blocks)
    first = torch.arange(0, groups * beam * per_row, beam * per_row, device=logits.device)
    searched = blocks.flatten(0, 1).index_select(0, (chosen + first[:, None]).flatten()).view(groups, -1, BLOCK)
    totals = (searched + past.gather(1, chosen // per_row)[:, :, None]).flatten(1)
    best, indices = totals.topk(min(count, totals.shape[1]), dim=1)
    continuations = chosen.gather(1, indices // BLOCK) * BLOCK + indices % BLOCK  # beam * width + id
    # If a group has fewer than `count` continuations, the results include padding of the last block. Padding has
    # totals of -inf, and its ids are clamped to the vocabulary.
    return best, continuations // width, (continuations % width).clamp_(max=vocab_size - 1)


@dataclass(frozen=True, eq=False)
class TensorScores:
    """Scores in a tensor, (rows, vocab_size), in fp32 or fp64. The methods are those of `search.interface.Scores`. Each
    method that returns arrays waits for the GPU.

    The methods that change the logits in place run in inference mode, because PyTorch refuses to change the results of
    a model that ran in this mode outside it.
    """

    logits: Tensor

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64 if self.logits.dtype == torch.float64 else np.float32)

    def _tensor(self, array: np.ndarray | float) -> Tensor:
        return torch.as_tensor(array, device=self.logits.device)

    @torch.inference_mode()
    def best(self, totals: np.ndarray, banned: np.ndarray, must_end: np.ndarray | None, count: int,
             skip_log_softmax: bool) -> Continuations:
        found = topk(self.logits, self._tensor(totals), self._tensor(banned),
                     None if must_end is None else self._tensor(must_end), count, skip_log_softmax)
        totals, beams, ids = (part.cpu().numpy() for part in found)
        return totals, beams, ids

    @torch.inference_mode()
    def ban(self, banned: np.ndarray, must_end: np.ndarray | None) -> None:
        ban(self.logits, self._tensor(banned), None if must_end is None else self._tensor(must_end))

    def best_of_rows(self, rows: np.ndarray, past: np.ndarray, count: int) -> Continuations:
        chosen = TensorScores(self.logits.index_select(0, self._tensor(rows.ravel())))
        return chosen.best(past, NOTHING_BANNED, None, count, True)

    def log_sum_exp(self) -> np.ndarray:
        return self.logits.logsumexp(1).cpu().numpy()

    def values(self, rows: np.ndarray, ids: np.ndarray | int) -> np.ndarray:
        return self.logits[self._tensor(rows), self._tensor(ids)].cpu().numpy()

    @torch.inference_mode()
    def assign(self, rows: np.ndarray, ids: np.ndarray | int | slice, values: np.ndarray | float) -> None:
        columns = ids if isinstance(ids, slice) else self._tensor(ids)
        self.logits[self._tensor(rows), columns] = self._tensor(values).to(self.logits.dtype)

    def best_ids(self, rows: np.ndarray, excluded: np.ndarray | None = None) -> np.ndarray:
        logits = self.logits.index_select(0, self._tensor(rows))
        if excluded is not None:
            logits = logits.masked_fill(self._tensor(excluded), -math.inf)
        return logits.argmax(1).cpu().numpy()

    def sample(self, numbers: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
        return sample_tokens(truncate(self.logits, temperature, top_k, top_p, min_p), numbers).cpu().numpy()

    def log_softmax(self) -> TensorScores:
        return TensorScores(self.logits.log_softmax(1))

    def plus(self, other: TensorScores, weight: float) -> TensorScores:
        return TensorScores(self.logits + weight * other.logits)

    def mean(self, others: Sequence[TensorScores]) -> TensorScores:
        return TensorScores(torch.stack([self.logits, *(other.logits for other in others)]).mean(0))

    def mean_probability(self, others: Sequence[TensorScores]) -> TensorScores:
        every = torch.stack([self.logits, *(other.logits for other in others)])
        return TensorScores(every.logsumexp(0) - math.log(len(every)))


def truncate(logits: Tensor, temperature: float, k: int, p: float, min_share: float) -> Tensor:
    if temperature != 1:
        logits = logits / temperature
    if 0 < k < logits.shape[1]:
        best, ids = logits.topk(k, dim=1)
        logits = torch.full_like(logits, -math.inf).scatter_(1, ids, best)
    if p != 1:
        probabilities, ids = logits.double().softmax(1).sort(dim=1, descending=True, stable=True)
        removed = probabilities.cumsum(1) - probabilities >= p                  # the more probable tokens suffice
        logits = logits.masked_fill(torch.empty_like(removed).scatter_(1, ids, removed), -math.inf)
    if min_share != 0:
        logits = logits.masked_fill(logits < logits.amax(1, keepdim=True) + math.log(min_share), -math.inf)
    return logits


def sample_tokens(logits: Tensor, numbers: np.ndarray) -> Tensor:
    sums = logits.double().softmax(1).cumsum(1)
    thresholds = torch.from_numpy(numbers).to(logits.device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, thresholds, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)
