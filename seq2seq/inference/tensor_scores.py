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

from seq2seq.devices import copy_to_device
from seq2seq.search.interface import Continuations
from seq2seq.search.scores import NOTHING_BANNED
from seq2seq.tokenizers.tokenizer import END_ID


def at_least_fp32(logits: Tensor) -> Tensor:
    """Return logits in fp32, or in fp64 if they have this dtype. bf16 and fp16 would be too inexact for log p."""
    return logits if logits.dtype == torch.float64 else logits.float()


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
        return copy_to_device(torch.as_tensor(array), self.logits.device)

    @torch.inference_mode()
    def best(self, totals: np.ndarray, banned: np.ndarray, must_end: np.ndarray | None, count: int,
             skip_log_softmax: bool) -> Continuations:
        past = self._tensor(totals)
        if not skip_log_softmax:
            past = past - self.logits.logsumexp(1).view(past.shape)
        self.ban(banned, must_end)
        (groups, beam), vocab_size = past.shape, self.logits.shape[1]
        sums = self.logits.view(groups, beam, vocab_size).add_(past[:, :, None]).flatten(1)
        best, indices = sums.topk(min(count, beam * vocab_size), dim=1)
        missing = 0, count - best.shape[1]                                      # a small vocabulary
        best, indices = F.pad(best, missing, value=-math.inf), F.pad(indices, missing)
        return best.cpu().numpy(), (indices // vocab_size).cpu().numpy(), (indices % vocab_size).cpu().numpy()

    @torch.inference_mode()
    def ban(self, banned: np.ndarray, must_end: np.ndarray | None) -> None:
        self.logits.index_fill_(1, self._tensor(banned), -math.inf)
        if must_end is not None:
            ending = self.logits[:, END_ID].clone()
            rows = self._tensor(must_end.repeat(len(self.logits) // len(must_end)))
            self.logits.masked_fill_(rows[:, None], -math.inf)[:, END_ID] = ending

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
    thresholds = copy_to_device(torch.from_numpy(numbers), logits.device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, thresholds, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)
