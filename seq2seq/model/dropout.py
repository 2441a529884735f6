"""Dropout (Srivastava et al. 2014) with 16-bit random numbers on CPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Layer that, in training, sets elements to zero with `probability` and divides the others by 1 - probability."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: Tensor) -> Tensor:
        """(…) -> (…), any shape."""
        if not self.training or self.probability == 0:
            return hidden
        if hidden.is_cuda:
            return F.dropout(hidden, self.probability)
        # With 16 random bits per element, the probability is a multiple of 1/65,536. PyTorch's 53 random bits take ten
        # times as long to generate.
        words = torch.empty((hidden.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: hidden.numel()].view(hidden.shape)
        dropped = round(self.probability * 65536)
        # The factors have the dtype of `hidden`. A boolean mask would have to be converted in forward and in backward.
        factors = torch.ge(bits, dropped - 32768, out=torch.empty_like(hidden)).mul_(65536 / (65536 - dropped))
        return hidden * factors
