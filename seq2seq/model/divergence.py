"""Symmetric divergence of two distributions, with its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

CACHED_ELEMENTS, GPU_ELEMENTS = 125_000, 16_000_000
"""Maximum number of logits of each of the two distributions that are normalised at once, on a CPU and on a GPU. On a
CPU, they take 0.5 MB in fp32, so that the logits of both distributions fit into a core's cache."""


def divergence_gradient(logits: Tensor, counted: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Return weight * (KL(p || q) + KL(q || p)), summed over pairs of rows, and its gradient.

    With d = log p - log q, the gradient with respect to the logits of p is p (d - KL(p || q)) + p - q.

    Args:
        logits: (2 * pairs, vocab_size); p and q are the distributions of two consecutive rows.
        counted: (2 * pairs,) bool, equal for both rows of a pair; False: ignore the pair.
    Returns:
        The divergence, a scalar in fp32 or fp64; and the gradient, (2 * pairs, vocab_size), in the dtype of the logits.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    gradient = torch.empty_like(logits)
    total = torch.zeros((), dtype=precise, device=logits.device)
    pairs, vocab_size = len(logits) // 2, logits.shape[1]
    size = max(1, (GPU_ELEMENTS if logits.is_cuda else CACHED_ELEMENTS) // vocab_size)
    parts = zip(*(tensor.view(pairs, 2, -1).split(size) for tensor in (logits, counted, gradient)), strict=True)
    for part, part_counted, part_gradient in parts:
        log_p, log_q = part.to(precise).log_softmax(2).unbind(1)
        p, q = log_p.exp(), log_q.exp()
        difference, excess = log_p - log_q, p - q
        scale = weight * part_counted[:, 0].to(precise)
        forward, backward = (p * difference).sum(1, keepdim=True), -(q * difference).sum(1, keepdim=True)
        total += ((forward + backward) * scale).sum()
        part_gradient[:, 0] = p.mul_(difference - forward).add_(excess).mul_(scale)
        part_gradient[:, 1] = q.mul_(-difference - backward).sub_(excess).mul_(scale)
    return total, gradient
