"""What search and trainer know of a model.

The Transformer, and whatever comes beside it, implements `Seq2Seq`; search sees only `start` and `step`, the trainer
only the call. A state is a value: `step` and `select` return a new one, and the caller decides which to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from seq2seq.batching import Batch


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

    def dense(self) -> Tensor:
        """(tokens, choices)"""
        return self.values


Output = Logits | LogProbabilities
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
            state after the step. Where targets are positions of the source, vocab_size is what this batch needs.
        """


class Seq2Seq(Stepwise, Protocol):
    """A model that scores a target also all positions at once, and so can be trained."""

    def __call__(self, batch: Batch) -> Output:
        """Scores of every position of `batch.target_output`, each seeing the target before it (teacher forcing)."""
