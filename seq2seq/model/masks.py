"""Attention masks. True means that the query may attend to the key."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from seq2seq.model.packing import Sentences


def attention_mask(query_sentences: Sentences, key_sentences: Sentences, causal: bool,
                   window: int | None = None) -> Tensor:
    """Return the attention mask, (sentences, 1, queries or 1, keys) bool, True = may be attended to.

    Arguments: as in `attention.attention`.
    """
    is_token = key_sentences.token_mask[:, None, None, :]
    if not causal and window is None:
        return is_token
    device = is_token.device
    distance = (torch.arange(query_sentences.longest, device=device)[:, None]
                - torch.arange(key_sentences.longest, device=device))           # (queries, keys)
    allowed = is_token & (distance >= (0 if causal else -cast(int, window)))
    # With a window, a query in padding could have no key. Its weights, and the gradients of all keys of its sentence,
    # would then be NaN. Therefore each query may attend to its own position.
    return allowed if window is None else (allowed & (distance <= window)) | (distance == 0)


def mask_to_bias(mask: Tensor, dtype: torch.dtype, masked: float | None = None) -> Tensor:
    """Return the mask as a bias to add to attention scores: 0 where `mask` is True, `masked` elsewhere.

    masked: bias of masked keys; None: a large negative number. With -inf, a query without keys would have NaN weights.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(
        ~mask, torch.finfo(dtype).min / 2 if masked is None else masked)
