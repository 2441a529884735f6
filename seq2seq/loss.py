"""Losses as sums with their counts; whoever reports divides once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seq2seq.batching import IGNORED
from seq2seq.model.interface import Logits

# Logits of so many elements are computed at a time: on a CPU 16 MB of fp32 that are reused from chunk to chunk, where
# (tokens, vocab_size) at once would be fresh pages each step. A GPU needs larger products to be busy.
CHUNK_ELEMENTS = 4_000_000
GPU_FACTOR = 32


@dataclass(frozen=True)
class LossSum:
    """Sums over target tokens; nothing is averaged.

    total: scalar tensor, what training minimises. negative_log_likelihood: scalar tensor, -log p of the targets in
    nats, without smoothing. tokens: how many targets counted.
    """

    total: Tensor
    negative_log_likelihood: Tensor
    tokens: int


def smoothed_cross_entropy(logits: Logits, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
    """Cross-entropy against (1 - e) one-hot + e / vocab_size, summed.

    Szegedy et al. 2016 (arXiv:1512.00567), section 7, as Vaswani et al. 2017 use it (section 5.4).

    Args:
        logits: of (tokens, vocab_size).
        target: (tokens,) int64; positions with -100 count nowhere.
        tokens: how many of `target` count.
        label_smoothing: e; 0 is the plain negative log-likelihood.
    """
    bias = logits.hidden.new_zeros(0) if logits.bias is None else logits.bias
    total, likelihood = _ChunkedCrossEntropy.apply(logits.hidden, logits.weight, bias, target, label_smoothing)
    return LossSum(total, likelihood, tokens)


def negative_log_likelihood(logits: Logits, target: Tensor) -> Tensor:
    """-log p of each target in nats, (tokens,) fp32; 0 where the target is -100. Not for training: no gradient."""
    out = torch.empty(len(target), dtype=torch.float32, device=target.device)
    with torch.no_grad():
        for rows in _chunks(len(target), logits.weight):
            scores = Logits(logits.hidden[rows], logits.weight, logits.bias).dense().float()
            counted = target[rows] != IGNORED
            picked = scores.gather(1, target[rows].clamp(min=0)[:, None]).squeeze(1)
            out[rows] = (scores.logsumexp(1) - picked) * counted
    return out


def _chunks(tokens: int, weight: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS * (GPU_FACTOR if weight.is_cuda else 1) // weight.shape[0])
    return [slice(begin, min(begin + size, tokens)) for begin in range(0, tokens, size)]


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss and its gradient chunk by chunk in one pass: the softmax is there already when the loss is computed."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor,
                smoothing: float) -> tuple[Tensor, Tensor]:
        vocab_size = weight.shape[0]
        differentiate = any(ctx.needs_input_grad[:3])
        hidden_gradient = torch.empty_like(hidden)
        # Chunks add up in fp32 at least, whatever the weights are.
        precise = torch.promote_types(weight.dtype, torch.float32)
        weight_gradient = torch.zeros(weight.shape, dtype=precise, device=weight.device)
        bias_gradient = torch.zeros(bias.shape, dtype=precise, device=weight.device)
        total = torch.zeros((), dtype=precise, device=weight.device)
        likelihood = torch.zeros((), dtype=precise, device=weight.device)
        for rows in _chunks(len(target), weight):
            counted = (target[rows] != IGNORED)[:, None]                        # (rows, 1), True = counts
            targets = target[rows].clamp(min=0)[:, None]
            scores = hidden[rows] @ weight.T
            if bias.numel():
                scores = scores + bias
            scores = scores.to(precise)
            normaliser = scores.logsumexp(1, keepdim=True)
            negative = (normaliser - scores.gather(1, targets)) * counted       # (rows, 1)
            likelihood += negative.sum()
            total += (1 - smoothing) * negative.sum()
            if smoothing:
                total += smoothing * ((normaliser - scores.mean(1, keepdim=True)) * counted).sum()
            if not differentiate:
                continue
            # d loss / d scores = softmax - (1 - e) one-hot - e / V
            scores.sub_(normaliser).exp_().sub_(smoothing / vocab_size)
            scores.scatter_add_(1, targets, scores.new_full(targets.shape, smoothing - 1))
            scores.mul_(counted)
            gradient = scores.to(hidden.dtype)
            torch.mm(gradient, weight, out=hidden_gradient[rows])
            weight_gradient += gradient.T @ hidden[rows]
            if bias.numel():
                bias_gradient += scores.sum(0)
        ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype), bias_gradient.to(bias.dtype))
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        scale = gradient.to(hidden_gradient.dtype)
        return hidden_gradient * scale, weight_gradient * scale, bias_gradient * scale, None, None


def perplexity(negative_log_likelihood_sum: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood per target token, `</s>` included; never of the smoothed loss."""
    mean = negative_log_likelihood_sum / tokens
    return math.exp(mean) if mean < 700 else math.inf
