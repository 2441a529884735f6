"""What search and trainer know of a model.

The Transformer, and whatever comes beside it, implements `Seq2Seq`; search sees only `start` and `step`, the trainer
only the call. A state is a value: `step` and `select` return a new one, and the caller decides which to keep.
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
    """Source positions that hard attention drew, for the score-function estimator (Williams 1992, "REINFORCE").

    log_probability: (target_tokens,), of the positions drawn for each target token, summed over the heads.
    baseline: (target_tokens,), by how much log p of the target token was expected to exceed that of the others,
    whatever is drawn.
    """

    log_probability: Tensor
    baseline: Tensor


@dataclass(frozen=True)
class Logits:
    """Scores over the vocabulary, kept as the product that makes them: hidden @ weight.T + bias.

    The loss multiplies a few hundred rows at a time, so that no (tokens, vocab_size) tensor ever exists in training.

    hidden: (tokens, d_model). weight: (vocab_size, d_model). bias: (vocab_size,) or None.
    choices: where hard attention drew positions to make `hidden`.
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
    """log p over few choices, such as the places of a sentence; -inf where a row has no such choice.

    values: (tokens, choices).
    """

    values: Tensor
    choices: Choices | None = None

    def dense(self) -> Tensor:
        """(tokens, choices)"""
        return self.values


@dataclass(frozen=True)
class Mixture:
    """Words of the vocabulary mixed with pieces of the source (See et al. 2017, arXiv:1704.04368, equation 9):

        p(y) = g p_vocabulary(y) + (1 - g) sum_{i: x_i = y} a_i

    logits: of p_vocabulary. gate: (tokens,), the logit of g. weights: (tokens, longest_source), a, each row a
    distribution. pieces: (tokens, longest_source) int64, x, the ids of a row's own source.
    """

    logits: Logits
    gate: Tensor
    weights: Tensor
    pieces: Tensor

    @property
    def choices(self) -> Choices | None:
        """As of `logits`."""
        return self.logits.choices

    def copied(self, target: Tensor) -> Tensor:
        """sum_{i: x_i = y} a_i of each target y: (tokens,) -> (tokens,)"""
        return (self.weights * (self.pieces == target[:, None])).sum(1)

    def dense(self) -> Tensor:
        """log p, (tokens, vocab_size). Not for training: no gradient."""
        return mixed(self.logits.dense(), self.gate, self.weights, self.pieces)


@torch.no_grad()
def mixed(logits: Tensor, gate: Tensor, weights: Tensor, pieces: Tensor) -> Tensor:
    """log p of a `Mixture` whose logits are there already, (rows, vocab_size)."""
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    generate, copy = (F.logsigmoid(side.to(log_probabilities.dtype))[:, None] for side in (gate, -gate))
    log_probabilities += generate
    # Only what stands in the source changes.
    copied = torch.zeros_like(log_probabilities).scatter_add_(1, pieces, weights.to(log_probabilities.dtype))
    both = torch.logaddexp(log_probabilities.gather(1, pieces), copied.gather(1, pieces).log() + copy)
    return log_probabilities.scatter_(1, pieces, both)


Output = Logits | LogProbabilities | Mixture
"""What a model says of every target position."""


class State(Protocol):
    """Where the decoding of some rows stands. Row r belongs to sentence r // (rows / sentences)."""

    @property
    def attention(self) -> Tensor | None:
        """(rows, longest_source), weights of the last step over the source, where they were asked for."""

    def select(self, rows: Tensor) -> State:
        """Keep rows in a new order.

        Args:
            rows: (sentences, beam), the row that each survivor continues. A sentence that no row of it names is
                dropped; all rows of one line belong to one sentence.
        """


class Stepwise(Protocol):
    """A model that scores a target given a source step by step: all that search needs.

    max_positions: tokens of the longest sentence that it takes, `</s>` included.
    """

    max_positions: int

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> State:
        """Encode the source; one row a sentence.

        Args:
            source: (source_tokens,), every sentence closed by `</s>`.
            source_offsets: (sentences + 1,) int32.
            longest_source: tokens of the longest sentence.
            keep_attention: whether states carry `attention`.
        """

    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Score the token after `last_tokens` ((rows,)).

        Args:
            state: what `start` or a step of this model returned.
        Returns:
            (rows, vocab_size), log-probabilities up to a constant per row, which the caller may overwrite, and the
            state after the step.
        """


class Seq2Seq(Stepwise, Protocol):
    """A model that scores a target also all positions at once, and so can be trained."""

    def __call__(self, batch: Batch) -> Output:
        """Scores of every position of `batch.target_output`, each seeing the target before it (teacher forcing)."""


class WholeSearch(Protocol):
    """A search of an engine's own, with the results of `search.beam.search` without hooks."""

    def __call__(self, source: Tensor, source_offsets: Tensor, longest_source: int, *, beam_size: int,
                 max_lengths: Sequence[int], enough: int, forbidden: Sequence[int]
                 ) -> list[list[tuple[list[int], float]]]:
        """The hypotheses of each sentence that have ended, in the order in which they did: words without `</s>`, and
        log p.

        Args: as `beam.search` takes them; enough: how many end a sentence's search. forbidden: ids without `</s>`.
        """


Continuations = tuple[np.ndarray, np.ndarray, np.ndarray]
"""totals, beams, ids, each (groups, candidates), best first: log p of each continuation, which hypothesis of its group
it continues, and with what word. Where fewer are possible than asked for, log p of the others is -inf."""


class TopK(Protocol):
    """Finds the best continuations: `search.topk.continuations`, or something faster that returns the same."""

    def __call__(self, logits: Tensor, totals: np.ndarray, forbidden: Tensor, must_end: np.ndarray | None, count: int,
                 normalised: bool) -> Continuations:
        """See `search.topk.continuations`."""


class Engine(Stepwise, Protocol):
    """A trained model, run fast (see `inference.engines`): its steps, and all that is special to the hardware.

    precision: what it computes in.
    """

    precision: str

    @property
    def topk(self) -> TopK:
        """The function that finds the best continuations of its logits."""

    @property
    def whole_search(self) -> WholeSearch | None:
        """A search without hooks from end to end, if it has one."""

    @property
    def model(self) -> Seq2Seq:
        """The model in PyTorch, which computes all positions of given targets at once."""
