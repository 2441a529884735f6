"""Top-k of a search step: the most probable continuations of hypotheses, from the logits.

Passes over whole rows of the vocabulary use PyTorch. The remaining few hundred numbers, on a CPU, are left to NumPy,
whose operations have several times less overhead.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.search.interface import Continuations
from seq2seq.tokenizers.tokenizer import END_ID

# Size of the blocks of the vocabulary in the top-k.
BLOCK = 64
# Number of logits to normalise at once: 2 MB, which stay in a core's cache between the passes over them.
CACHED_ELEMENTS = 500_000


def topk(logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
         normalised: bool) -> Continuations:
    """Return the `count` best continuations of each group of hypotheses.

    Args:
        logits: (rows, vocab_size), of the hypotheses, group by group; they are overwritten.
        totals: (groups, beam), log p of each hypothesis.
        forbidden: banned ids, without `</s>`. Probabilities are not renormalised, so that log p stays the model's.
        must_end: (groups,) bool, True = only `</s>` may follow, because of the length limit; None: False for all.
        normalised: use the logits as scores, without log-softmax.
    """
    past = totals if normalised else totals - log_sum_exp(logits).cpu().numpy().reshape(totals.shape)
    ban(logits, forbidden, must_end)
    if logits.is_cuda:
        return on_host(best(logits, torch.from_numpy(past).to(logits.device), count))
    return _best_on_host(logits, past, count)


def on_host(found: tuple[Tensor, ...]) -> Continuations:
    """Copy continuations to NumPy arrays."""
    totals, beams, ids = (part.cpu().numpy() for part in found)
    return totals, beams, ids


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return log sum exp of each row of logits, (rows,)."""
    if logits.is_cuda:
        return logits.logsumexp(1)
    # Without the usual pass for the maximum; a few rows at a time, which fit into the cache.
    size = max(1, CACHED_ELEMENTS // logits.shape[1])
    sums = logits.exp().sum(1) if len(logits) <= size else torch.cat([part.exp().sum(1) for part in logits.split(size)])
    # In fp32 exp overflows for logits above 88, and the sum is 0 if all are far below 0. Then use the safe form.
    logs = sums.log_()
    return logs if np.isfinite(logs.numpy()).all() else logits.logsumexp(1)


def ban(logits: Tensor, forbidden: Tensor, must_end: np.ndarray | None) -> None:
    """Set the logits, (rows, vocab_size), of tokens that may not follow to -inf; see `topk`."""
    logits.index_fill_(1, forbidden, -math.inf)
    if must_end is not None:
        ending = logits[:, END_ID].clone()
        rows = torch.from_numpy(must_end.repeat(len(logits) // len(must_end))).to(logits.device)
        logits.masked_fill_(rows[:, None], -math.inf)
        logits[:, END_ID] = ending


def most_probable(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` best continuations of each group as tensors: `best` for past of shape (sentences, groups, beam
    of a group)."""
    sentences, groups, _ = past.shape
    totals, beams, ids = (part.view(sentences, groups, -1) for part in best(logits, past.flatten(0, 1), count))
    return totals, beams, ids


# Both functions below search only the blocks of the vocabulary with the best maxima; the only pass over all logits is
# the vectorised one that computes these maxima.


def best(logits: Tensor, past: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` best of past + logits for each group; logits: (rows, vocab_size), past: (groups, beam).

    Returns:
        `Continuations` as tensors.
    """
    (groups, beam), vocab_size = past.shape, logits.shape[1]
    blocks = _blocks(logits)
    per_row = blocks.shape[1]
    maxima = (blocks.amax(2).view(groups, beam, per_row) + past[:, :, None]).flatten(1)
    _, chosen = maxima.topk(min(count, maxima.shape[1]), dim=1)                 # (groups, blocks), over all its rows
    beams = chosen // per_row
    rows = beams + beam * torch.arange(groups, device=logits.device)[:, None]
    totals = blocks[rows, chosen % per_row] + past.gather(1, beams)[:, :, None]
    found, places = totals.flatten(1).topk(min(count, totals[0].numel()), dim=1)
    block = places // BLOCK
    ids = (chosen % per_row).gather(1, block) * BLOCK + places % BLOCK
    # If there are too few continuations, padding of the last block is among them.
    return found, beams.gather(1, block), ids.clamp_(max=vocab_size - 1)


def _best_on_host(logits: Tensor, past: np.ndarray, count: int) -> Continuations:
    """`best` in NumPy."""
    (groups, beam), vocab_size, blocks = past.shape, logits.shape[1], _blocks(logits)
    per_row, group = blocks.shape[1], np.arange(groups)[:, None]
    maxima = (blocks.amax(2).numpy().reshape(groups, beam, per_row) + past[:, :, None]).reshape(groups, -1)
    chosen = _largest(maxima, count)
    beams, blocks_of_row = chosen // per_row, chosen % per_row
    totals = blocks.numpy()[beams + beam * group, blocks_of_row] + past[group, beams][:, :, None]
    flat = totals.reshape(groups, -1)
    places = _largest(flat, count)
    found = flat[group, places]
    order = (-found).argsort(axis=1, kind="stable")
    places, found = places[group, order], found[group, order]
    block = places // BLOCK
    ids = blocks_of_row[group, block] * BLOCK + places % BLOCK
    return found, beams[group, block], np.minimum(ids, vocab_size - 1)


def _blocks(logits: Tensor) -> Tensor:
    """(rows, vocab_size) -> (rows, blocks, BLOCK), the last block padded with -inf."""
    if padding := -logits.shape[1] % BLOCK:
        logits = F.pad(logits, (0, padding), value=-math.inf)
    return logits.view(len(logits), -1, BLOCK)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values of each row, unordered: (rows, count), or all if fewer."""
    count = min(count, values.shape[1])
    return values.argpartition(-count, axis=1)[:, -count:]
