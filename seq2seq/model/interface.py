"""Interface between the models and their users, search and trainer.

Every model implements `Seq2Seq`. Search uses `start` and `step` only, the trainer uses the call only. A state is
immutable: `step` and `select` return a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.data.batching import Batch


@dataclass(frozen=True)
class Choices:
    """Source positions sampled by hard attention, for the score-function estimator (Williams 1992, "REINFORCE").

    log_probability: (target_tokens,), log p of the positions sampled for each target token, summed over the heads.
    baseline: (target_tokens,), the estimator's baseline, independent of the sample: predicted log p of the target token
    minus the mean over the other tokens.
    """

    log_probability: Tensor
    baseline: Tensor


@dataclass(frozen=True)
class Logits:
    """Logits over the vocabulary as an unevaluated product: hidden @ weight.T + bias.

    The loss multiplies a few hundred rows at a time, so that no (tokens, vocab_size) tensor exists in training.

    hidden: (tokens, d_model). weight: (vocab_size, d_model). bias: (vocab_size,) or None.
    choices: positions sampled by hard attention to compute `hidden`.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    choices: Choices | None = None

    def dense(self) -> Tensor:
        """(tokens, vocab_size)"""
        logits = self.hidden @ self.weight.T
        return logits if self.bias is None else logits + self.bias


@dataclass(frozen=True)
class LogProbabilities:
    """log p over a small set of choices, such as source positions; -inf for choices that a row does not have.

    values: (tokens, choices).
    """

    values: Tensor
    choices: Choices | None = None

    def dense(self) -> Tensor:
        """(tokens, choices)"""
        return self.values


@dataclass(frozen=True)
class Mixture:
    """Mixture of the vocabulary's distribution and the copy distribution over source pieces.

    See et al. 2017 (arXiv:1704.04368, equation 9): p(y) = g p_vocabulary(y) + (1 - g) sum_{i: x_i = y} a_i

    logits: of p_vocabulary. gate: (tokens,), the logit of g. weights: (tokens, longest_source), a, each row a
    distribution. pieces: (tokens, longest_source) int64, x, the source ids of the row's sentence.
    """

    logits: Logits
    gate: Tensor
    weights: Tensor
    pieces: Tensor

    @property
    def choices(self) -> Choices | None:
        """The choices of `logits`."""
        return self.logits.choices

    def copied(self, target: Tensor) -> Tensor:
        """Copy probability sum_{i: x_i = y} a_i of each target y: (tokens,) -> (tokens,)"""
        return (self.weights * (self.pieces == target[:, None])).sum(1)

    def dense(self) -> Tensor:
        """log p, (tokens, vocab_size), without gradient."""
        return mixed(self.logits.dense(), self.gate, self.weights, self.pieces)


@torch.no_grad()
def mixed(logits: Tensor, gate: Tensor, weights: Tensor, pieces: Tensor) -> Tensor:
    """Return log p of a `Mixture` from evaluated logits, (rows, vocab_size). Other arguments: as in `Mixture`."""
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    generate, copy = (F.logsigmoid(side.to(log_probabilities.dtype))[:, None] for side in (gate, -gate))
    log_probabilities += generate
    # Copying changes only the ids that occur in the source.
    copied = torch.zeros_like(log_probabilities).scatter_add_(1, pieces, weights.to(log_probabilities.dtype))
    both = torch.logaddexp(log_probabilities.gather(1, pieces), copied.gather(1, pieces).log() + copy)
    return log_probabilities.scatter_(1, pieces, both)


Output = Logits | LogProbabilities | Mixture
"""Prediction of a model for every target position."""


class State(Protocol):
    """Decoding state of a batch of hypotheses (rows). Row r belongs to sentence r // (rows / sentences)."""

    @property
    def attention(self) -> Tensor | None:
        """(rows, longest_source), attention weights of the last step over the source; None without `keep_attention`."""

    def select(self, rows: Tensor) -> State:
        """Return the state with rows reordered, repeated or dropped.

        Args:
            rows: (sentences, beam), the old row that each new row continues. All entries of one line of `rows` belong
                to the same old sentence; an old sentence without entries is dropped.
        """


class Stepwise(Protocol):
    """Model that scores a target step by step: the interface of search.

    max_positions: longest sentence that it takes, in tokens, `</s>` included.
    """

    max_positions: int

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> State:
        """Encode the source and return the state before the first step, with one row per sentence.

        Args:
            source: (source_tokens,), every sentence closed by `</s>`.
            source_offsets: (sentences + 1,) int32.
            longest_source: tokens of the longest sentence.
            keep_attention: states carry `attention`.
        """

    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Score the token that follows `last_tokens`, (rows,).

        Args:
            state: returned by `start` or by another step of this model.
        Returns:
            Log-probabilities up to a constant per row, (rows, vocab_size), which the caller may overwrite; and the
            state after the step.
        """


class Seq2Seq(Stepwise, Protocol):
    """Model that also scores all target positions at once, for training."""

    def __call__(self, batch: Batch) -> Output:
        """Score every position of `batch.target_output` given the target before it (teacher forcing)."""


class WholeSearch(Protocol):
    """Search implemented by an engine, with the same results as `search.beam.search` without hooks."""

    def __call__(self, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                 max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                 ) -> list[list[tuple[list[int], float]]]:
        """Return the finished hypotheses of each sentence, in the order in which they ended, as (ids without `</s>`,
        log p).

        Args: as in `beam.search`; enough: number of finished hypotheses that ends a sentence's search. forbidden:
            banned ids, without `</s>`.
        """


Continuations = tuple[np.ndarray, np.ndarray, np.ndarray]
"""totals, beams, ids, each (groups, candidates), best first: log p of the continuation, index of the continued
hypothesis in its group, and id of the next token. If there are too few continuations, log p of the rest is -inf."""


class TopK(Protocol):
    """Function that finds the best continuations: `search.topk.topk`, or a faster one with equal results."""

    def __call__(self, logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
                 normalised: bool) -> Continuations:
        """See `search.topk.topk`."""


class Engine(Stepwise, Protocol):
    """Fast implementation of a trained model for some hardware (see `inference.engines`).

    precision: number format of the computation.
    """

    precision: str

    @property
    def topk(self) -> TopK:
        """Function that finds the best continuations of each hypothesis in the logits."""

    @property
    def whole_search(self) -> WholeSearch | None:
        """Search of this engine for calls without hooks; None if it has none."""

    @property
    def model(self) -> Seq2Seq:
        """Model in PyTorch, which scores all positions of given targets at once."""
