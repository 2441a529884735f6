"""Structured attention (Kim et al. 2017, arXiv:1702.00887): a linear chain over the keys instead of a softmax.

Each key i is selected (z_i = 1) or not, with p(z) proportional to exp(sum_i s_i z_i + sum_i t[z_i, z_{i+1}]), where s_i
is the attention score of the key and t are learned pairwise potentials. The weight of a key is its marginal p(z_i = 1),
computed by the forward-backward algorithm in log space. If all t are 0, the weight is the sigmoid of the score.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model.attention_scores import Weighing


class StructuredWeighing(Weighing):
    """Layer whose weights are the marginals of a linear chain. Each head learns its pairwise potentials."""

    is_scaled_dot_product = False

    def __init__(self, num_heads: int, head_size: int, **options: Any) -> None:
        super().__init__(num_heads, head_size, **options)
        self.pairwise = nn.Parameter(torch.zeros(num_heads, 1, 2, 2))

    def forward(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """See `ScaledDotProduct.forward`. query: from `prepare`."""
        scores = self.scores(query, keys, bias)
        exact, is_key = torch.promote_types(scores.dtype, torch.float32), (bias == 0).expand(scores.shape)
        return chain_marginals(scores.to(exact), self.pairwise.to(exact), is_key).to(scores.dtype)


def chain_marginals(scores: Tensor, pairwise: Tensor, is_key: Tensor) -> Tensor:
    """Return the marginals p(z_i = 1) of a linear chain.

    A message between neighbours is one number. Let a_i be the log odds of z_i = 1 in a chain that ends at key i. Then
    a_{i+1} = s_{i+1} + f(a_i), where f(a) = log (e^t01 + e^(a + t11)) - log (e^t00 + e^(a + t10)) is the message.

    Args:
        scores: (…, keys). pairwise: t, (…, 2, 2), where … broadcasts with the … of `scores`.
        is_key: (…, keys) bool, False for padding, which follows the keys and has no part in the chain.
    Returns:
        (…, keys), 0 for padding.
    """
    not_not, not_then, then_not, then_then = pairwise.flatten(-2).unbind(-1)
    scores = scores.masked_fill(~is_key, -torch.inf)
    count = scores.shape[-1]
    forward = [scores[..., 0]]
    for key in range(1, count):
        forward.append(scores[..., key] + _message(forward[-1], not_not, not_then, then_not, then_then))
    backward = [torch.zeros_like(scores[..., 0])]
    for key in range(count - 1, 0, -1):
        message = _message(scores[..., key] + backward[-1], not_not, then_not, not_then, then_then)
        backward.append(message.masked_fill(~is_key[..., key], 0))
    return (torch.stack(forward, -1) + torch.stack(backward[::-1], -1)).sigmoid()


def _message(odds: Tensor, not_not: Tensor, not_then: Tensor, then_not: Tensor, then_then: Tensor) -> Tensor:
    """Return the message of a neighbour to a key. odds: log odds of the neighbour. not_then: pairwise potential if the
    neighbour is not selected and the key is selected."""
    selected = not_then + F.softplus(odds + then_then - not_then)
    return selected - not_not - F.softplus(odds + then_not - not_not)
