"""Relative positions of T5 (Raffel et al. 2020, arXiv:1910.10683, section 2.1)."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from seq2seq.model.kv_cache import TransformerState
from seq2seq.model.packing import Sentences

BUCKETS, MAX_DISTANCE = 32, 128
"""Number of buckets of distances, and the distance from which all distances are in the same bucket."""


class RelativePositions(nn.Module):
    """Learned bias of the scores of self-attention, for each head and each bucket of distances between key and query.

    All layers of a side share it. causal: True if no key is after its query; all buckets are then for earlier keys.
    """

    def __init__(self, num_heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(BUCKETS, num_heads).normal_())

    def forward(self, distance: Tensor) -> Tensor:
        """Return the bias, (heads, …). distance: (…) int64, position of the key minus position of the query."""
        return self.weight[buckets(distance, self.causal)].movedim(-1, 0)

    def of_sentences(self, sentences: Sentences) -> Tensor:
        """Return the bias of each query and key, (heads, longest, longest)."""
        positions = torch.arange(sentences.longest, device=self.weight.device)
        return cast(Tensor, self(positions - positions[:, None]))

    def of_step(self, state: TransformerState) -> Tensor:
        """Return the bias of the newest position of each row and the slots of the KV cache, (heads, 1, slots)."""
        widths = torch.tensor([*state.begins, state.slots]).diff()              # number of slots of each position
        positions = torch.arange(len(state.begins)).repeat_interleave(widths)
        return cast(Tensor, self((positions - positions[-1]).to(self.weight.device)))[:, None]


def buckets(distance: Tensor, causal: bool) -> Tensor:
    """Return the buckets of distances, (…) int64.

    Half of the buckets (of a direction, unless causal) contain one distance each. The others grow exponentially up to
    MAX_DISTANCE. distance: (…) int64, position of the key minus position of the query.
    """
    count = BUCKETS if causal else BUCKETS // 2
    after = torch.zeros_like(distance) if causal else (distance > 0) * count
    distance = (-distance).clamp(min=0) if causal else distance.abs()
    exact = count // 2
    # The distance 0, whose logarithm is infinite, has a bucket of its own.
    growth = (distance.clamp(min=1).float() / exact).log() / math.log(MAX_DISTANCE / exact) * (count - exact)
    far = (exact + growth.long()).clamp(max=count - 1)
    return after + torch.where(distance < exact, distance, far)
