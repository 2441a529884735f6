"""Top-k of a search step: the most probable continuations of hypotheses, from the logits.

PyTorch computes everything that reads whole rows of logits, (rows, vocab_size). On a CPU, NumPy computes the rest from
a few hundred numbers, because a NumPy operation has several times less overhead than one of PyTorch.
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
"""Number of consecutive ids in a block of the vocabulary. Only blocks with the largest maximum logits are searched."""
CACHED_ELEMENTS = 500_000
"""Maximum number of logits to normalise at once: 2 MB in fp32, which stay in a core's cache between exp and sum."""


def topk(logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
         normalised: bool) -> Continuations:
    """Return the `count` best continuations of each group of hypotheses.

    Args:
        logits: (rows, vocab_size), of the hypotheses, group by group; they are overwritten.
        totals: (groups, beam), log p of each hypothesis.
        forbidden: banned ids; never includes `</s>`. The probabilities of the other ids are not renormalised.
        must_end: (groups,) bool, True = only `</s>` may follow, because of the length limit; None: False for all.
        normalised: use the logits as scores, without log-softmax.
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
    """Return log sum exp of each row of logits, (rows,)."""
    if logits.is_cuda:
        return logits.logsumexp(1)
    # This is faster than `logsumexp`, which computes the maximum first; besides, each chunk of rows fits into the
    # cache.
    size = max(1, CACHED_ELEMENTS // logits.shape[1])
    sums = logits.exp().sum(1) if len(logits) <= size else torch.cat([rows.exp().sum(1) for rows in logits.split(size)])
    # In fp32 exp overflows for logits above 88, and the sum is 0 if all logits are far below 0. Both make the logarithm
    # infinite; then `logsumexp` is used.
    logs = sums.log_()
    return logs if np.isfinite(logs.numpy()).all() else logits.logsumexp(1)


def ban(logits: Tensor, forbidden: Tensor, must_end: np.ndarray | None) -> None:
    """Set to -inf the logits, (rows, vocab_size), of the tokens that must not follow. Arguments: as in `topk`."""
    logits.index_fill_(1, forbidden, -math.inf)
    if must_end is not None:
        ending = logits[:, END_ID].clone()
        rows = torch.from_numpy(must_end.repeat(len(logits) // len(must_end))).to(logits.device)
        logits.masked_fill_(rows[:, None], -math.inf)
        logits[:, END_ID] = ending


def topk_by_sentence(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of `topk_torch` as (sentences, groups, candidates); past: (sentences, groups, beam of a
    group)."""
    sentences, groups, _ = past.shape
    totals, beams, ids = (tensor.view(sentences, groups, -1)
                          for tensor in topk_torch(logits, past.flatten(0, 1), count))
    return totals, beams, ids


# The two functions below compute the maximum of each block of the vocabulary, their only pass over all logits, and then
# search only the blocks with the largest maxima.


def topk_torch(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` largest of past + logits for each group.

    Args:
        logits: (rows, vocab_size). past: (groups, beam).
    Returns:
        `Continuations` as tensors.
    """
    (groups, beam), vocab_size = past.shape, logits.shape[1]
    blocks = _blocks(logits)
    per_row = blocks.shape[1]
    maxima = (blocks.amax(2).view(groups, beam, per_row) + past[:, :, None]).flatten(1)
    _, chosen = maxima.topk(min(count, maxima.shape[1]), dim=1)                 # (groups, blocks), of any hypothesis
    beams = chosen // per_row
    rows = beams + beam * torch.arange(groups, device=logits.device)[:, None]
    totals = blocks[rows, chosen % per_row] + past.gather(1, beams)[:, :, None]
    best, indices = totals.flatten(1).topk(min(count, totals[0].numel()), dim=1)
    block = indices // BLOCK
    ids = (chosen % per_row).gather(1, block) * BLOCK + indices % BLOCK
    # If there are fewer than `count` continuations, the padding of the last block is among the results, with -inf. Its
    # ids are clamped to the vocabulary.
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
    """Return the logits as (rows, blocks, BLOCK), with the last block padded with -inf."""
    if padding := -logits.shape[1] % BLOCK:
        logits = F.pad(logits, (0, padding), value=-math.inf)
    return logits.view(len(logits), -1, BLOCK)


def _argtopk(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values of each row, unordered: (rows, count), or all if fewer."""
    count = min(count, values.shape[1])
    return values.argpartition(-count, axis=1)[:, -count:]
