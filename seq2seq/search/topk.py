"""Top-k of a search step: the most probable continuations of hypotheses, from the logits.

Operations on whole rows of logits, (rows, vocab_size), use PyTorch. On a CPU, the other operations use NumPy: they
handle a few hundred numbers, for which NumPy has a fraction of PyTorch's overhead.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.search.interface import Continuations
from seq2seq.tokenizers.tokenizer import END_ID

BLOCK = 64
"""Number of consecutive ids in a block of the vocabulary. Top-k searches only the blocks with the largest maxima."""
CACHED_ELEMENTS = 500_000
"""Maximum number of logits in one call of exp and sum: 2 MB in fp32, which fits into a core's cache."""


def topk(logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
         normalised: bool) -> Continuations:
    """Return the `count` best continuations of each group of hypotheses.

    Args:
        logits: (rows, vocab_size), one row per hypothesis, group by group; they are overwritten.
        totals: (groups, beam), log p of each hypothesis.
        forbidden: banned ids; never includes `</s>`. The probabilities of the other ids are not renormalised.
        must_end: (groups,) bool, True = only `</s>` may follow, because any other token would make the targets exceed
            their maximum length; None: False for all groups.
        normalised: True to use the logits as scores, without log-softmax.
    """
    past = totals if normalised else totals - log_sum_exp(logits).cpu().numpy().reshape(totals.shape)
    ban(logits, forbidden, must_end)
    if logits.is_cuda:
        return to_numpy(topk_torch(logits, torch.from_numpy(past).to(logits.device), count))
    return _topk_numpy(logits, past, count)


def to_numpy(continuations: tuple[Tensor, ...]) -> Continuations:
    """Copy continuations to NumPy arrays."""
    totals, beams, ids = (tensor.cpu().numpy() for tensor in continuations)
    return totals, beams, ids


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return the log-sum-exp of each row of logits, (rows,)."""
    if logits.is_cuda:
        return logits.logsumexp(1)
    # This is faster than `logsumexp`: it does not compute the maximum first, and each chunk of rows fits into a core's
    # cache.
    size = max(1, CACHED_ELEMENTS // logits.shape[1])
    sums = logits.exp().sum(1) if len(logits) <= size else torch.cat([rows.exp().sum(1) for rows in logits.split(size)])
    # In fp32, exp overflows if a logit is above 88, and the sum is 0 if all logits are far below 0. In both cases, the
    # logarithm is infinite, and `logsumexp` is used instead.
    logs = sums.log_()
    return logs if np.isfinite(logs.numpy()).all() else logits.logsumexp(1)


def ban(logits: Tensor, forbidden: Tensor, must_end: np.ndarray | None) -> None:
    """Set to -inf, in place, the logits of the tokens that must not come next. Arguments: as in `topk`."""
    logits.index_fill_(1, forbidden, -math.inf)
    if must_end is not None:
        ending = logits[:, END_ID].clone()
        rows = torch.from_numpy(must_end.repeat(len(logits) // len(must_end))).to(logits.device)
        logits.masked_fill_(rows[:, None], -math.inf)
        logits[:, END_ID] = ending


def topk_by_sentence(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of `topk_torch` as tensors of shape (sentences, groups, candidates).

    past: as in `topk_torch`, but (sentences, groups, beam of a group).
    """
    sentences, groups, _ = past.shape
    totals, beams, ids = (tensor.view(sentences, groups, -1)
                          for tensor in topk_torch(logits, past.flatten(0, 1), count))
    return totals, beams, ids


# `topk_torch` and `_topk_numpy` read all logits only once, to compute the maximum of each block of the vocabulary. Then
# they search only the blocks with the largest maxima.


def topk_torch(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` largest sums of past and logits for each group.

    Args:
        logits: (rows, vocab_size). past: (groups, beam).
    Returns:
        `Continuations` as tensors.
    """
    (groups, beam), vocab_size = past.shape, logits.shape[1]
    blocks = _blocks(logits)
    per_row = blocks.shape[1]
    maxima = (blocks.amax(2).view(groups, beam, per_row) + past[:, :, None]).flatten(1)
    _, chosen = maxima.topk(min(count, maxima.shape[1]), dim=1)                 # (groups, blocks)
    beams = chosen // per_row
    rows = beams + beam * torch.arange(groups, device=logits.device)[:, None]
    totals = blocks[rows, chosen % per_row] + past.gather(1, beams)[:, :, None]
    best, indices = totals.flatten(1).topk(min(count, totals[0].numel()), dim=1)
    block = indices // BLOCK
    ids = (chosen % per_row).gather(1, block) * BLOCK + indices % BLOCK
    # If a group has fewer than `count` continuations, the results include padding of the last block. Padding has
    # totals of -inf, and its ids are clamped to the vocabulary.
    return best, beams.gather(1, block), ids.clamp_(max=vocab_size - 1)


def _topk_numpy(logits: Tensor, past: np.ndarray, count: int) -> Continuations:
    """Return the result of `topk_torch`, computed in NumPy."""
    (groups, beam), vocab_size, blocks = past.shape, logits.shape[1], _blocks(logits)
    per_row, group = blocks.shape[1], np.arange(groups)[:, None]
    maxima = (blocks.amax(2).numpy().reshape(groups, beam, per_row) + past[:, :, None]).reshape(groups, -1)
    chosen = _argtopk(maxima, count)
    beams, blocks_of_row = chosen // per_row, chosen % per_row
    totals = blocks.numpy()[beams + beam * group, blocks_of_row] + past[group, beams][:, :, None]
    flat = totals.reshape(groups, -1)
    indices = _argtopk(flat, count)
    best = flat[group, indices]
    order = (-best).argsort(axis=1, kind="stable")
    indices, best = indices[group, order], best[group, order]
    block = indices // BLOCK
    ids = blocks_of_row[group, block] * BLOCK + indices % BLOCK
    return best, beams[group, block], np.minimum(ids, vocab_size - 1)


def _blocks(logits: Tensor) -> Tensor:
    """Return the logits as (rows, blocks, BLOCK). The last block is padded with -inf."""
    if padding := -logits.shape[1] % BLOCK:
        logits = F.pad(logits, (0, padding), value=-math.inf)
    return logits.view(len(logits), -1, BLOCK)


def _argtopk(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values of each row, in any order: (rows, count).

    If a row has fewer than `count` values, return all its indices.
    """
    count = min(count, values.shape[1])
    return values.argpartition(-count, axis=1)[:, -count:]
