"""Losses as sums over tokens, with the number of tokens. To report a mean, the caller divides once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model import kernels
from seq2seq.model.interface import HardAttentionSample, Logits, Output, PointerOutput
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


def training_loss(output: Output, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
    """Return the training loss: smoothed cross-entropy, plus the score-function loss of hard attention.

    Arguments: as in `smoothed_cross_entropy`. label_smoothing: ignored if `output` is not of type `Logits`.
    """
    if isinstance(output, Logits):
        loss = smoothed_cross_entropy(output, target, tokens, label_smoothing)
    else:
        target_log_probabilities = log_probabilities(output, target)
        loss = LossSum(-target_log_probabilities.sum(), target_log_probabilities.detach(), tokens)
    if output.attention_sample is None:
        return loss
    score_function = score_function_loss(output.attention_sample, loss.log_probabilities, target)
    return replace(loss, total=loss.total + score_function)


def score_function_loss(sample: HardAttentionSample, log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Return the score-function (REINFORCE) loss of hard attention.

    With respect to the attention weights q, the gradient of this loss is an unbiased estimate of the gradient of
    -E[log p] (Williams 1992): d E[log p] = E[(log p - baseline) d log q(sample)]. The loss also contains half the
    squared error of the baseline. In a recurrent decoder, the loss ignores that a sample affects log p of later tokens.

    Args:
        log_probabilities: (tokens,), log p of the targets given the sampled positions.
        target: (tokens,) int64; targets of IGNORE_INDEX are ignored.
    """
    counted = target != IGNORE_INDEX
    # The learned baseline predicts only the difference from the mean log p of the other tokens, because Adam would need
    # a thousand steps to learn this mean.
    mean_of_others = (log_probabilities.sum() - log_probabilities) / (counted.sum() - 1).clamp(min=1)
    advantage = log_probabilities - mean_of_others - sample.baseline.float()
    terms = advantage.square() / 2 - advantage.detach() * sample.log_probability.float()
    return (terms * counted).sum()


def log_probabilities(output: Output, target: Tensor) -> Tensor:
    """Return log p of each target, (tokens,), differentiable; 0 for targets of IGNORE_INDEX."""
    counted = target != IGNORE_INDEX
    # Ignored targets are replaced by `</s>`, whose log p is finite in every row. With -inf, gradients would be NaN.
    targets = target.where(counted, END_ID)
    if isinstance(output, PointerOutput):
        return output.values.gather(1, targets[:, None]).squeeze(1).where(counted, 0.0)
    logits = output if isinstance(output, Logits) else output.logits
    generated: Tensor = _ChunkedLogProbability.apply(logits.hidden, logits.weight, logits.bias, targets)
    if isinstance(output, Logits):
        return generated.where(counted, 0.0)
    copied = output.copy_probability(targets).to(generated.dtype)
    # Clamped, because tokens that do not occur in the source have a copy probability of 0, and log 0 = -inf.
    copied = copied.clamp(min=torch.finfo(copied.dtype).tiny).log()
    gate_logit = output.gate_logit.to(generated.dtype)
    return torch.logaddexp(F.logsigmoid(gate_logit) + generated, F.logsigmoid(-gate_logit) + copied).where(counted, 0.0)


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


@torch.no_grad()
def negative_log_likelihood(output: Output, target: Tensor) -> Tensor:
    """Return -log p of each target in nats, (tokens,) fp32, without gradient; 0 for targets of IGNORE_INDEX."""
    return 0.0 - log_probabilities(output, target).float()                      # never -0.0


class _ChunkedLogProbability(torch.autograd.Function):
    """log p of each target, (tokens,), from logits computed in chunks.

    The backward pass recomputes the logits, because their gradient depends on d loss / d log p, which the forward pass
    does not know.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        precise = torch.promote_types(weight.dtype, torch.float32)
        log_probabilities = torch.empty(len(target), dtype=precise, device=target.device)
        log_normaliser = torch.empty_like(log_probabilities)
        for rows in _chunks(len(target), weight):
            logits = Logits(hidden[rows], weight, bias).dense().to(precise)
            log_normaliser[rows] = logits.logsumexp(1)
            log_probabilities[rows] = logits.gather(1, target[rows, None]).squeeze(1) - log_normaliser[rows]
        ctx.save_for_backward(hidden, weight, bias, target, log_normaliser)
        return log_probabilities

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        hidden, weight, bias, target, log_normaliser = ctx.saved_tensors
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros(weight.shape, dtype=log_normaliser.dtype, device=weight.device)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=log_normaliser.dtype)
        for rows in _chunks(len(target), weight):
            # d log p / d logits = one-hot - softmax
            logits = Logits(hidden[rows], weight, bias).dense().to(log_normaliser.dtype)
            logits_gradient = logits.sub_(log_normaliser[rows, None]).exp_().mul_(-gradient[rows, None])
            logits_gradient.scatter_add_(1, target[rows, None], gradient[rows, None])
            rounded = logits_gradient.to(hidden.dtype)
            torch.mm(rounded, weight, out=hidden_gradient[rows])
            weight_gradient += rounded.T @ hidden[rows]
            if bias_gradient is not None:
                bias_gradient += logits_gradient.sum(0)
        if bias_gradient is not None:
            bias_gradient = bias_gradient.to(bias.dtype)
        return hidden_gradient, weight_gradient.to(weight.dtype), bias_gradient, None


def _chunks(tokens: int, weight: Tensor, multiple_of: int = 1) -> list[slice]:
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
    if dtype == torch.float64 or not kernels.usable(device):
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
        chunks = _chunks(len(target), weight, multiple_of=2 if divergence else 1)
        # Allocated once for all chunks. On a GPU, each row begins at a multiple of 32 bytes.
        padding = -vocab_size % GPU_ROW_MULTIPLE if hidden.is_cuda else 0
        buffer = hidden.new_empty(chunks[0].stop, vocab_size + padding)[:, :vocab_size]
        diverged = torch.zeros((), dtype=precise, device=weight.device)
        for rows in chunks:
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
        if smoothing and weight_gradient is not None:
            hidden_gradient -= (smoothing * mean_weight).to(hidden.dtype) * counted[:, None]
            weight_gradient -= smoothing / vocab_size * counted_hidden.sum(0)
            bias_gradient -= smoothing / vocab_size * number
        if weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype), bias_gradient.to(bias.dtype))
        ctx.mark_non_differentiable(log_probabilities)
        return total, log_probabilities

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        if not gradient.is_cuda and gradient.item() == 1:                       # the usual case; nothing to scale
            return hidden_gradient, weight_gradient, bias_gradient, None, None, None, None
        scale = gradient.to(hidden_gradient.dtype)
        return hidden_gradient * scale, weight_gradient * scale, bias_gradient * scale, None, None, None, None


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
