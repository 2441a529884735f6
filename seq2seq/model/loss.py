"""Losses as sums over tokens with their counts; the caller that reports a mean divides once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model.interface import Choices, Logits, LogProbabilities, Mixture, Output
from seq2seq.tokenizers.tokenizer import END_ID

# Largest number of rows, and of bytes, of logits that are computed at once. All logits at once, (tokens, vocab_size),
# would need freshly mapped memory in each step; smaller chunks cost more passes over the gradient of the weights. A GPU
# needs larger products to be busy.
CHUNK_ROWS, GPU_CHUNK_ROWS = 1536, 16384
CHUNK_BYTES = 256_000_000
# Number of elements of a softmax on a CPU: 1 MB of fp32, which stays in a core's own cache between the passes.
CACHED_ELEMENTS = 250_000


@dataclass(frozen=True)
class LossSum:
    """Sums over target tokens, without averaging.

    total: scalar tensor, the training loss. log_probabilities: (tokens,), log p of each target in nats, without
    smoothing, 0 for ignored positions. tokens: number of targets that count.
    """

    total: Tensor
    log_probabilities: Tensor
    tokens: int

    @property
    def negative_log_likelihood(self) -> Tensor:
        """Sum of -log p of all targets, a scalar."""
        return -self.log_probabilities.sum()


def training_loss(output: Output, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
    """Return the training loss: smoothed cross-entropy, and the terms that train hard attention.

    Arguments: as in `smoothed_cross_entropy`.
    Raises:
        ValueError: label smoothing of an output other than `Logits`.
    """
    if isinstance(output, Logits):
        loss = smoothed_cross_entropy(output, target, tokens, label_smoothing)
    elif label_smoothing:
        raise ValueError("only logits over a vocabulary can be smoothed")
    else:
        found = log_probabilities(output, target)
        loss = LossSum(-found.sum(), found.detach(), tokens)
    if output.choices is None:
        return loss
    return replace(loss, total=loss.total + score_function_loss(output.choices, loss.log_probabilities, target))


def score_function_loss(choices: Choices, log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Return the score-function (REINFORCE) loss of hard attention, whose gradient is that of the expected log p.

    Williams 1992: d E[log p] = E[(log p - baseline) d log q(sample)]; plus the squared error of the learned baseline.
    In a recurrent decoder a sample also affects later tokens; this reward ignores them.

    Args:
        log_probabilities: (tokens,), of the targets given the sampled positions. target: (tokens,), -100 is ignored.
    """
    counted = target != IGNORE_INDEX
    # The baseline predicts the difference from the mean of the other tokens; Adam would need a thousand steps to learn
    # that mean.
    others = (log_probabilities.sum() - log_probabilities) / (counted.sum() - 1).clamp(min=1)
    surplus = log_probabilities - others - choices.baseline.float()
    terms = surplus.square() / 2 - surplus.detach() * choices.log_probability.float()
    return (terms * counted).sum()


def log_probabilities(output: LogProbabilities | Mixture, target: Tensor) -> Tensor:
    """Return log p of each target, (tokens,), differentiable; 0 for targets of -100."""
    counted = target != IGNORE_INDEX
    # Ignored targets become </s>, which every row has as a choice; a choice with log p = -inf would have a NaN
    # gradient.
    targets = target.where(counted, END_ID)
    if isinstance(output, LogProbabilities):
        return output.values.gather(1, targets[:, None]).squeeze(1).where(counted, 0.0)
    logits = output.logits
    bias = logits.hidden.new_zeros(0) if logits.bias is None else logits.bias
    generated: Tensor = _ChunkedLogProbability.apply(logits.hidden, logits.weight, bias, targets)
    copied = output.copied(targets).to(generated.dtype)
    # Tokens that are not in the source have a copy probability of 0, whose logarithm has no gradient.
    copied = copied.clamp(min=torch.finfo(copied.dtype).tiny).log()
    gate = output.gate.to(generated.dtype)
    return torch.logaddexp(F.logsigmoid(gate) + generated, F.logsigmoid(-gate) + copied).where(counted, 0.0)


def smoothed_cross_entropy(logits: Logits, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
    """Return the summed cross-entropy against (1 - e) one-hot + e / vocab_size.

    Label smoothing: Szegedy et al. 2016 (arXiv:1512.00567), section 7; Vaswani et al. 2017, section 5.4.

    Args:
        logits: of (tokens, vocab_size).
        target: (tokens,) int64; -100 is ignored.
        tokens: number of targets other than -100.
        label_smoothing: e; 0 is the plain negative log-likelihood.
    """
    bias = logits.hidden.new_zeros(0) if logits.bias is None else logits.bias
    total, log_probabilities = _ChunkedCrossEntropy.apply(logits.hidden, logits.weight, bias, target, label_smoothing)
    return LossSum(total, log_probabilities, tokens)


@torch.no_grad()
def negative_log_likelihood(output: Output, target: Tensor) -> Tensor:
    """Return -log p of each target in nats, (tokens,) fp32, without gradient; 0 for targets of -100."""
    if not isinstance(output, Logits):
        return -log_probabilities(output, target).float()
    return _product_likelihood(output, target)


def _product_likelihood(logits: Logits, target: Tensor) -> Tensor:
    out = torch.empty(len(target), dtype=torch.float32, device=target.device)
    for rows in _chunks(len(target), logits.weight):
        scores = Logits(logits.hidden[rows], logits.weight, logits.bias).dense().float()
        counted = target[rows] != IGNORE_INDEX
        picked = scores.gather(1, target[rows].clamp(min=0)[:, None]).squeeze(1)
        out[rows] = (scores.logsumexp(1) - picked) * counted
    return out


class _ChunkedLogProbability(torch.autograd.Function):
    """log p of each target, (tokens,), computed in chunks.

    The backward pass recomputes the logits, because the gradient of log p is known only then.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        precise = torch.promote_types(weight.dtype, torch.float32)
        found = torch.empty(len(target), dtype=precise, device=target.device)
        normaliser = torch.empty_like(found)
        for rows in _chunks(len(target), weight):
            scores = _scores(hidden[rows], weight, bias).to(precise)
            normaliser[rows] = scores.logsumexp(1)
            found[rows] = scores.gather(1, target[rows, None]).squeeze(1) - normaliser[rows]
        ctx.save_for_backward(hidden, weight, bias, target, normaliser)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, weight, bias, target, normaliser = ctx.saved_tensors
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros(weight.shape, dtype=normaliser.dtype, device=weight.device)
        bias_gradient = torch.zeros(bias.shape, dtype=normaliser.dtype, device=weight.device)
        for rows in _chunks(len(target), weight):
            # d log p / d scores = one-hot - softmax
            scores = _scores(hidden[rows], weight, bias).to(normaliser.dtype)
            slope = scores.sub_(normaliser[rows, None]).exp_().mul_(-gradient[rows, None])
            slope.scatter_add_(1, target[rows, None], gradient[rows, None])
            rounded = slope.to(hidden.dtype)
            torch.mm(rounded, weight, out=hidden_gradient[rows])
            weight_gradient += rounded.T @ hidden[rows]
            if bias.numel():
                bias_gradient += slope.sum(0)
        return hidden_gradient, weight_gradient.to(weight.dtype), bias_gradient.to(bias.dtype), None


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    scores = hidden @ weight.T
    return scores + bias if bias.numel() else scores


def _chunks(tokens: int, weight: Tensor) -> list[slice]:
    rows = GPU_CHUNK_ROWS if weight.is_cuda else CHUNK_ROWS
    most = max(1, min(rows, CHUNK_BYTES // (weight.shape[0] * weight.element_size())))
    count = -(-tokens // most)                                                  # the fewest, of equal size
    size = -(-tokens // max(1, count))
    return [slice(begin, min(begin + size, tokens)) for begin in range(0, tokens, size)]


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy and its gradient, computed in chunks in one forward pass, which reuses the softmax.

    With smoothing e, d loss / d scores = softmax - (1 - e) one-hot - e / V. The last term is the same for all scores
    of a row. Its contribution to the gradients is therefore computed from the mean of the weights and the sum of the
    hidden states, and so is the mean of the scores in the loss, without a pass over the scores.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor,
                smoothing: float) -> tuple[Tensor, Tensor]:
        vocab_size = weight.shape[0]
        differentiate = any(ctx.needs_input_grad[:3])
        hidden_gradient = torch.empty_like(hidden)
        # Sums over chunks are at least fp32, whatever the dtype of the weights.
        precise = torch.promote_types(weight.dtype, torch.float32)
        weight_gradient: Tensor | None = None
        bias_gradient = torch.zeros(bias.shape, dtype=precise, device=weight.device)
        counted = target != IGNORE_INDEX                                             # (tokens,)
        targets = target.clamp(min=0)[:, None]
        picked = torch.empty(len(target), 1, dtype=precise, device=weight.device)
        normalised = torch.empty_like(picked)                                   # log p of the targets
        cached = len(target) if weight.is_cuda else max(1, CACHED_ELEMENTS // vocab_size)
        chunks = _chunks(len(target), weight)
        room = hidden.new_empty(chunks[0].stop, vocab_size)                     # allocated once for all chunks
        for rows in chunks:
            scores = torch.mm(hidden[rows], weight.T, out=room[: rows.stop - rows.start])
            if bias.numel():
                scores += bias
            parts = zip(*(tensor.split(cached) for tensor in (
                scores, targets[rows], counted[rows], picked[rows], normalised[rows])), strict=True)
            for part, part_targets, part_counted, part_picked, part_normalised in parts:
                exact = part.to(precise)
                part_picked.copy_(exact.gather(1, part_targets))
                probabilities = exact.softmax(1)
                # Probabilities that underflow count as the smallest number, 87 nats in fp32; their gradient is exact.
                probability = probabilities.gather(1, part_targets)
                part_normalised.copy_(probability.clamp(min=torch.finfo(precise).tiny).log_())
                if not differentiate:
                    continue
                # With a number as the source: with a tensor, CUDA's deterministic mode sorts and waits for the host.
                probabilities.scatter_(1, part_targets, smoothing - 1, reduce="add")
                if weight.is_cuda or not bool(part_counted.all()):
                    probabilities.mul_(part_counted[:, None])
                part.copy_(probabilities)
            if differentiate:
                torch.mm(scores, weight, out=hidden_gradient[rows])
                product = scores.T @ hidden[rows]
                weight_gradient = product.to(precise) if weight_gradient is None else weight_gradient.add_(product)
                if bias.numel():
                    bias_gradient += scores.sum(0, dtype=precise)
        log_probabilities = normalised.squeeze(1).mul_(counted)
        total = (smoothing - 1) * log_probabilities.sum()
        if smoothing:
            kept = (hidden * counted[:, None]).to(precise)
            mean_weight, number = weight.mean(0, dtype=precise), counted.sum().to(precise)
            mean_scores = kept.sum(0) @ mean_weight + number * bias.sum(dtype=precise) / vocab_size
            # -mean of log p over the vocabulary = log of the sum of exponentials - mean of the scores.
            total = total + smoothing * ((picked.squeeze(1) * counted - log_probabilities).sum() - mean_scores)
        if smoothing and weight_gradient is not None:
            hidden_gradient -= (smoothing * mean_weight).to(hidden.dtype) * counted[:, None]
            weight_gradient -= smoothing / vocab_size * kept.sum(0)
            bias_gradient -= smoothing / vocab_size * number
        if weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype), bias_gradient.to(bias.dtype))
        ctx.mark_non_differentiable(log_probabilities)
        return total, log_probabilities

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        if not gradient.is_cuda and gradient.item() == 1:                       # the usual case needs no scaling
            return hidden_gradient, weight_gradient, bias_gradient, None, None
        scale = gradient.to(hidden_gradient.dtype)
        return hidden_gradient * scale, weight_gradient * scale, bias_gradient * scale, None, None


def perplexity(negative_log_likelihood_sum: float, tokens: int) -> float:
    """Return exp of the mean negative log-likelihood per target token, `</s>` included, without label smoothing."""
    mean = negative_log_likelihood_sum / tokens
    return math.exp(mean) if mean < 700 else math.inf
