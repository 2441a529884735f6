"""Masks of attention. True: the query may attend to the key."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from seq2seq.model.packing import Sentences


def may_see(query_sentences: Sentences, key_sentences: Sentences, causal: bool, window: int | None = None) -> Tensor:
    """Return the attention mask, (sentences, 1, queries or 1, keys) bool, True = may be attended to.

    Arguments: as in `attention`.
    """
    seen = key_sentences.token_mask[:, None, None, :]
    if not causal and window is None:
        return seen
    device = seen.device
    distance = (torch.arange(query_sentences.longest, device=device)[:, None]
                - torch.arange(key_sentences.longest, device=device))           # (queries, keys)
    near = distance >= 0 if causal else distance >= -cast(int, window)
    # A padded query may attend to its own position: fully masked, it would have NaN weights, and with them NaN
    # gradients of its sentence's keys.
    return (seen & near) if window is None else (seen & near & (distance <= window)) | (distance == 0)


def bias_of(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask: 0 where `seen`, a large negative number elsewhere.

    Finite, because a dummy sentence that fills a batch may have no key at all.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min / 2)
