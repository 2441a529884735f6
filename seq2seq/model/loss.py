"""Logits, and their losses as sums over tokens. To report a mean, the caller divides once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model.kernels import usable
from seq2seq.tokenizers.tokenizer import END_ID

# Maximum size of a chunk of logits on a CPU: rows (tokens) and bytes. For larger chunks, the process would have to map
# new memory in each step. Smaller chunks update the gradient of the weights more often.
MAX_CHUNK_ROWS, MAX_CHUNK_BYTES = 1536, 256_000_000
# Maximum size of a chunk on a GPU: bytes, and share of the card's memory. With 1 GB instead of 256 MB, a step of the
# base model (25,000 tokens, 32,000 pieces) took 1 ms less on an H200. The share matters below 64 GB: without the Triton
# kernel, the loss needs some five times the size of a chunk.
MAX_GPU_CHUNK_BYTES, MAX_GPU_CHUNK_SHARE = 1_000_000_000, 1 / 64
# The stride between rows of logits on a GPU is rounded up to a multiple of this number. Otherwise, with 37,000 ids, a
# multiple of 8, the Triton kernel would read and write 2 bytes at once; with numbers that are no multiple of 8, cuBLAS
# could not use its fast kernels for the products of the output layer.
GPU_ROW_MULTIPLE = 16
# Maximum number of logits that a CPU normalises at once: 1 MB in fp32, which fits into a core's cache.
CACHED_ELEMENTS = 250_000
# Maximum number of logits of each of two distributions that `divergence_gradient` normalises at once. On a CPU, they
# take 0.5 MB in fp32, so that the logits of both distributions fit into a core's cache.
PAIRED_ELEMENTS, GPU_PAIRED_ELEMENTS = 125_000, 16_000_000


@dataclass(frozen=True)
class LossSum:
    """Loss, summed over target tokens.

    total: scalar tensor, the training loss. log_probabilities: (tokens,), log p of each target in nats, without
    smoothing; 0 for ignored targets. tokens: number of targets that are not ignored.
    """

    total: Tensor
    log_probabilities: Tensor
    tokens: int

    @property
    def negative_log_likelihood(self) -> Tensor:
        """Sum of -log p of all targets, a scalar."""
        return -self.log_probabilities.sum()

    @property
    def of_tokens(self) -> Tensor:
        """-log p of each target in nats, (tokens,) fp32; 0 for ignored targets."""
        return 0.0 - self.log_probabilities.float()                             # never -0.0


@dataclass(frozen=True)
class Logits:
    """Logits over the vocabulary, stored as the operands of hidden @ weight.T + bias.

    In training, the loss computes the logits of one chunk of rows at a time, because a tensor of (tokens, vocab_size)
    would need much more memory.

    hidden: (tokens, d_model). weight: (vocab_size, d_model). bias: (vocab_size,) or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    def dense(self) -> Tensor:
        """Compute the logits, (tokens, vocab_size)."""
        logits = self.hidden @ self.weight.T
        return logits if self.bias is None else logits + self.bias

    def loss(self, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
        """Return the cross-entropy against smoothed targets. Arguments: as in `smoothed_cross_entropy`.

        If no gradient is computed, log p is exact also where it is below the logarithm of the smallest normal number.
        """
        if torch.is_grad_enabled() or label_smoothing:
            loss = smoothed_cross_entropy(self, target, tokens, label_smoothing)
        else:
            counted = target != IGNORE_INDEX
            found, _ = log_probabilities(self, target.where(counted, END_ID))
            found = found.where(counted, 0.0)
            loss = LossSum(-found.sum(), found, tokens)
        return self.with_own_terms(loss, target)

    def with_own_terms(self, loss: LossSum, target: Tensor) -> LossSum:
        """Return a loss of these targets plus what the computation of `hidden` adds to it: here, nothing."""
        return loss


def smoothed_cross_entropy(logits: Logits, target: Tensor, tokens: int, label_smoothing: float = 0.0,
                           divergence: float = 0.0, symmetric: bool = True) -> LossSum:
    """Return the summed cross-entropy against the smoothed targets, (1 - e) one-hot + e / vocab_size.

    Label smoothing: Szegedy et al. 2016 (arXiv:1512.00567), section 7; Vaswani et al. 2017, section 5.4.

    Args:
        target: (tokens,) int64; targets of IGNORE_INDEX are ignored.
        tokens: number of targets that are not ignored.
        label_smoothing: e; with 0, the loss is the negative log-likelihood.
        divergence: weight of the divergence of rows 2i and 2i + 1, which is added to the loss (see `consistency.py`).
        symmetric: as in `divergence_gradient`.
    """
    bias = logits.hidden.new_zeros(0) if logits.bias is None else logits.bias
    total, log_probabilities = _ChunkedCrossEntropy.apply(logits.hidden, logits.weight, bias, target, label_smoothing,
                                                          divergence, symmetric)
    return LossSum(total, log_probabilities, tokens)


def log_probabilities(logits: Logits, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p of each target and the log-sum-exp of its logits, (tokens,) each, without gradient.

    The logits are computed in chunks. target: (tokens,) int64, without IGNORE_INDEX.
    """
    precise = torch.promote_types(logits.weight.dtype, torch.float32)
    found = torch.empty(len(target), dtype=precise, device=target.device)
    log_normaliser = torch.empty_like(found)
    for rows in chunks(len(target), logits.weight):
        dense = Logits(logits.hidden[rows], logits.weight, logits.bias).dense().to(precise)
        log_normaliser[rows] = dense.logsumexp(1)
        found[rows] = dense.gather(1, target[rows, None]).squeeze(1) - log_normaliser[rows]
    return found, log_normaliser


def chunks(tokens: int, weight: Tensor, multiple_of: int = 1) -> list[slice]:
    """Divide `tokens` rows into as few chunks as possible, at least one. The chunks have about the same size; all but
    the last are multiples of `multiple_of`."""
    row_bytes = weight.shape[0] * weight.element_size()
    if weight.is_cuda:
        memory = torch.cuda.get_device_properties(weight.device).total_memory
        max_rows = max(1, int(min(MAX_GPU_CHUNK_BYTES, MAX_GPU_CHUNK_SHARE * memory)) // row_bytes)
    else:
        max_rows = max(1, min(MAX_CHUNK_ROWS, MAX_CHUNK_BYTES // row_bytes))
    size = max(1, -(-tokens // max(1, -(-tokens // max_rows))))
    size = -(-size // multiple_of) * multiple_of
    return [slice(begin, min(begin + size, tokens)) for begin in range(0, max(1, tokens), size)]


def overwrite_with_gradient(logits: Tensor, targets: Tensor, counted: Tensor, smoothing: float, differentiate: bool,
                            target_logits: Tensor, target_log_p: Tensor) -> None:
    """Overwrite logits with softmax - (1 - e) one-hot. The gradient of the loss has one more term, -e / vocab_size.

    Rows that are not counted get 0. log p, but not the gradient, is computed from max(p, smallest normal number).

    Args:
        logits: (rows, vocab_size). targets: (rows, 1) int64, at least 0. counted: (rows,) bool. smoothing: e.
        differentiate: False: leave the logits unchanged.
        target_logits, target_log_p: (rows, 1), at least fp32; overwritten with the logit and log p of each target.
    """
    rows = len(logits) if logits.is_cuda else max(1, CACHED_ELEMENTS // logits.shape[1])
    parts = zip(*(tensor.split(rows) for tensor in (logits, targets, counted, target_logits, target_log_p)),
                strict=True)
    for part, part_targets, part_counted, part_target_logits, part_target_log_p in parts:
        exact = part.to(target_logits.dtype)
        part_target_logits.copy_(exact.gather(1, part_targets))
        probabilities = exact.softmax(1)
        probability = probabilities.gather(1, part_targets)
        part_target_log_p.copy_(probability.clamp(min=torch.finfo(exact.dtype).tiny).log_())
        if not differentiate:
            continue
        # The added value is a scalar, because with a tensor, CUDA's deterministic mode would sort and synchronise.
        probabilities.scatter_(1, part_targets, smoothing - 1, reduce="add")
        if logits.is_cuda or not bool(part_counted.all()):
            probabilities.mul_(part_counted[:, None])
        part.copy_(probabilities)


def gradient_function(device: torch.device, dtype: torch.dtype) -> Callable[..., None]:
    """Return the Triton kernel where it is usable, except in fp64; elsewhere, return `overwrite_with_gradient`."""
    if dtype == torch.float64 or not usable(device):
        return overwrite_with_gradient
    from seq2seq.model.kernels import loss

    return loss.overwrite_with_gradient


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Smoothed cross-entropy and its gradient, computed in chunks. The forward pass computes both from one softmax.

    With smoothing e, d loss / d logits = softmax - (1 - e) one-hot - e / vocab_size. The last term is the same for all
    logits. Its share of the gradients is therefore computed from the mean of the weights and the sum of the hidden
    states, without a pass over the logits. The mean of the logits, a term of the loss, is computed in the same way.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor,
                smoothing: float, divergence: float, symmetric: bool) -> tuple[Tensor, Tensor]:
        vocab_size = weight.shape[0]
        differentiate = any(ctx.needs_input_grad[:3])
        hidden_gradient = torch.empty_like(hidden)
        # Sums over chunks are at least fp32, whatever the dtype of the weights.
        precise = torch.promote_types(weight.dtype, torch.float32)
        weight_gradient: Tensor | None = None
        bias_gradient = torch.zeros(bias.shape, dtype=precise, device=weight.device)
        counted = target != IGNORE_INDEX                                             # (tokens,)
        targets = target.clamp(min=0)[:, None]
        target_logits = torch.empty(len(target), 1, dtype=precise, device=weight.device)
        target_log_p = torch.empty_like(target_logits)
        overwrite = gradient_function(hidden.device, hidden.dtype)
        all_rows = chunks(len(target), weight, multiple_of=2 if divergence else 1)
        # Allocated once for all chunks. On a GPU, each row begins at a multiple of 32 bytes.
        padding = -vocab_size % GPU_ROW_MULTIPLE if hidden.is_cuda else 0
        buffer = hidden.new_empty(all_rows[0].stop, vocab_size + padding)[:, :vocab_size]
        diverged = torch.zeros((), dtype=precise, device=weight.device)
        for rows in all_rows:
            # The logits of the chunk. Below, the gradient of the loss overwrites them.
            logits = torch.mm(hidden[rows], weight.T, out=buffer[: rows.stop - rows.start])
            if bias.numel():
                logits += bias
            if divergence:
                value, added = divergence_gradient(logits, counted[rows], divergence, symmetric)
                diverged += value
            overwrite(logits, targets[rows], counted[rows], smoothing, differentiate, target_logits[rows],
                      target_log_p[rows])
            if differentiate:
                if divergence:
                    logits += added
                torch.mm(logits, weight, out=hidden_gradient[rows])
                if ctx.needs_input_grad[1]:
                    product = logits.T @ hidden[rows]
                    weight_gradient = product.to(precise) if weight_gradient is None else weight_gradient.add_(product)
                if bias.numel():
                    bias_gradient += logits.sum(0, dtype=precise)
        log_probabilities = target_log_p.squeeze(1).mul_(counted)
        total = (smoothing - 1) * log_probabilities.sum() + diverged
        if smoothing:
            counted_hidden = (hidden * counted[:, None]).to(precise)
            mean_weight, number = weight.mean(0, dtype=precise), counted.sum().to(precise)
            mean_logits = counted_hidden.sum(0) @ mean_weight + number * bias.sum(dtype=precise) / vocab_size
            # -(mean log p over the vocabulary) = log sum exp of the logits - mean of the logits.
            total = total + smoothing * ((target_logits.squeeze(1) * counted - log_probabilities).sum() - mean_logits)
        if smoothing and differentiate:
            hidden_gradient -= (smoothing * mean_weight).to(hidden.dtype) * counted[:, None]
            bias_gradient -= smoothing / vocab_size * number
        if smoothing and weight_gradient is not None:
            weight_gradient -= smoothing / vocab_size * counted_hidden.sum(0)
        if differentiate:
            weight_gradient = None if weight_gradient is None else weight_gradient.to(weight.dtype)
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient.to(bias.dtype))
        ctx.mark_non_differentiable(log_probabilities)
        return total, log_probabilities

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        if not gradient.is_cuda and gradient.item() == 1:                       # the usual case; nothing to scale
            return hidden_gradient, weight_gradient, bias_gradient, None, None, None, None
        scale = gradient.to(hidden_gradient.dtype)
        scaled = None if weight_gradient is None else weight_gradient * scale
        return hidden_gradient * scale, scaled, bias_gradient * scale, None, None, None, None


def divergence_gradient(logits: Tensor, counted: Tensor, weight: float, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Return weight * (KL(p || q) + KL(q || p)), or weight * KL(p || q), summed over pairs of rows, and its gradient.

    With d = log p - log q, the gradient of KL(p || q) is p (d - KL(p || q)) with respect to the logits of p, and q - p
    with respect to those of q.

    Args:
        logits: (2 * pairs, vocab_size); p and q are the distributions of two consecutive rows.
        counted: (2 * pairs,) bool; False in the first row of a pair: ignore the pair.
        symmetric: False: only KL(p || q).
    Returns:
        The divergence, a scalar in fp32 or fp64; and the gradient, (2 * pairs, vocab_size), in the dtype of the logits.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    gradient = torch.empty_like(logits)
    total = torch.zeros((), dtype=precise, device=logits.device)
    pairs, vocab_size = len(logits) // 2, logits.shape[1]
    size = max(1, (GPU_PAIRED_ELEMENTS if logits.is_cuda else PAIRED_ELEMENTS) // vocab_size)
    parts = zip(*(tensor.view(pairs, 2, -1).split(size) for tensor in (logits, counted, gradient)), strict=True)
    for part, part_counted, part_gradient in parts:
        log_p, log_q = part.to(precise).log_softmax(2).unbind(1)
        p, q = log_p.exp(), log_q.exp()
        difference, scale = log_p.sub_(log_q), weight * part_counted[:, 0].to(precise)
        of_p = torch.mul(p, difference, out=log_q)                              # in the memory of what is used no more
        forward = of_p.sum(1, keepdim=True)
        total += (forward * scale).sum()
        if symmetric:
            minus_of_q = difference.mul_(q)
            backward = -minus_of_q.sum(1, keepdim=True)
            total += (backward * scale).sum()
            of_p.addcmul_(p, 1 - forward).sub_(q)
            minus_of_q.addcmul_(q, backward - 1).add_(p)
        else:
            of_p.addcmul_(p, -forward)
            minus_of_q = p.sub_(q)
        torch.mul(of_p, scale, out=part_gradient[:, 0])
        torch.mul(minus_of_q, -scale, out=part_gradient[:, 1])
    return total, gradient


def perplexity(negative_log_likelihood_sum: float, tokens: int) -> float:
    """Return exp of the mean negative log-likelihood per target token, `</s>` included, without label smoothing."""
    mean = negative_log_likelihood_sum / tokens
    return math.exp(mean) if mean < 700 else math.inf
