"""Top-k of a search step: the most probable continuations of hypotheses, from the logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.tokenizers.tokenizer import END_ID

BLOCK = 64
"""Number of consecutive ids in a block of the vocabulary. Top-k searches only the blocks with the largest maxima."""
CACHED_ELEMENTS = 500_000
"""Maximum number of logits in one call of exp and sum: 2 MB in fp32, which fits into a core's cache."""

Continuations = tuple[Tensor, Tensor, Tensor]
"""Tensors (totals, beams, ids), each (groups, candidates), best candidate first.

totals: log p of the hypothesis with its continuation; -inf for an element without a possible continuation. beams: index
of the continued hypothesis in its group. ids: next token.
"""

TopK = Callable[[Tensor, Tensor, Tensor, Tensor | None, int, bool], Continuations]
"""Type of `topk` and of an engine's implementation of it."""


def topk(logits: Tensor, totals: Tensor, banned: Tensor, must_end: Tensor | None, count: int,
         skip_log_softmax: bool) -> Continuations:
    """Return the `count` best continuations of each group of hypotheses.

    Args:
        logits: (rows, vocab_size), one row per hypothesis, group by group; they are overwritten.
        totals: (groups, beam), log p of each hypothesis.
        banned: banned ids; never includes `</s>`. The probabilities of the other ids are not renormalised.
        must_end: (groups,) bool, True = only `</s>` may follow, because any other token would make the targets exceed
            their maximum length; None: False for all groups.
        skip_log_softmax: True to use the logits as scores, without log-softmax.
    """
    past = totals if skip_log_softmax else totals - log_sum_exp(logits).view(totals.shape)
    ban(logits, banned, must_end)
    return topk_of_groups(logits, past, count)


def at_least_fp32(logits: Tensor) -> Tensor:
    """Return logits in fp32, or in fp64 if they have this dtype. bf16 and fp16 would be too inexact for log p."""
    return logits if logits.dtype == torch.float64 else logits.float()


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


def ban(logits: Tensor, banned: Tensor, must_end: Tensor | None) -> None:
    """Set to -inf, in place, the logits of the tokens that must not come next. Arguments: as in `topk`."""
    logits.index_fill_(1, banned, -math.inf)
    if must_end is not None:
        ending = logits[:, END_ID].clone()
        rows = must_end.repeat_interleave(len(logits) // len(must_end))
        logits.masked_fill_(rows[:, None], -math.inf)[:, END_ID] = ending


def topk_of_groups(logits: Tensor, past: Tensor, count: int) -> Continuations:
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
