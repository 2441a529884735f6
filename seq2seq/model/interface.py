"""Interface through which search and the trainer use every model.

Every model implements `Seq2Seq`. Search only calls `start` and `step`; the trainer only calls `model(batch)`. A
decoding state is immutable: `step` and `select` return a new state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.data.batching import Batch


@dataclass(frozen=True)
class HardAttentionSample:
    """Sample of source positions in hard attention, as `loss.score_function_loss` needs it.

    log_probability: (target_tokens,), log p of the positions sampled for each target token, summed over the heads.
    baseline: (target_tokens,), predicted difference between log p of the target token and the mean log p of the other
        target tokens in the batch. The prediction does not depend on the sample.
    """

    log_probability: Tensor
    baseline: Tensor


@dataclass(frozen=True)
class Logits:
    """Logits over the vocabulary, stored as the operands of hidden @ weight.T + bias.

    In training, the loss computes the logits of one chunk of rows at a time, because a tensor of (tokens, vocab_size)
    would need much more memory.

    hidden: (tokens, d_model). weight: (vocab_size, d_model). bias: (vocab_size,) or None.
    attention_sample: sample of the hard attention from which `hidden` was computed; None if nothing was sampled.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    attention_sample: HardAttentionSample | None = None

    def dense(self) -> Tensor:
        """Compute the logits, (tokens, vocab_size)."""
        logits = self.hidden @ self.weight.T
        return logits if self.bias is None else logits + self.bias


@dataclass(frozen=True)
class PointerOutput:
    """Output of a pointer network.

    values: (tokens, END_ID + longest_source), log p of each target id (see `pointer_network.target_log_probabilities`).
    """

    values: Tensor
    attention_sample: None = None

    def dense(self) -> Tensor:
        return self.values


@dataclass(frozen=True)
class CopyMixture:
    """Mixture of the distribution over the vocabulary and the copy distribution over source pieces.

    See et al. 2017 (arXiv:1704.04368, equation 9): p(y) = g p_vocabulary(y) + (1 - g) sum_{i: x_i = y} a_i

    logits: logits of p_vocabulary. gate_logit: (tokens,), logit of g. weights: (tokens, longest_source), a; each row
        sums to 1. pieces: (tokens, longest_source) int64, x: token ids of the source sentence of each target token.
    """

    logits: Logits
    gate_logit: Tensor
    weights: Tensor
    pieces: Tensor

    @property
    def attention_sample(self) -> HardAttentionSample | None:
        return self.logits.attention_sample

    def copy_probability(self, target: Tensor) -> Tensor:
        """Return sum_{i: x_i = y} a_i for the target token y of each row: (tokens,) -> (tokens,)"""
        return (self.weights * (self.pieces == target[:, None])).sum(1)

    def dense(self) -> Tensor:
        """Return log p of all ids, (tokens, vocab_size), without gradient."""
        return mixture_log_probabilities(self.logits.dense(), self.gate_logit, self.weights, self.pieces)


@torch.no_grad()
def mixture_log_probabilities(logits: Tensor, gate_logit: Tensor, weights: Tensor, pieces: Tensor) -> Tensor:
    """Return log p of all ids under a `CopyMixture`, (rows, vocab_size).

    logits: logits of p_vocabulary, (rows, vocab_size). Other arguments: as in `CopyMixture`.
    """
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    log_generate, log_copy = (F.logsigmoid(gate.to(log_probabilities.dtype))[:, None]
                              for gate in (gate_logit, -gate_logit))
    log_probabilities += log_generate
    # Copying changes only the probabilities of ids that occur in the source.
    copied = torch.zeros_like(log_probabilities).scatter_add_(1, pieces, weights.to(log_probabilities.dtype))
    mixed = torch.logaddexp(log_probabilities.gather(1, pieces), copied.gather(1, pieces).log() + log_copy)
    return log_probabilities.scatter_(1, pieces, mixed)


Output = Logits | PointerOutput | CopyMixture
"""Prediction of a model for every target position of a batch."""


class State(Protocol):
    """Decoding state of a batch of hypotheses (rows). Each sentence has the same number of consecutive rows."""

    @property
    def attention(self) -> Tensor | None:
        """Attention weights of the last step, (rows, longest_source); None if `keep_attention` of `start` is False."""

    def select(self, rows: Tensor) -> State:
        """Return the state with rows reordered, repeated or dropped.

        Args:
            rows: (sentences, beam), index of the old row that each new row continues. The old rows in `rows[i]` must
                belong to one sentence. Sentences may be dropped, but neither reordered nor repeated.
        """


class Stepwise(Protocol):
    """Model that scores a target one token at a time. Search uses this interface.

    max_positions: maximum length of a source or target sentence in tokens, `</s>` included.
    """

    max_positions: int

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> State:
        """Encode the source and return the state before the first step, with one row per sentence.

        Args:
            source: (source_tokens,) token ids; every sentence ends with `</s>`.
            source_offsets: (sentences + 1,) int32, index of each sentence's first token, then the number of tokens.
            longest_source: number of tokens of the longest sentence.
            keep_attention: True if the states that `step` returns must contain attention weights, `State.attention`.
        """

    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Score every token of the vocabulary as the continuation of each row.

        Args:
            last_tokens: (rows,), last token of each row.
            state: state that `start`, `step` or `State.select` returned.
        Returns:
            Logits, (rows, vocab_size), which the caller may overwrite; and the state after the step.
        """


class Seq2Seq(Stepwise, Protocol):
    """Model that also scores all target positions in one call, for training."""

    def __call__(self, batch: Batch) -> Output:
        """Score every position of `batch.target_output` given the preceding target tokens (teacher forcing).

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
